"""The switch of what works here and not with the real compiler or on hardware.

``TORCH_NEURONX_NKI_LINT`` is ``off`` (the default), ``warn`` or ``strict``. It is off because the
documented simulator takes any Python too, and because the public documents name what the compiler
refuses in examples and not in full: a kernel that runs on the device must never be refused here.
"""

import os
from typing import Final

from nki.errors import NkiError

__all__ = ["MODES", "VARIABLE", "mode"]

VARIABLE: Final = "TORCH_NEURONX_NKI_LINT"
MODES: Final = ("off", "warn", "strict")


def mode() -> str:
    """Return the mode that the environment selects.

    Raises:
        NkiError: there is no such mode (NKI247).
    """
    text = os.environ.get(VARIABLE, "").strip().lower() or "off"
    if text not in MODES:
        raise NkiError(
            "NKI247", f"{VARIABLE}={text} is no mode of checking", f"use {', '.join(MODES)}"
        )
    return text
