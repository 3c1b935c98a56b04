"""Kernels whose stores may meet at one element: indexed and combining stores.

Dimensions along which two points can never meet are shared out and vectorised; the others are run
through by one thread in the order of the space.
"""

from __future__ import annotations

import math
from contextlib import ExitStack

from neuronxcc.codegen.errors import CodegenUnsupported
from neuronxcc.codegen.llvm.emitter import Emitter, power_of_two_above
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
from neuronxcc.codegen.llvm.vectors import prefix_mask
from neuronxcc.codegen.loop import Store
from neuronxcc.codegen.space import Space

_FEWEST_ITEMS = 8


def meets(store: Store) -> bool:
    """Return whether points of the store may meet at one element."""
    return store.combine is not None or bool(store.access.indices)


def race_free(space: Space) -> list[int]:
    """Dimensions along which points differ in all elements that they write."""
    free = set(range(space.rank))
    for store in space.kernel.stores:
        if meets(store):
            free &= _race_free(space, store)
    return sorted(free)


def _race_free(space: Space, store: Store) -> set[int]:
    """The dimensions that are the low digits of the position; see the comment inside."""
    stride = {d: abs(space.stride(store.access, d)) for d in range(space.rank)}
    low = sorted((d for d in stride if stride[d]), key=lambda d: stride[d])
    while low:
        # Distinct points of these dimensions have distinct positions ...
        span, distinct = 0, True
        for dim in low:
            distinct &= stride[dim] > span
            span += stride[dim] * (space.extent(dim) - 1)
        # ... and everything else moves the position by multiples of more than they span.
        step = math.gcd(
            *(abs(s) for _, s in store.access.indices),
            *(stride[d] for d in stride if d not in low),
        )
        if distinct and (step == 0 or span < step):
            return set(low)
        low.pop()
    return set()


def emit(space: Space, host: Host, name: str) -> Emitted:
    """The loop function of a kernel with stores that may meet, without REDUCE dimensions."""
    if space.reduced:
        raise CodegenUnsupported("an indexed or combining store in a kernel with reductions")
    em = Emitter(host)
    points = Points(em, space, pointers(em, len(space.kernel.slots)))
    free = race_free(space)
    vec = _vector(space, free)
    shared = [d for d in free if d != vec]
    serial = [d for d in range(space.rank) if d not in free]
    extents = [space.extent(d) for d in shared]
    columns = 1 if vec is None else space.extent(vec)
    lanes = 0 if vec is None else min(_lanes(columns, host), power_of_two_above(columns))
    blocks = 1 if vec is None else -(-columns // lanes)
    items = math.prod(extents) * blocks

    with each_item(em) as item:
        indices = decode(em, item, [*extents, blocks])
        for dim, index in zip(shared, indices, strict=False):
            points.position[dim] = index
        rest = columns % lanes if lanes else 0
        if vec is None:
            _loops(points, serial)
        else:
            start = em.binary("mul", indices[-1], em.const("i64", lanes))
            points.position[vec] = start
            points.lie_along(vec, lanes)
            last = em.compare("eq", indices[-1], em.const("i64", blocks - 1))
            if not rest:
                _loops(points, serial)
            else:
                if blocks > 1:
                    others = em.compare("slt", indices[-1], em.const("i64", blocks - 1))
                    with em.when(others):
                        _loops(points, serial)
                with em.when(last) if blocks > 1 else em.region():
                    points.position[vec] = em.const("i64", columns - rest)
                    tail = power_of_two_above(rest)
                    points.lie_along(vec, tail, prefix_mask(em, tail, rest))
                    _loops(points, serial)
    dims = serial if vec is None else [*serial, vec]
    item_bytes = max(1, traffic(space, dims) * max(lanes, 1) // columns)
    text = wrap(em, name, LOOP_PARAMETERS)
    return Emitted(text, em.declarations, items, grain(item_bytes, items), 0)


def _lanes(columns: int, host: Host) -> int:
    """Neighbouring elements at a time: several vectors, if enough items are left to share out."""
    lanes = host.lanes
    while lanes < 4 * host.lanes and columns >= 2 * _FEWEST_ITEMS * lanes:
        lanes *= 2
    return lanes


def _vector(space: Space, free: list[int]) -> int | None:
    """The race-free dimension along which the stores are contiguous."""
    for dim in reversed(free):
        if all(abs(space.stride(s.access, dim)) == 1 for s in space.kernel.stores):
            return dim
    return None


def _loops(points: Points, serial: list[int]) -> None:
    em = points.em
    with ExitStack() as stack:
        for dim in serial:
            stop = em.const("i64", points.space.extent(dim))
            loop = stack.enter_context(em.loop(em.const("i64", 0), stop))
            points.position[dim] = loop.index
        points.visit()
