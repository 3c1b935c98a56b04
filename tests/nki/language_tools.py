"""Run functions of `nki.language` on arrays, as kernels on the reference executor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

import nki
import nki.language as nl
from nki.context import current_core
from nki.recorder import Recorder

Array = npt.NDArray[Any]
_finfo: Any = ml_dtypes.finfo


def run(body: Callable[..., Any], *arrays: Array) -> Array:
    """Load arrays, call `body` with the tiles, and return what its result holds."""

    def kernel(*sources: Any) -> Any:
        result = body(*(nl.load(source) for source in sources))
        if result.buffer is nl.psum:
            result = nl.copy(result)
        out = nl.ndarray(result.shape, result.dtype, nl.shared_hbm)
        nl.store(out, result)
        return out

    found: Array = nki.simulate(kernel)(*arrays)
    return found


def inside(body: Callable[[], Any]) -> Any:
    """Call a function within a kernel that takes nothing, and return what it returned."""
    recorder = Recorder("body", current_core().target)
    recorder.values = list  # there are no inputs
    with recorder.active():
        return body()


def rounding(dtype: Any) -> float:
    """Return half the distance of 1 to the next number of a floating-point type."""
    return float(_finfo(np.dtype(dtype)).eps) / 2


def largest(dtype: Any) -> float:
    """Return the largest finite number of a floating-point type."""
    return float(_finfo(np.dtype(dtype)).max)
