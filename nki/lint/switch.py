"""The switch of what works here and not with the real compiler or on hardware.

``TORCH_NEURONX_NKI_CHECK`` is ``off`` (the default), ``warn`` or ``strict``. It is off because the
documented simulator takes any Python too, and because the public documents name what the compiler
refuses in examples and not in full: a kernel that runs on the device must never be refused here.
"""

import os
import warnings
from typing import Final

from nki.errors import NkiError, NkiWarning

__all__ = ["MODES", "VARIABLE", "mode", "report"]

VARIABLE: Final = "TORCH_NEURONX_NKI_CHECK"
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


def report(problem: NkiError) -> None:
    """Do with a problem what the switch says: nothing, warn, or raise it."""
    chosen = mode()
    if chosen == "strict":
        raise problem
    if chosen == "warn":
        file, line = problem.where
        text = f"{problem.what}; {problem.remedy} [{problem.code}]"
        warnings.warn_explicit(text, NkiWarning, file, line)
