"""Movement as strides: which element of a tensor in HBM each element of a view is.

Broadcasts, reshapes, transposes, slices and reversals of a tensor are access patterns that DMA
engines read directly, so that they cost nothing by themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op

__all__ = [
    "MOVES",
    "Dims",
    "Sources",
    "Use",
    "View",
    "boxes",
    "collapsed",
    "contiguous",
    "inverted",
    "moved",
    "split",
]

#: (size, stride) of each dimension.
Dims = tuple[tuple[int, int], ...]


class View(NamedTuple):
    """Elements of a flat tensor: number ``offset + sum(strides[k] * i[k])``.

    Attributes:
        shape: sizes.
        strides: elements between neighbours of each dimension.
        offset: of the first element.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def dims(self) -> Dims:
        """(size, stride) of each dimension."""
        return tuple(zip(self.shape, self.strides, strict=True))

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def permuted(self, order: Sequence[int]) -> View:
        """Return the view with its dimensions in another order."""
        shape = tuple(self.shape[d] for d in order)
        return View(shape, tuple(self.strides[d] for d in order), self.offset)

    @property
    def is_whole(self) -> bool:
        """Return whether it is the tensor itself: its elements in their order."""
        return self.offset == 0 and collapsed(self.dims) in ((), ((self.size, 1),))


def contiguous(shape: Sequence[int]) -> View:
    """Return the view of a whole tensor."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= size
    return View(tuple(shape), tuple(strides))


def collapsed(dims: Sequence[tuple[int, int]]) -> Dims:
    """Return dimensions with those merged that continue each other, and those of size 1 left out.

    >>> collapsed([(2, 12), (3, 4), (1, 7), (4, 1)])
    ((24, 1),)
    """
    found: list[tuple[int, int]] = []
    for size, stride in dims:
        if size == 1:
            continue
        if found and found[-1][1] == size * stride:
            found[-1] = (found[-1][0] * size, stride)
        else:
            found.append((size, stride))
    return tuple(found)


def split(view: View, rows: int, columns: int) -> tuple[Dims, Dims] | None:
    """Return collapsed dimensions of rows and columns; None if no dimension begins between them."""
    if view.size != rows * columns:
        return None
    count = 1
    for at in range(len(view.shape) + 1):
        if count == rows:
            return collapsed(view.dims[:at]), collapsed(view.dims[at:])
        if at < len(view.shape):
            count *= view.shape[at]
    return None


def inverted(view: View, size: int) -> View | None:
    """Return where each element of a tensor lies in a view of it; None if not all do once.

    >>> inverted(View((3, 2), (1, 3)), 6)
    View(shape=(2, 3), strides=(1, 2), offset=0)
    """
    dims = list(zip(view.shape, view.strides, contiguous(view.shape).strides, strict=True))
    dims = sorted((dim for dim in dims if dim[0] > 1), key=lambda dim: -dim[1])
    step = 1
    for n, stride, _ in reversed(dims):
        if stride != step:
            return None
        step *= n
    if step != size or view.offset:
        return None
    return View(tuple(n for n, _, _ in dims), tuple(place for _, _, place in dims))


def boxes(dims: Dims, begin: int, count: int) -> list[tuple[int, int, Dims]]:
    """Return a range of positions in nested dimensions as boxes of strided elements.

    Args:
        dims: (size, stride), outermost first.
        begin: first position.
        count: how many, at least one.

    Returns:
        For each box the position within the range where it begins, the offset of its first element,
        and its dimensions.

    >>> boxes(((3, 10), (4, 1)), 2, 6)
    [(0, 2, ((2, 1),)), (2, 10, ((4, 1),))]
    """
    if not dims:
        return [(0, 0, ((count, 0),) if count > 1 else ())]
    if len(dims) == 1:
        stride = dims[0][1]
        return [(0, begin * stride, ((count, stride),))]
    inner = math.prod(size for size, _ in dims[1:])
    stride = dims[0][1]
    found: list[tuple[int, int, Dims]] = []
    at = 0
    while at < count:
        outer, rest = divmod(begin + at, inner)
        if rest == 0 and count - at >= inner:
            whole = (count - at) // inner
            found.append((at, outer * stride, ((whole, stride), *dims[1:])))
            at += whole * inner
            continue
        most = min(count - at, inner - rest)
        found += [
            (at + first, outer * stride + offset, part)
            for first, offset, part in boxes(dims[1:], rest, most)
        ]
        at += most
    return found


# --- the operators -------------------------------------------------------------------------------


def moved(node: Node, view: View) -> View | None:
    """Return the view that an operator of movement makes of a view of its operand; None: no view.

    Args:
        node: its operator is in `MOVES`.
        view: of the operand.
    """
    return MOVES[node.op](node, view)


def _broadcast(node: Node, view: View) -> View:
    shape = node.shape
    strides = [0] * len(shape)
    for dim, (size, stride) in zip(node["dims"], view.dims, strict=True):
        strides[dim] = stride if size == shape[dim] and size != 1 else 0
    return View(shape, tuple(strides), view.offset)


def _reshape(node: Node, view: View) -> View | None:
    if not view.size:
        return contiguous(node.shape)._replace(offset=view.offset)
    rest = list(collapsed(view.dims))
    strides: list[int] = []
    # From the innermost dimension outwards; what is left of a run serves the next dimension.
    for size in reversed(node.shape):
        if size == 1:
            strides.insert(0, 0)
            continue
        if not rest:
            return None
        run, stride = rest[-1]
        if run % size:
            return None
        strides.insert(0, stride)
        if run == size:
            rest.pop()
        else:
            rest[-1] = (run // size, stride * size)
    return View(node.shape, tuple(strides), view.offset)


def _transpose(node: Node, view: View) -> View:
    return view.permuted(node["permutation"])


def _slice(node: Node, view: View) -> View:
    starts, steps = node["starts"], node["strides"]
    offset = view.offset + sum(a * s for a, s in zip(starts, view.strides, strict=True))
    strides = tuple(a * s for a, s in zip(steps, view.strides, strict=True))
    return View(node.shape, strides, offset)


def _reverse(node: Node, view: View) -> View:
    offset, strides = view.offset, list(view.strides)
    for dim in node["dims"]:
        offset += (max(view.shape[dim], 1) - 1) * strides[dim]
        strides[dim] = -strides[dim]
    return View(view.shape, tuple(strides), offset)


MOVES: Final[Mapping[Op, Callable[[Node, View], View | None]]] = {
    Op.BROADCAST_IN_DIM: _broadcast,
    Op.RESHAPE: _reshape,
    Op.TRANSPOSE: _transpose,
    Op.SLICE: _slice,
    Op.REVERSE: _reverse,
}


# --- in graphs ----------------------------------------------------------------------------------


class Use(NamedTuple):
    """An operand: a view of what is computed or given."""

    source: Node
    view: View


class Sources:
    """What the operands of nodes are views of.

    Args:
        moved: operators of movement that are computed: their elements are copied.
    """

    def __init__(self, moved: frozenset[Node] = frozenset()) -> None:
        self._known: dict[Node, Use] = {node: Use(node, contiguous(node.shape)) for node in moved}

    def of(self, node: Node) -> Use:
        """Return what a node is a view of: itself if it is computed."""
        found = self._known.get(node)
        if found is None:
            found = self._known[node] = self._found(node)
        return found

    def _found(self, node: Node) -> Use:
        if node.op in MOVES and node.type.size:
            source, view = self.of(node.srcs[0])
            made = moved(node, view)
            if made is not None:
                return Use(source, made)
        return Use(node, contiguous(node.shape if len(node.types) == 1 else ()))
