"""Largest elements of windows and where they are: pooling with indices, as tensor IR.

A window is gone through along its last dimension first: so many shifted views of the image are
compared as the window is wide, and then the rows of what these leave. A tie is the first place's,
as it is where windows are gone through in order, and a NaN that of the last NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from neuronxcc.ir import build
from neuronxcc.ir.arithmetic import neutral
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node

__all__ = ["POOLING_CALLS"]

Ints = Sequence[int]
_MOST_VIEWS: Final = 512  # that are compared along one dimension


class _Windows(NamedTuple):
    """Windows along a dimension, all of one width.

    Attributes:
        begin: of the first one; before the image if negative.
        step: from one to the next.
        windows: how many.
        width: places in each.
        hole: from one place to the next.
    """

    begin: int
    step: int
    windows: int
    width: int
    hole: int


def _largest(
    values: Node, places: Node | None, dim: int, at: _Windows, unit: int
) -> tuple[Node, Node]:
    """Return the largest elements of windows along one dimension, and their places.

    Args:
        values: of the image.
        places: of the image's elements, None if they are those along the dimension.
        dim: which.
        at: the windows.
        unit: by how many places elements along the dimension are apart.
    """
    extent = values.shape[dim]
    last = at.begin + (at.windows - 1) * at.step + (at.width - 1) * at.hole
    low, high = max(0, -at.begin), max(0, last + 1 - extent)
    rank = values.type.rank
    ends = [[n if d == dim else 0 for d in range(rank)] for n in (low, high)]
    if low or high:
        values = build.pad(values, neutral("max", values.dtype), *ends)
        places = places if places is None else build.pad(places, 0, *ends)
    best: Node | None = None
    where: Node | None = None
    for number in range(at.width):
        first = at.begin + number * at.hole
        span = (at.windows - 1) * at.step + 1

        def view(x: Node, first: int = first, span: int = span) -> Node:
            return build.slice_dim(x, dim, first + low, first + low + span, at.step)

        value = view(values)
        row = first + at.step * np.arange(at.windows, dtype=np.int32)
        counted = _along(row * unit, value.shape, dim)
        place = counted if places is None else build.add(view(places), counted)
        if best is None or where is None:
            best, where = value, place
            continue
        better = build.greater(value, best)
        if value.dtype.is_float:
            better = build.or_(better, build.is_nan(value))
        # Before its first place in the image a window has none.
        begins = (row >= 0) & (row - at.hole < 0)
        if begins.any():
            better = build.or_(better, _along(begins, value.shape, dim))
        best = build.select(better, value, best)
        where = build.select(better, place, where)
    assert best is not None
    assert where is not None
    return best, where


def _along(array: np.ndarray, shape: Ints, dim: int) -> Node:
    """Return a line of constants along a dimension, the same everywhere else."""
    return build.broadcast_in_dim(build.constant(array), shape, (dim,))


def _pooled(x: Node, windows: Sequence[Sequence[_Windows]]) -> list[Node | None] | None:
    """Return the largest elements and their places in an image.

    Args:
        x: images; the last dimensions are those of an image.
        windows: for each dimension of an image; if there are several kinds, their windows take
            turns.
    """
    if any(sum(kind.width for kind in kinds) > _MOST_VIEWS for kinds in windows):
        return None
    values, places = x, None
    unit = 1
    for dim in reversed(range(x.type.rank - len(windows), x.type.rank)):
        kinds = windows[dim - x.type.rank]
        found = [_largest(values, places, dim, kind, unit) for kind in kinds]
        unit *= values.shape[dim]
        values, places = (_taking_turns([pair[n] for pair in found], dim) for n in (0, 1))
    assert places is not None
    return [values, build.convert(places, DType.S64)]


def _taking_turns(parts: Sequence[Node], dim: int) -> Node:
    """Return the elements of tensors along a dimension, one of each in turn."""
    if len(parts) == 1:
        return parts[0]
    shape = list(parts[0].shape)
    shape[dim] *= len(parts)
    return build.reshape(build.stack(parts, dim + 1), shape)


def _max_pool(
    x: Node,
    kernel: Ints,
    stride: Ints = (),
    padding: Ints = (0,),
    dilation: Ints = (1,),
    ceil_mode: bool = False,
) -> list[Node | None] | None:
    """`max_pool2d_with_indices` and that of three dimensions."""
    rank = len(kernel)
    windows = []
    for number, extent in enumerate(x.shape[-rank:]):
        width = kernel[number]
        step, pad, hole = (
            given[number % len(given)] for given in (stride or kernel, padding, dilation)
        )
        room = extent + 2 * pad - hole * (width - 1) - 1
        count = (-(-room // step) if ceil_mode else room // step) + 1
        if ceil_mode and (count - 1) * step >= extent + pad:
            count -= 1  # it would begin behind the image
        windows.append([_Windows(-pad, step, count, width, hole)])
    return _pooled(x, windows) if x.type.size else None


def _adaptive(x: Node, sizes: Ints) -> list[Node | None] | None:
    """`adaptive_max_pool2d` and that of three dimensions: windows begin at floor(i n / count)."""
    windows = []
    for extent, count in zip(x.shape[-len(sizes) :], sizes, strict=True):
        # Windows repeat themselves: `same` times.
        same = math.gcd(extent, count)
        kinds = []
        for i in range(count // same if same else 0):
            begin, end = i * extent // count, -(-(i + 1) * extent // count)
            kinds.append(_Windows(begin, extent // same, same, end - begin, 1))
        windows.append(kinds)
    return _pooled(x, windows) if x.type.size and all(sizes) else None


#: As `nki.device.calls.CALLS`.
POOLING_CALLS: Final[Mapping[str, Callable[..., list[Node | None] | None]]] = {
    "aten::max_pool2d_with_indices.default": _max_pool,
    "aten::max_pool3d_with_indices.default": _max_pool,
    "aten::adaptive_max_pool2d.default": _adaptive,
    "aten::adaptive_max_pool3d.default": _adaptive,
}
