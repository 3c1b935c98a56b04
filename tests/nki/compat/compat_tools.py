"""What the tests of the first generation share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

import neuronxcc.nki as nki
import neuronxcc.nki.language as nl

Array = npt.NDArray[Any]

# Half a unit in the last place of float32, and of bfloat16.
ULP32 = 2.0**-24
ULP16 = 2.0**-9


def random(*shape: int, seed: int = 0, scale: float = 1.0) -> Array:
    """Return float32 numbers from 0 to below `scale`."""
    return (np.random.default_rng(seed).random(shape) * scale).astype(np.float32)


def close(got: Array, want: Array, *, rounded: int = 1, ulp: float = ULP32) -> None:
    """Compare results that were rounded a number of times, each by half a unit at most."""
    np.testing.assert_allclose(
        got.astype(np.float64), np.asarray(want, np.float64), rtol=2 * rounded * ulp, atol=1e-30
    )


def summed(count: int) -> int:
    """Return how often a sum of so many positive numbers is rounded."""
    return count + 1


def returning(function: Callable[..., Any], **options: Any) -> Any:
    """Make a kernel of a function from tiles to a tile: it loads arrays and stores the result."""

    def kernel(*arrays: Any) -> Any:
        made = function(*[nl.load(array) for array in arrays])
        many = made if isinstance(made, tuple) else (made,)
        stored = []
        for tile in many:
            out = nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.shared_hbm)
            nl.store(out, tile)
            stored.append(out)
        return tuple(stored) if isinstance(made, tuple) else stored[0]

    kernel.__name__ = getattr(function, "__name__", "kernel")
    return nki.jit(kernel, mode="simulation", **options)
