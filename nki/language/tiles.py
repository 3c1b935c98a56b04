"""The common parts of functions on tiles: checks, data types of results, and room for them."""

import math
import numbers
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from nki.dtypes import canonical, info
from nki.errors import NkiError, NkiTypeError
from nki.isa.functions import FUNCTIONS
from nki.memory import MemoryRegion
from nki.tensor import NkiTensor, create

__all__ = [
    "Number",
    "broadcast_last",
    "cast_copy",
    "free_axes",
    "in_parts",
    "is_number",
    "new",
    "promote",
    "same_shape",
    "split",
    "tile",
]

Number = float | int

# The exponent and mantissa bits of floating-point types: one holds another if it has both.
_BITS = {
    "float32": (8, 23),
    "tfloat32": (8, 10),
    "bfloat16": (8, 7),
    "float16": (5, 10),
    "float8_e5m2": (5, 2),
    "float8_e4m3": (4, 3),
    "float8_e4m3fn": (4, 3),
}
_MOST = 65535  # elements that an engine counts in one dimension
_WIDENED = ("float16", "bfloat16", "float32")  # never tfloat32, which only products use


def is_number(value: Any) -> bool:
    """Return whether an argument is a number of Python or NumPy, and not a tensor or a register."""
    return isinstance(value, (numbers.Real, np.number, np.bool_))


def tile(function: str, name: str, value: Any) -> NkiTensor:
    """Return an argument that must be a tile, which is a tensor in SBUF or PSUM.

    Raises:
        NkiTypeError: it is something else (NKI240).
    """
    if not isinstance(value, NkiTensor):
        raise NkiTypeError(
            "NKI240",
            f"nl.{function} {name} must be a tile, got {type(value).__name__}",
            "make a tile with nl.load or nl.full",
        )
    if not value.buffer.on_chip:
        raise NkiTypeError(
            "NKI240",
            f"nl.{function} {name} must be a tile in sbuf or psum, got {value!r} in "
            f"{value.buffer.name}",
            "load it with nl.load first",
        )
    return value


def new(shape: tuple[int, ...], dtype: Any) -> NkiTensor:
    """Return an uninitialised tile in SBUF."""
    return create(shape, dtype, MemoryRegion.sbuf)


def same_shape(function: str, x: NkiTensor, y: NkiTensor) -> None:
    """Check that nothing would have to be broadcast.

    Raises:
        NkiError: the shapes differ (NKI241).
    """
    if x.shape != y.shape:
        raise NkiError(
            "NKI241",
            f"nl.{function} takes tiles of one shape, got {x.shape} and {y.shape}",
            "broadcast one with nl.broadcast_to, or use nisa.tensor_scalar for one element per "
            "partition",
        )


def promote(x: str, y: str) -> str:
    """Return the data type of a result of two tiles, after the documented rules.

    Floating point wins over integers; of two floating-point types the one that holds the other, or
    the smallest that holds both; of two integers likewise, float32 where 32 bits are too few.
    """
    if x == y:
        return x
    a, b = info(x), info(y)
    if a.is_packed or b.is_packed:
        raise NkiTypeError(
            "NKI108", f"{x} and {y} have no common data type", "packed types have no arithmetic"
        )
    if a.is_float != b.is_float:
        return x if a.is_float else y
    if not a.is_float:
        return _promote_integers(x, y)
    if x not in _BITS or y not in _BITS:
        return "float32"
    pair = _BITS[x], _BITS[y]
    exponent, mantissa = (max(part) for part in zip(*pair, strict=True))
    if x.startswith("float8") and y.startswith("float8"):
        return "bfloat16"  # so documented for e4m3 and e5m2, which float16 would hold too
    for name in (x, y, *_WIDENED):
        if _BITS[name][0] >= exponent and _BITS[name][1] >= mantissa:
            return name
    raise AssertionError((x, y))  # float32 holds all


def _promote_integers(x: str, y: str) -> str:
    kinds = [info(name).numpy for name in (x, y)]
    wide = np.promote_types(*kinds)
    return "float32" if wide.itemsize > 4 else canonical(wide)


def free_axes(function: str, x: NkiTensor, axis: Any) -> int:
    """Return the first of the axes to work along: they must be the last ones of the tile.

    Args:
        function: for messages.
        x: the tile.
        axis: an int, or a tuple or list of ints; negative ones count from the end.

    Raises:
        NkiError: other axes (NKI242).
    """
    try:
        given = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
        axes = [operator.index(a) for a in given]
    except TypeError:
        axes = []
    found = sorted(a + x.ndim if a < 0 else a for a in axes)
    if not found or found[0] < 1 or found != list(range(found[0], x.ndim)):
        raise NkiError(
            "NKI242",
            f"nl.{function} cannot work along axis {axis!r} of shape {x.shape}",
            "name the last free dimensions, as 1 or (1, 2): permute the view so that they come "
            "last, and use nl.transpose to bring partitions there",
        )
    return found[0]


def split(x: NkiTensor, first: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shape that is left before axis `first`, at least 2-D, and that with ones."""
    kept = x.shape[:first]
    return (kept if len(kept) > 1 else (*kept, 1)), (*kept, *(1,) * (x.ndim - first))


def broadcast_last(x: NkiTensor, shape: tuple[int, ...]) -> NkiTensor:
    """Return a view of a tile with ones in its last dimensions that repeats them to `shape`."""
    for dim, size in enumerate(shape):
        if x.shape[dim] != size:
            x = x.broadcast(dim, size)
    return x


def in_parts(emit: Callable[..., None], out: NkiTensor, *operands: Any) -> None:
    """Issue ``emit(*operands, out)``, in parts if a partition has more elements than engines count.

    Args:
        emit: issues the instructions for tiles.
        out: what is written.
        operands: tiles in the shape of `out`, which are cut as it is, and others, which are not.
    """
    if math.prod(out.shape[1:]) <= _MOST:
        emit(*operands, out)
        return
    dim = out.shape.index(max(out.shape[1:]), 1)
    half = out.shape[dim] // 2
    for start, end in ((0, half), (half, out.shape[dim])):
        cut = [
            x.slice(dim, start, end) if isinstance(x, NkiTensor) and x.shape == out.shape else x
            for x in operands
        ]
        in_parts(emit, out.slice(dim, start, end), *cut)


def cast_copy(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Return a new tile in SBUF with the values of a tile; bit by bit if the types agree."""
    out = new(x.shape, x.dtype if dtype is None else dtype)
    in_parts(lambda part, result: FUNCTIONS["tensor_copy"](result, part), out, x)
    return out
