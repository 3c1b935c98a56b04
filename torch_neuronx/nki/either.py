"""`torch_neuronx.nki_jit`: the one decorator that kernels of both generations import."""

from __future__ import annotations

import functools
from typing import Any

import nki
from nki.first_generation.launch import jit as first_generation_jit
from nki.first_generation.syntax import is_first_generation

__all__ = ["nki_jit"]


def nki_jit(fn: Any = None, **options: Any) -> Any:
    """Make a function a kernel: `neuronxcc.nki.jit` if it uses that package, else `nki.jit`."""
    if fn is None:
        return functools.partial(nki_jit, **options)
    return (
        first_generation_jit(fn, **options) if is_first_generation(fn) else nki.jit(fn, **options)
    )
