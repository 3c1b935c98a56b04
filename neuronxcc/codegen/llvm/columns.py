"""Sums over leading dimensions: strips of columns whose partial results lie in memory.

A strip is wide enough for the memory to deliver whole pages, a handful of rows is taken at a time
so that a partial result is read and written once for all of them, and the strip's partial results
stay in the first-level cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from neuronxcc.codegen.llvm.accumulate import Accumulator, accumulator
from neuronxcc.codegen.llvm.emitter import BITS, Emitter, Val
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
from neuronxcc.codegen.llvm.passes import Passes, complexity
from neuronxcc.codegen.llvm.points import Points
from neuronxcc.codegen.llvm.vectors import power_of_two_above, prefix_mask
from neuronxcc.codegen.space import Space

# Bytes of a strip's partial results: a quarter of the first-level cache at most.
_STRIP_BYTES = 8 << 10
_STRIPS = 4
_FEWEST_ROWS = 16


def fits(space: Space, passes: Passes, vec: int, host: Host) -> bool:
    """Whether this schedule is one for the kernel, whose lanes lie along the parallel `vec`."""
    rows = math.prod(space.extent(d) for d in space.reduced)
    enough = rows >= _FEWEST_ROWS and space.extent(vec) >= 2 * host.lanes
    return passes.count == 1 and bool(space.reduced) and enough and not passes.varying_stores


def emit(space: Space, host: Host, name: str, vec: int, passes: Passes) -> Emitted:
    """The loop function of a kernel with one pass over its reduced dimensions."""
    em = Emitter(host)
    points = Points(em, space, pointers(em, len(space.kernel.slots)))
    accumulators = [accumulator(em, space, scalar) for scalar in passes.reductions[0]]
    strip = _Strip(points, vec, accumulators, host)
    outer = [d for d in space.parallel if d != vec]
    extents = [space.extent(d) for d in outer]
    columns = space.extent(vec)
    strips = -(-columns // strip.width)
    items = math.prod(extents) * strips
    with each_item(em) as item:
        indices = decode(em, item, [*extents, strips])
        for dim, index in zip(outer, indices, strict=False):
            points.position[dim] = index
        start = em.binary("mul", indices[-1], em.const("i64", strip.width))
        rest = columns % strip.width
        if not rest:
            strip.run(start, strip.width)
        else:
            if strips > 1:
                whole = em.compare("slt", indices[-1], em.const("i64", strips - 1))
                with em.when(whole):
                    strip.run(start, strip.width)
            last = em.compare("eq", indices[-1], em.const("i64", strips - 1))
            with em.when(last) if strips > 1 else em.region():
                strip.run(em.const("i64", columns - rest), rest)
    item_bytes = max(1, traffic(space, [*space.reduced, vec]) * strip.width // columns)
    text = wrap(em, name, LOOP_PARAMETERS)
    return Emitted(text, em.declarations, items, grain(item_bytes, items), 0)


class _Strip:
    """The columns of one item."""

    def __init__(
        self, points: Points, vec: int, accumulators: Sequence[Accumulator], host: Host
    ) -> None:
        self.points, self.vec, self.accumulators = points, vec, accumulators
        space = points.space
        work = complexity(space)
        self.rows = 8 if work <= 8 else 4 if work <= 24 else 1  # taken at a time
        self.lanes = host.lanes
        widest = max(BITS[v.elem] // 8 for a in accumulators for v in a.start(0))
        widest_strip = _STRIP_BYTES // max(4, widest)
        columns = space.extent(vec)
        # At least a few strips of equal width for the threads, but none of less than some KiB.
        strips = -(-columns // min(widest_strip, max(widest_strip // 4, columns // _STRIPS)))
        self.width = -(-columns // (strips * host.lanes)) * host.lanes
        self.buffers = [
            [points.em.alloca(_stored(v.elem), self.width + host.lanes) for v in a.start(0)]
            for a in accumulators
        ]

    def run(self, start: Val, count: int) -> None:
        """All rows of columns start .. start + count - 1."""
        points, em = self.points, self.points.em
        zero = em.const("i64", 0)
        self._sweep(start, count, self._clear)
        *outer, inner = points.space.reduced
        with ExitStack() as stack:
            for dim in outer:
                stop = em.const("i64", points.space.extent(dim))
                points.position[dim] = stack.enter_context(em.loop(zero, stop)).index
            extent = points.space.extent(inner)
            full = extent // self.rows * self.rows
            if full:
                with em.loop(zero, em.const("i64", full), self.rows) as loop:
                    self._sweep(
                        start, count, lambda at: self._add(at, inner, loop.index, self.rows)
                    )
            if full < extent:
                rest = em.const("i64", full), em.const("i64", extent)
                with em.loop(*rest) as loop:
                    self._sweep(start, count, lambda at: self._add(at, inner, loop.index, 1))
        self._sweep(start, count, self._finish)

    def _sweep(self, start: Val, count: int, body: Callable[[Val], None]) -> None:
        """Runs the body for every vector of the strip; it is given the place in the strip."""
        points, em, lanes = self.points, self.points.em, self.lanes
        full = count // lanes * lanes
        if full:
            with em.loop(em.const("i64", 0), em.const("i64", full), lanes) as loop:
                points.lie_along(self.vec, lanes)
                points.position[self.vec] = em.binary("add", start, loop.index)
                body(loop.index)
        if full < count:
            with em.region():
                tail = power_of_two_above(count - full)
                points.lie_along(self.vec, tail, prefix_mask(em, tail, count - full))
                points.position[self.vec] = em.binary("add", start, em.const("i64", full))
                body(em.const("i64", full))

    def _load(self, number: int, at: Val) -> list[Val]:
        points, em = self.points, self.points.em
        state = []
        for buffer, first in zip(
            self.buffers[number], self.accumulators[number].start(0), strict=True
        ):
            elem = _stored(first.elem)
            pointer = em.gep(elem, buffer, at)
            value = em.here(elem, points.lanes, em.load_rhs(elem, points.lanes, pointer))
            state.append(em.integer(value, "i1") if first.elem == "i1" else value)
        return state

    def _save(self, number: int, at: Val, state: Sequence[Val]) -> None:
        em = self.points.em
        for buffer, one in zip(self.buffers[number], state, strict=True):
            value = em.integer(one, "i8", signed=False) if one.elem == "i1" else one
            pointer = em.gep(value.elem, buffer, at)
            em.line(f"store {value.typed}, {pointer.typed}, align {BITS[value.elem] // 8}")

    def _clear(self, at: Val) -> None:
        for number, one in enumerate(self.accumulators):
            self._save(number, at, one.start(self.points.lanes))

    def _add(self, at: Val, dim: int, row: Val, rows: int) -> None:
        """Adds a few rows: first to each other, by pairs, then to what is there."""
        points, em = self.points, self.points.em
        sums: list[list[list[Val]]] = [[] for _ in self.accumulators]
        for k in range(rows):
            points.position[dim] = em.binary("add", row, em.const("i64", k))
            with em.region():
                new = [a.step(points, a.start(points.lanes)) for a in self.accumulators]
            for number, state in enumerate(new):
                here = [Val(v.elem, v.lanes, v.text, em.level) for v in state]
                sums[number].append(here)
        for number, one in enumerate(self.accumulators):
            states = sums[number]
            while len(states) > 1:
                states = [one.join(a, b) for a, b in zip(states[::2], states[1::2], strict=True)]
            self._save(number, at, one.join(self._load(number, at), states[0]))

    def _finish(self, at: Val) -> None:
        points = self.points
        for number, one in enumerate(self.accumulators):
            points.define(one.scalar, one.finish(points, self._load(number, at)))
        points.visit()


def _stored(elem: str) -> str:
    return "i8" if elem == "i1" else elem
