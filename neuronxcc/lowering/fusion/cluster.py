"""A loop kernel under construction: a space of axes, and what is wanted at which positions of it.

Consumers come before producers: a cluster starts with what it stores, learns which elements of
other tensors that needs, and each of these tensors is then either computed inside or loaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.lowering.classify import REDUCTIONS
from neuronxcc.lowering.geometry import index as ix
from neuronxcc.lowering.geometry.index import At, Cond, Index, Space, SplitNeeded
from neuronxcc.lowering.geometry.layout import span
from neuronxcc.lowering.geometry.sources import Source, sources


@dataclass(eq=False)
class Storage:
    """Memory of one tensor. `strides` are those of `shape`; a claim may fix them.

    kind and index are those of neff.program.Buffer. `home`: the parameter that it should become
    the content of. `merged`: the storage that it turned out to be the same memory as.
    """

    kind: str
    node: Node
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    index: int = -1
    home: int = -1
    merged: Storage | None = None

    @property
    def nbytes(self) -> int:
        """Bytes from the first to the last element."""
        return span(self.shape, self.strides) * self.node.dtype.itemsize

    def resolve(self) -> Storage:
        """The storage that stands for all merged ones."""
        storage = self
        while storage.merged is not None:
            storage = storage.merged
        return storage


@dataclass(eq=False)
class Write:
    """A store of a cluster: the value of `node` at `at`, to `coords` of a storage."""

    node: Node
    at: At
    storage: Storage
    coords: tuple[Index, ...]
    strides: tuple[int, ...]
    offset: int = 0
    mask: tuple[Cond, ...] = ()
    combine: Op | None = None

    @property
    def address(self) -> Index:
        """Element of the storage."""
        parts = list(zip(self.coords, self.strides, strict=True))
        return ix.shift(ix.weighted(parts), self.offset)


@dataclass(eq=False)
class Cluster:
    """See the module.

    Attributes:
        number: Steps with greater numbers are executed earlier.
        kind: "loop", "gemm" or "conv" for the epilogue of a product, or "operand" for what makes an
            operand of a matrix product; the axes of a product are batch, row and column and stay as
            they are.
        made: Of an operand: the tensor that it is, and at which position.
        extents: Of every axis.
        order: The axes, outermost first.
        reduced: Those that are reduced over.
        wants: For every tensor the positions at which it is needed.
        inside: Those computed in the kernel, with what they are computed from.
        writes: What it stores.
        work: Number of operations.
        whole: Axes that may not be split.
        update: The update that it is for: it writes parts of a storage, and its space is that of
            the new elements.
    """

    number: float
    kind: str = "loop"
    extents: dict[int, int] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    reduced: set[int] = field(default_factory=set)
    wants: dict[Node, dict[At, None]] = field(default_factory=dict)
    inside: dict[Node, dict[At, tuple[Source, ...]]] = field(default_factory=dict)
    writes: list[Write] = field(default_factory=list)
    work: int = 0
    whole: set[int] = field(default_factory=set)
    update: Node | None = None
    made: tuple[Node, At] | None = None

    @property
    def has_updates(self) -> bool:
        """Return whether it is for an update."""
        return self.update is not None

    @property
    def space(self) -> Space:
        """For index arithmetic."""
        return Space(self.extents, self.kind == "loop", self.whole)

    @property
    def parallel(self) -> list[int]:
        """The axes that are not reduced over."""
        return [axis for axis in self.order if axis not in self.reduced]

    def points(self, axes: Sequence[int] | set[int]) -> int:
        """Number of points of some axes."""
        return math.prod(self.extents[axis] for axis in axes)

    def new_axis(self, extent: int, *, reduced: bool = False) -> Index:
        """Append an axis; an extent of 1 needs none."""
        if extent == 1:
            return ix.ZERO
        axis = len(self.extents)
        self.extents[axis] = extent
        self.order.append(axis)
        if reduced:
            self.reduced.add(axis)
        return ix.of_axis(axis)

    def identity(self, shape: Sequence[int]) -> At:
        """New axes, one per dimension."""
        return At(tuple(self.new_axis(extent) for extent in shape))

    def want(self, node: Node, at: At) -> None:
        """Note that a tensor is needed at a position."""
        self.wants.setdefault(node, {})[at] = None

    def split(self, axis: int, inner: int) -> None:
        """Turn an axis into two, everywhere."""
        extent = self.extents[axis]
        outer_axis, inner_axis = len(self.extents), len(self.extents) + 1
        self.extents[outer_axis], self.extents[inner_axis] = extent // inner, inner
        place = self.order.index(axis)
        self.order[place : place + 1] = [outer_axis, inner_axis]
        if axis in self.reduced:
            self.reduced ^= {axis, outer_axis, inner_axis}
        by = Index(0, ((outer_axis, inner), (inner_axis, 1)))
        change = ix.Substitution(axis, by)
        self.wants = {n: {change.at(at): None for at in ats} for n, ats in self.wants.items()}
        self.inside = {
            node: {
                change.at(at): tuple((src, change.at(where)) for src, where in srcs)
                for at, srcs in ats.items()
            }
            for node, ats in self.inside.items()
        }
        for write in self.writes:
            write.at = change.at(write.at)
            write.coords = tuple(map(change.index, write.coords))
            write.mask = change.at(At((), write.mask)).mask

    def affine(self, compute: Callable[[], None]) -> None:
        """Run index arithmetic, splitting axes for it as it asks."""
        while True:
            try:
                compute()
            except SplitNeeded as need:
                self.split(need.axis, need.inner)
            else:
                return

    def trace(self, node: Node) -> dict[At, tuple[Source, ...]]:
        """The sources of the node, for every position at which it is wanted."""
        result: dict[At, tuple[Source, ...]] = {}

        def compute() -> None:
            result.clear()
            over = self.reduced_coords(node) if node.op in REDUCTIONS else ()
            for at in self.wants[node]:
                result[at] = sources(node, at, self.space, over)

        self.affine(compute)
        return result

    def trace_leaf(self, node: Node) -> dict[At, tuple[Source, ...]]:
        """The same for a node without operands."""
        return dict.fromkeys(self.wants[node], ())

    def reduced_coords(self, node: Node) -> tuple[Index, ...]:
        """The positions along a reduction's dimensions, from the axes reduced over."""
        extents = reduced_extents(node)
        axes = [axis for axis in self.order if axis in self.reduced]
        flat = ix.flatten([ix.of_axis(a) for a in axes], [self.extents[a] for a in axes])
        return ix.unflatten(flat, extents, self.space)

    def admit(self, node: Node, traced: dict[At, tuple[Source, ...]]) -> None:
        """Compute the node inside, from what `trace` said."""
        self.inside[node] = traced
        if node.op is Op.ARG_REDUCE:
            self.whole |= self.reduced
        self.work += len(traced)
        for srcs in traced.values():
            for src, at in srcs:
                self.want(src, at)


def reduced_extents(node: Node) -> tuple[int, ...]:
    """Extents of the dimensions that a reduction runs over."""
    if node.op is Op.REDUCE_WINDOW:
        return tuple(node["window"])
    dims = node["dims"] if node.op is Op.REDUCE else (node["dim"],)
    return tuple(node.srcs[0].shape[d] for d in dims)
