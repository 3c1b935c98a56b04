"""Kernels without reductions: a loop over the vectors along one dimension, or two short ones."""

from __future__ import annotations

import math
from dataclasses import dataclass

from neuronxcc.codegen.llvm import tiles
from neuronxcc.codegen.llvm.emitter import Emitter, Val, power_of_two_above
from neuronxcc.codegen.llvm.function import (
    LOOP_PARAMETERS,
    Emitted,
    decode,
    each_item,
    grain,
    pointers,
    traffic,
    wrap,
)
from neuronxcc.codegen.llvm.host import Host
from neuronxcc.codegen.llvm.points import Points
from neuronxcc.codegen.llvm.vectors import (
    cheapest_vector,
    pair_lanes,
    prefix_mask,
)
from neuronxcc.codegen.loop import Access
from neuronxcc.codegen.space import Space

# A long dimension is cut into blocks, so that it can be shared between threads.
_BLOCK_BYTES = 16 << 10
# Vectors along a dimension from which on two at a time are worth the longer tail.
_LONG = 8


@dataclass(frozen=True, slots=True)
class _Lanes:
    """How vectors lie: along `dim`, `step` positions of it in each.

    `inner` is the innermost dimension if a vector spans all of that for each of its positions.
    """

    dim: int
    step: int
    inner: int | None
    inner_extent: int

    def place(self, em: Emitter, points: Points, active: int | None = None) -> None:
        """Sets the lanes of `points`; with `active`, for a last vector of so many positions."""
        if self.inner is None:
            lanes = self.step if active is None else power_of_two_above(active)
            mask = None if active is None else prefix_mask(em, lanes, active)
            points.lie_along(self.dim, lanes, mask)
            return
        size = self.inner_extent
        lanes = self.step * size
        points.along = {
            self.dim: tuple(lane // size for lane in range(lanes)),
            self.inner: tuple(lane % size for lane in range(lanes)),
        }
        points.lanes = lanes
        points.mask = None if active is None else prefix_mask(em, lanes, active * size)


def _lanes(space: Space, host: Host) -> _Lanes:
    both = pair_lanes(space, host)
    if both is not None:
        inner = space.rank - 1
        extent = space.extent(inner)
        return _Lanes(inner - 1, both // extent, inner, extent)
    dim = cheapest_vector(space, host)
    assert dim is not None
    # Two vectors at a time: the processor finds more to do in its window of instructions.
    several = 2 if space.extent(dim) >= _LONG * host.lanes else 1
    return _Lanes(dim, several * host.lanes, None, 1)


def emit(space: Space, host: Host, name: str, streams: frozenset[Access]) -> Emitted:
    """The loop function of a kernel without REDUCE dimensions.

    Args:
        space: Of the kernel.
        host: What it is for.
        name: Of the function.
        streams: The stores that go past the caches, to pointers that are multiples of a line.
    """
    em = Emitter(host)
    points = Points(em, space, pointers(em, len(space.kernel.slots)), streams)
    if space.rank == 0:
        with each_item(em):
            points.visit()
        return Emitted(wrap(em, name, LOOP_PARAMETERS), em.declarations, 1, 1, 0)
    lanes = _lanes(space, host)
    plan = None if lanes.inner is not None else tiles.crossing(space, lanes.dim, host)
    if plan is not None:
        return tiles.emit(space, host, name, lanes.dim, plan, streams)
    vec, step = lanes.dim, lanes.step
    taken = (vec,) if lanes.inner is None else (vec, lanes.inner)
    outer = [d for d in range(space.rank) if d not in taken]
    extent = space.extent(vec)
    full = extent // step * step
    block = _block(space, taken, extent, step)
    blocks = -(-extent // block)
    extents = [space.extent(d) for d in outer]
    items = blocks * math.prod(extents)

    with each_item(em) as item:
        indices = decode(em, item, [*extents, blocks])
        for dim, index in zip(outer, indices, strict=False):
            points.position[dim] = index
        lanes.place(em, points)
        if blocks == 1:
            _run(points, vec, em.const("i64", 0), em.const("i64", full), step)
        else:
            start = em.binary("mul", indices[-1], em.const("i64", block))
            stop = em.binary("add", start, em.const("i64", block))
            if extent % block:
                limit = em.const("i64", full)
                stop = em.select(em.compare("slt", stop, limit), stop, limit)
            # The last block may consist of the tail alone.
            _run(points, vec, start, stop, step, may_be_empty=full % block == 0)
        if full < extent:
            last = em.compare("eq", indices[-1], em.const("i64", blocks - 1))
            with em.region() if blocks == 1 else em.when(last):
                points.position[vec] = em.const("i64", full)
                lanes.place(em, points, extent - full)
                points.visit()
    item_bytes = max(1, traffic(space, taken) * min(block, extent) // extent)
    text = wrap(em, name, LOOP_PARAMETERS)
    return Emitted(text, em.declarations, items, grain(item_bytes, items), 0)


def _block(space: Space, taken: tuple[int, ...], extent: int, step: int) -> int:
    """Positions of the vector dimension that make one item: a multiple of `step`."""
    per_position = max(1, traffic(space, taken) // extent)
    block = max(1, _BLOCK_BYTES // (per_position * step)) * step
    return block if extent >= 2 * block else -(-extent // step) * step


def _run(
    points: Points, vec: int, start: Val, stop: Val, step: int, *, may_be_empty: bool = False
) -> None:
    em = points.em
    if start.constant and stop.constant:
        trips = (int(stop.text) - int(start.text)) // step
        if trips == 0:
            return
        if trips == 1:
            with em.region():
                points.position[vec] = start
                points.visit()
            return
    with em.loop(start, stop, step, may_be_empty=may_be_empty) as loop:
        points.position[vec] = loop.index
        points.visit()
