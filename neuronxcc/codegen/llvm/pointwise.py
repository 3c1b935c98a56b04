"""Kernels without reductions: a loop over the vectors of the innermost dimension."""

from __future__ import annotations

from neuronxcc.codegen.llvm.emitter import Emitter, Val
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
from neuronxcc.codegen.space import Space

# A long innermost dimension is cut into blocks, so that it can be shared between threads.
_BLOCK_BYTES = 16 << 10


def power_of_two_above(count: int) -> int:
    """The smallest power of two that is not below `count`."""
    return 1 << max(0, count - 1).bit_length()


def prefix_mask(em: Emitter, lanes: int, active: int) -> Val | None:
    """Lanes 0..active-1 of `lanes`; None for all."""
    if active == lanes:
        return None
    return em.lane_constants("i1", [lane < active for lane in range(lanes)])


def emit(space: Space, host: Host, name: str) -> Emitted:
    """The loop function of a kernel without REDUCE dimensions."""
    em = Emitter(host)
    points = Points(em, space, pointers(em, len(space.kernel.slots)))
    if space.rank == 0:
        return _single(em, points, name)
    vec = space.rank - 1
    outer = list(range(vec))
    extent = space.extent(vec)
    lanes = host.lanes
    full = extent // lanes * lanes
    block = _block(space, vec, lanes)
    blocks = -(-extent // block)
    extents = [space.extent(d) for d in outer]
    items = blocks
    for size in extents:
        items *= size

    with each_item(em) as item:
        indices = decode(em, item, [*extents, blocks])
        for dim, index in zip(outer, indices, strict=False):
            points.position[dim] = index
        points.vec = vec
        if blocks == 1:
            _run(points, em.const("i64", 0), em.const("i64", full), lanes)
        else:
            start = em.binary("mul", indices[-1], em.const("i64", block))
            stop = em.binary("add", start, em.const("i64", block))
            if full % block:
                limit = em.const("i64", full)
                stop = em.select(em.compare("slt", stop, limit), stop, limit)
            empty = full < extent and full % block == 0
            if empty:
                limit = em.const("i64", full)
                stop = em.select(em.compare("slt", stop, limit), stop, limit)
            _run(points, start, stop, lanes, may_be_empty=empty)
        if full < extent:
            last = em.compare("eq", indices[-1], em.const("i64", blocks - 1))
            with em.region() if blocks == 1 else em.when(last):
                points.position[vec] = em.const("i64", full)
                points.lanes = min(lanes, power_of_two_above(extent - full))
                points.mask = prefix_mask(em, points.lanes, extent - full)
                visit(points)
    item_bytes = traffic(space, [vec]) * min(block, extent) // extent
    text = wrap(em, name, LOOP_PARAMETERS)
    return Emitted(text, em.declarations, items, grain(item_bytes, items), 0)


def _block(space: Space, vec: int, lanes: int) -> int:
    """Elements of the innermost dimension that make one item: a multiple of `lanes`."""
    extent = space.extent(vec)
    per_element = max(1, traffic(space, [vec]) // extent)
    block = max(1, _BLOCK_BYTES // (per_element * lanes)) * lanes
    return block if extent >= 2 * block else -(-extent // lanes) * lanes


def visit(points: Points) -> None:
    """Loads, computes and stores at the current points."""
    stores = points.space.kernel.stores
    points.prepare(stores)
    for store in stores:
        points.store(store)


def _run(points: Points, start: Val, stop: Val, lanes: int, *, may_be_empty: bool = False) -> None:
    assert points.vec is not None
    em = points.em
    points.lanes = lanes
    points.mask = None
    if start.constant and stop.constant:
        trips = (int(stop.text) - int(start.text)) // lanes
        if trips == 0:
            return
        if trips == 1:
            with em.region():
                points.position[points.vec] = start
                visit(points)
            return
    with em.loop(start, stop, lanes, may_be_empty=may_be_empty) as loop:
        points.position[points.vec] = loop.index
        visit(points)


def _single(em: Emitter, points: Points, name: str) -> Emitted:
    with each_item(em):
        visit(points)
    return Emitted(wrap(em, name, LOOP_PARAMETERS), em.declarations, 1, 1, 0)
