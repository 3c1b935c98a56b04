"""The switch of what works here and not with the real compiler or on hardware.

``TORCH_NEURONX_NKI_LINT`` is ``off`` (the default), ``warn`` or ``strict``. It is off because the
documented simulator takes any Python too, and because the public documents name what the compiler
refuses in examples and not in full: a kernel that runs on the device must never be refused here.
"""

from neuronxcc.environment.kernels import TORCH_NEURONX_NKI_LINT
from neuronxcc.environment.variable import VariableError
from nki.errors import NkiError

__all__ = ["mode"]


def mode() -> str:
    """Return the mode that the environment selects.

    Raises:
        NkiError: there is no such mode (NKI247).
    """
    try:
        return TORCH_NEURONX_NKI_LINT.get()
    except VariableError as error:
        what = f"{error.variable}={error.given!r} is no mode of checking"
        raise NkiError("NKI247", what, f"use {error.allowed}") from None
