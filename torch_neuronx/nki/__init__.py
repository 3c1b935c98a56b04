"""NKI for PyTorch: everything of the package `nki`, and operators made of kernels.

``from torch_neuronx import nki`` gives `nki.jit` and the rest, with kernels that take tensors.
"""

import importlib
from typing import Any

from nki import *  # noqa: F403
from nki import jit
from torch_neuronx.nki.operator import nki_op, wrap_nki

__all__ = ["jit", "nki_op", "wrap_nki"]


def __getattr__(name: str) -> Any:
    """Find what the package `nki` has; its modules are imported when they are asked for."""
    package = importlib.import_module("nki")
    try:
        return getattr(package, name)
    except AttributeError:
        if name.startswith("_"):
            raise
    try:
        return importlib.import_module(f"nki.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"nki.{name}":
            raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
