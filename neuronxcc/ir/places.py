"""Gathers at places that constants say: what an interpolation reads depends on sizes alone.

Such places are runs of equal steps, so that what is gathered can be copied by a few access
patterns. Without them each element is looked up for itself.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from neuronxcc.ir.arithmetic import Array
from neuronxcc.ir.calls import CHECK
from neuronxcc.ir.graph import Graph
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.ir.operators.indices import index_shape
from neuronxcc.ir.reference import evaluate
from neuronxcc.ir.table import Group

__all__ = ["Line", "Patterns", "Run", "patterns_of", "places_of", "runs_of"]

_MOST_PLACES: Final = 1 << 22  # that are computed here
_MOST_NODES: Final = 200  # that they are computed by
_MOST_STRIDE: Final = 16  # of places that are taken for one run
_MOST_COPIES: Final = 4096  # of 128 rows
_LONG: Final = 512  # bytes of what DMA moves at its full rate (NKI performance guide)
_COMPUTED: Final = Group.ELEMENTWISE | Group.MOVEMENT | {Op.IOTA, Op.CONSTANT}


class Run(NamedTuple):
    """Places in equal steps: ``first + step * i`` at ``begin + stride * i``, for i < size."""

    first: int
    step: int
    begin: int
    stride: int
    size: int


class Line(NamedTuple):
    """The places of one dimension.

    Attributes:
        dim: of the operand.
        axis: of the result.
        places: what is read there, inside the operand: one for each position on the axis.
    """

    dim: int
    axis: int
    places: tuple[int, ...]


class Patterns(NamedTuple):
    """A gather as copies of access patterns.

    Attributes:
        rows: how many leading dimensions operand and result have in common.
        axes: of the operand's other dimensions, in their order, which of the result's they are.
        lines: of dimensions whose places are gathered; the others are copied whole.
    """

    rows: int
    axes: tuple[int, ...]
    lines: tuple[Line, ...]

    def places(self, axis: int) -> tuple[int, ...] | None:
        """Return what is read along an axis of the result, None if all is, as it lies."""
        return next((line.places for line in self.lines if line.axis == axis), None)

    @property
    def copies(self) -> int:
        """How many access patterns copy a row."""
        return math.prod(len(runs_of(line.places)) for line in self.lines)


_known: weakref.WeakKeyDictionary[Node, Patterns | None] = weakref.WeakKeyDictionary()


def patterns_of(node: Node) -> Patterns | None:
    """Return a gather as access patterns; None where its windows are better moved one by one.

    That is where places depend on what a program is given, where DMA would move long windows, and
    where there are no rows for the partitions.

    Args:
        node: a gather.
    """
    if node not in _known:
        _known[node] = _patterns(node)
    return _known[node]


def _patterns(node: Node) -> Patterns | None:
    x = node.srcs[0]
    dims = node["start_index_map"]
    sizes = tuple(1 if d in dims else n for d, n in enumerate(x.shape))
    if node["operand_batching_dims"] or node["slice_sizes"] != sizes or not node.type.size:
        return None
    if set(node["collapsed_slice_dims"]) != set(dims) or not dims:
        return None
    lines = _lines(node)
    if lines is None:
        return None
    offset = iter(node["offset_dims"])
    gathered = {line.dim: line.axis for line in lines}
    axes = [gathered[d] if d in dims else next(offset) for d in range(x.type.rank)]
    rows = 0
    while rows < len(axes) and axes[rows] == rows and rows not in dims:
        rows += 1
    run = math.prod(x.shape[max(dims) + 1 :]) * x.dtype.itemsize
    found = Patterns(rows, tuple(axes[rows:]), lines)
    few = math.prod(x.shape[:rows]) > 1 and found.copies <= _MOST_COPIES
    return found if few and run < _LONG else None


def _lines(node: Node) -> tuple[Line, ...] | None:
    """Return the places of each dimension if they differ along one axis of the result each."""
    x, indices = node.srcs
    known = places_of(indices)
    if known is None:
        return None
    grid, _ = index_shape(Op.GATHER, indices.type, node.attrs)
    vector = node["index_vector_dim"]
    known = np.moveaxis(known, vector, -1) if vector < known.ndim else known[..., None]
    batch = [d for d in range(node.type.rank) if d not in node["offset_dims"]]
    mapped = node["start_index_map"]
    axes = _axes_of([known[..., number] for number in range(len(mapped))])
    if axes is None or any(n > 1 and axis not in axes for axis, n in enumerate(grid)):
        return None
    lines = []
    for number, (dim, axis) in enumerate(zip(mapped, axes, strict=True)):
        line = known[(*(slice(None) if a == axis else 0 for a in range(len(grid))), number)]
        inside = np.clip(line, 0, x.shape[dim] - 1)
        lines.append(Line(dim, batch[axis], tuple(map(int, inside))))
    return tuple(lines)


def _axes_of(places: list[Array]) -> list[int] | None:
    """Return for each dimension an axis of its own, the only one along which its places differ."""
    differing = [
        [
            axis
            for axis in range(each.ndim)
            if (each != each[(slice(None),) * axis + (slice(0, 1),)]).any()
        ]
        for each in places
    ]
    found = [axis for axes in differing for axis in axes]
    if len(set(found)) < len(found) or any(len(axes) > 1 for axes in differing):
        return None
    # What is the same everywhere takes an axis that is left, the longest first.
    free = [axis for axis in range(places[0].ndim) if axis not in found]
    free.sort(key=lambda axis: -places[0].shape[axis])
    if len(free) < sum(not axes for axes in differing):
        return None
    return [axes[0] if axes else free.pop(0) for axes in differing]


def places_of(node: Node) -> Array | None:
    """Return the values of a tensor that depends on constants alone, None if it does not.

    Where a check of them would fail, they are not known: the program says so when it runs.
    """
    needed: set[Node] = set()
    todo = [node]
    while todo:
        each = todo.pop()
        if each in needed:
            continue
        is_check = each.op is Op.CUSTOM_CALL and each["target"] == CHECK
        if not (is_check or each.op in _COMPUTED) or len(needed) == _MOST_NODES:
            return None
        if each.type.size > _MOST_PLACES:
            return None
        needed.add(each)
        todo.extend(each.srcs)
    try:
        (found,) = evaluate(Graph("places", (), (node,)), (), _checked)
    except _OutsideError:
        return None
    return found


class _OutsideError(Exception):
    """A check of places fails."""


def _checked(node: Node, operands: Sequence[Array]) -> Sequence[Array]:
    _, low, high, *_ = node["args"]
    (places,) = operands
    if places.size and not low <= places.min() <= places.max() <= high:
        raise _OutsideError
    return (np.zeros(node.shape, node.dtype.numpy),)


def runs_of(places: tuple[int, ...]) -> tuple[Run, ...]:
    """Cut places into few runs.

    >>> runs_of((0, 0, 1, 1, 2, 2))
    ... # doctest: +NORMALIZE_WHITESPACE
    (Run(first=0, step=1, begin=0, stride=2, size=3),
     Run(first=0, step=1, begin=1, stride=2, size=3))
    >>> runs_of((5, 5, 5))
    (Run(first=5, step=0, begin=0, stride=1, size=3),)
    """
    most = min(_MOST_STRIDE, len(places))
    return min((_strided(places, stride) for stride in range(1, most + 1)), key=len)


def _strided(places: tuple[int, ...], stride: int) -> tuple[Run, ...]:
    found = []
    for phase in range(stride):
        line = places[phase::stride]
        at = 0
        while at < len(line):
            end = at + 1
            step = line[end] - line[at] if end < len(line) else 0
            while end < len(line) and line[end] - line[end - 1] == step:
                end += 1
            found.append(Run(line[at], step, phase + at * stride, stride, end - at))
            at = end
    return tuple(found)
