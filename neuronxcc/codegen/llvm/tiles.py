"""Pointwise kernels that transpose: square tiles, turned in registers, between two dimensions.

Some accesses are contiguous along one dimension (`vec`, that of the vectors) and others along
another (`cross`). For each tile the latter are read as rows along `cross`, turned, and left in a
buffer of the stack, from which the vectors along `vec` are read; stores the other way round. Every
cache line is then used whole.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass

from neuronxcc.codegen.llvm.emitter import BITS, Emitter, Loop, Val
from neuronxcc.codegen.llvm.formats import memory_elem
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
from neuronxcc.codegen.llvm.memory import Place, write
from neuronxcc.codegen.llvm.points import Points
from neuronxcc.codegen.loop import Access
from neuronxcc.codegen.space import Space
from neuronxcc.ir.dtypes import DType

# Tiles in each direction that make an item: a piece of memory pages on both sides.
_TILES = 8


@dataclass(frozen=True, slots=True)
class Crossing:
    """The accesses that a tiled kernel turns.

    Attributes:
        cross: The dimension along which these accesses are contiguous.
        loads: Accesses with their types.
        stores: The same.
        side: Elements along the side of a tile.
    """

    cross: int
    loads: tuple[tuple[Access, DType], ...]
    stores: tuple[tuple[Access, DType], ...]
    side: int


def crossing(space: Space, vec: int, host: Host) -> Crossing | None:
    """How to tile a kernel whose vectors lie along `vec`; None if there is nothing to gain."""
    kernel = space.kernel
    loaded = {s.access.slot for s in space.order if s.access is not None}
    stored = {s.access.slot for s in kernel.stores}
    # The last tiles overlap their neighbours: what is written twice must not be read in between.
    if loaded & stored:
        return None
    best: Crossing | None = None
    for cross in range(space.rank):
        if cross == vec:
            continue
        loads = {
            (s.access, s.dtype): None
            for s in space.order
            if s.access is not None and not s.srcs and _crosses(space, s.access, vec, cross)
            if not s.dtype.is_complex
        }
        stores = tuple(
            (s.access, s.value.dtype)
            for s in kernel.stores
            if s.mask is None and _crosses(space, s.access, vec, cross)
            if not s.value.dtype.is_complex
        )
        turned = (*loads, *stores)
        if not turned or (best is not None and len(turned) <= len(best.loads + best.stores)):
            continue
        size = max(BITS[memory_elem(dtype)] for _, dtype in turned)
        side = host.lanes if size <= 32 else host.lanes // 2
        if min(space.extent(cross), space.extent(vec)) >= side:
            best = Crossing(cross, tuple(loads), stores, side)
    return best


def _crosses(space: Space, access: Access, vec: int, cross: int) -> bool:
    far = abs(space.stride(access, vec))
    return not access.indices and far > 1 and space.stride(access, cross) == 1


def turned(em: Emitter, rows: list[Val]) -> list[Val]:
    """The transposed square of vectors: swaps blocks of half the side, then of a quarter, ..."""
    side = len(rows)
    rows = list(rows)
    block = side // 2
    while block:
        for i in range(side):
            if i & block:
                continue
            a, b = rows[i], rows[i + block]
            low = [side + k - block if k & block else k for k in range(side)]
            high = [side + k if k & block else k + block for k in range(side)]
            rows[i], rows[i + block] = em.shuffle(a, b, low), em.shuffle(a, b, high)
        block //= 2
    return rows


def emit(
    space: Space, host: Host, name: str, vec: int, plan: Crossing, streams: frozenset[Access]
) -> Emitted:
    """The loop function of a kernel without REDUCE dimensions."""
    em = Emitter(host)
    points = Points(em, space, pointers(em, len(space.kernel.slots)), streams)
    side, cross = plan.side, plan.cross
    if space.extent(vec) % side or space.extent(cross) % side:
        points.streams = frozenset()  # the last tiles overlap their neighbours
    outer = [d for d in range(space.rank) if d not in (vec, cross)]
    extents = [space.extent(d) for d in outer]
    tiles = [-(-space.extent(d) // side) for d in (cross, vec)]
    blocks = [-(-count // _TILES) for count in tiles]
    items = math.prod(extents) * blocks[0] * blocks[1]
    with each_item(em) as item:
        indices = decode(em, item, [*extents, *blocks])
        for dim, index in zip(outer, indices, strict=False):
            points.position[dim] = index
        with _tiles(em, indices[-2], tiles[0]) as down:
            at_cross = _start(em, down.index, side, space.extent(cross))
            with _tiles(em, indices[-1], tiles[1]) as over:
                at_vec = _start(em, over.index, side, space.extent(vec))
                _tile(points, vec, plan, {cross: at_cross, vec: at_vec})
    total = traffic(space, [vec, cross])
    item_bytes = max(1, total // (blocks[0] * blocks[1]))
    text = wrap(em, name, LOOP_PARAMETERS)
    return Emitted(text, em.declarations, items, grain(item_bytes, items), 0)


def _tiles(em: Emitter, block: Val, count: int) -> AbstractContextManager[Loop]:
    """A loop over the tiles of a block."""
    start = em.binary("mul", block, em.const("i64", _TILES))
    stop = em.binary("add", start, em.const("i64", _TILES))
    if count % _TILES:
        limit = em.const("i64", count)
        stop = em.select(em.compare("slt", stop, limit), stop, limit)
    return em.loop(start, stop)


def _start(em: Emitter, tile: Val, side: int, extent: int) -> Val:
    """Where a tile begins; the last one lies against the end."""
    start = em.binary("mul", tile, em.const("i64", side))
    if extent % side == 0:
        return start
    last = em.const("i64", extent - side)
    return em.select(em.compare("slt", start, last), start, last)


def _tile(points: Points, vec: int, plan: Crossing, starts: dict[int, Val]) -> None:
    em, side, cross = points.em, plan.side, plan.cross
    for dim, start in starts.items():
        points.position[dim] = start
    buffers: dict[Access, tuple[Val, str]] = {}
    for access, dtype in (*plan.loads, *plan.stores):
        elem = memory_elem(dtype)
        buffers[access] = (em.alloca(elem, side * side), elem)
    points.lie_along(cross, side)
    for access, dtype in plan.loads:
        rows = []
        for place in _rows(points, access, dtype, vec, side):
            rhs = em.load_rhs(place.elem, side, place.pointer)
            rows.append(em.pure(place.elem, side, rhs, place.pointer))
        buffer, elem = buffers[access]
        for number, column in enumerate(turned(em, rows)):
            pointer = em.gep(elem, buffer, em.const("i64", number * side))
            em.line(f"store {column.typed}, {pointer.typed}, align 16")
    with em.loop(em.const("i64", 0), em.const("i64", side)) as loop:
        points.position[cross] = em.binary("add", starts[cross], loop.index)
        points.lie_along(vec, side)
        row = em.binary("mul", loop.index, em.const("i64", side))
        points.buffered = {
            access: Place(elem, em.gep(elem, buffer, row), tuple(range(side)))
            for access, (buffer, elem) in buffers.items()
        }
        points.visit()
        points.buffered = {}
    points.position[cross] = starts[cross]
    points.lie_along(cross, side)
    for access, dtype in plan.stores:
        buffer, elem = buffers[access]
        rows = []
        for number in range(side):
            pointer = em.gep(elem, buffer, em.const("i64", number * side))
            rows.append(em.here(elem, side, em.load_rhs(elem, side, pointer)))
        places = _rows(points, access, dtype, vec, side)
        stream = access in points.streams
        for place, column in zip(places, turned(em, rows), strict=True):
            write(em, place, column, None, None, stream=stream)


def _rows(points: Points, access: Access, dtype: DType, vec: int, side: int) -> list[Place]:
    """Where the vectors along `cross` are, one for each position along `vec`."""
    em = points.em
    first = points.place(access, dtype)
    stride = points.space.stride(access, vec)
    return [
        Place(
            first.elem,
            em.gep(first.elem, first.pointer, em.const("i64", number * stride)),
            first.pattern,
        )
        for number in range(side)
    ]
