"""Sums over leading dimensions: strips of columns whose partial results lie in memory.

A strip is wide enough for the memory to deliver whole pages, a handful of rows is taken at a time
so that a partial result is read and written once for all of them, and the strip's partial results
stay in the first-level cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial

from neuronxcc.codegen.llvm.accumulate import Accumulator, accumulator, parts
from neuronxcc.codegen.llvm.complexes import Pair
from neuronxcc.codegen.llvm.emitter import BITS, Emitter, Val, power_of_two_above
from neuronxcc.codegen.llvm.formats import register_elem
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
from neuronxcc.codegen.llvm.passes import Passes
from neuronxcc.codegen.llvm.points import Points
from neuronxcc.codegen.llvm.vectors import prefix_mask
from neuronxcc.codegen.loop import Access, Store
from neuronxcc.codegen.space import Space

# Bytes of a strip's partial results: a quarter of the first-level cache at most.
_STRIP_BYTES = 8 << 10
_STRIPS = 4
_FEWEST_ROWS, _MANY_ROWS = 16, 256


def fits(space: Space, passes: Passes, vec: int, host: Host) -> bool:
    """Return whether this schedule suits the kernel, whose lanes lie along the parallel `vec`."""
    rows = math.prod(space.extent(d) for d in space.reduced)
    # Few rows stay in the cache from pass to pass if columns are taken block by block.
    fewest = _FEWEST_ROWS if passes.count == 1 else _MANY_ROWS
    return rows >= fewest and space.extent(vec) >= 2 * host.lanes


def emit(
    space: Space, host: Host, name: str, vec: int, passes: Passes, streams: frozenset[Access]
) -> Emitted:
    """The loop function of a kernel with reductions by columns."""
    em = Emitter(host)
    points = Points(em, space, pointers(em, len(space.kernel.slots)), streams)
    strip = _Strip(points, vec, passes, host)
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

    def __init__(self, points: Points, vec: int, passes: Passes, host: Host) -> None:
        self.points, self.vec, self.passes = points, vec, passes
        space = points.space
        self.lanes = host.lanes
        widest = max([4] + [s.dtype.itemsize for group in passes.reductions for s in group])
        widest_strip = _STRIP_BYTES // widest
        columns = space.extent(vec)
        # At least a few strips of equal width for the threads, but none of less than a KiB.
        strips = -(-columns // min(widest_strip, max(widest_strip // 8, columns // _STRIPS)))
        self.width = -(-columns // (strips * host.lanes)) * host.lanes
        self.reductions = [
            [_Reduction(points, accumulator(points.em, space, s), self._buffers) for s in group]
            for group in passes.reductions
        ]

    def _buffers(self, state: Sequence[Val]) -> list[Val]:
        em = self.points.em
        return [em.alloca(_stored(v.elem), self.width + self.lanes) for v in state]

    def run(self, start: Val, count: int) -> None:
        """All rows of columns start .. start + count - 1."""
        points = self.points
        done: list[_Reduction] = []
        for number, group in enumerate(self.reductions):
            self._sweep(start, count, partial(_each, group, _Reduction.clear))
            last = number == self.passes.count - 1
            self._rows(start, count, group, done, self.passes.varying_stores if last else [],
                       self.passes.work[number])  # fmt: skip
            self._sweep(start, count, partial(_each, group, _Reduction.finish))
            done += group
        steady = [s for s in points.space.kernel.stores if s not in self.passes.varying_stores]

        def finish(at: Val) -> None:
            _each(done, _Reduction.define, at)
            points.prepare(steady)
            for store in steady:
                points.store(store)

        if steady:
            self._sweep(start, count, finish)

    def _rows(
        self, start: Val, count: int, group: Sequence[_Reduction], done: Sequence[_Reduction],
        stores: Sequence[Store], work: int,
    ) -> None:  # fmt: skip
        """One pass over all rows."""
        points, em = self.points, self.points.em
        zero = em.const("i64", 0)
        at_a_time = 1 if stores else 8 if work <= 8 else 4 if work <= 24 else 1
        *outer, inner = points.space.reduced
        extent = points.space.extent(inner)
        full = extent // at_a_time * at_a_time

        def some(row: Val, rows: int) -> None:
            def body(at: Val) -> None:
                _each(done, _Reduction.define, at)
                self._step(at, inner, row, rows, group, stores)

            self._sweep(start, count, body)

        with ExitStack() as stack:
            for dim in outer:
                stop = em.const("i64", points.space.extent(dim))
                points.position[dim] = stack.enter_context(em.loop(zero, stop)).index
            if full:
                with em.loop(zero, em.const("i64", full), at_a_time) as loop:
                    some(loop.index, at_a_time)
            if full < extent:
                with em.loop(em.const("i64", full), em.const("i64", extent)) as loop:
                    some(loop.index, 1)

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

    def _step(
        self, at: Val, dim: int, row: Val, rows: int, group: Sequence[_Reduction],
        stores: Sequence[Store],
    ) -> None:  # fmt: skip
        """Adds a few rows: first to each other, by pairs, then to what is there."""
        points, em = self.points, self.points.em
        sums: list[list[list[Val]]] = [[] for _ in group]
        for k in range(rows):
            points.position[dim] = em.binary("add", row, em.const("i64", k))
            with em.region():
                new = [r.one.step(points, r.one.start(points.lanes)) for r in group]
                points.prepare(stores)
                for store in stores:
                    points.store(store)
            for number, state in enumerate(new):
                sums[number].append([Val(v.elem, v.lanes, v.text, em.level) for v in state])
        for reduction, states in zip(group, sums, strict=True):
            reduction.add(at, states)


class _Reduction:
    """A reduction with its partial results, and later its values, for every column of a strip."""

    def __init__(
        self, points: Points, one: Accumulator, buffers: Callable[[Sequence[Val]], list[Val]]
    ) -> None:
        self.points, self.one = points, one
        self.elems = [v.elem for v in one.start(0)]
        self.buffers = buffers(one.start(0))
        self.value_elems = [register_elem(one.scalar.dtype)] * (1 + one.scalar.dtype.is_complex)
        value = [points.em.const(elem, 0) for elem in self.value_elems]
        self.value_buffers = buffers(value)

    def _read(self, buffers: Sequence[Val], elems: Sequence[str], at: Val) -> list[Val]:
        em, lanes = self.points.em, self.points.lanes
        state = []
        for buffer, elem in zip(buffers, elems, strict=True):
            stored = _stored(elem)
            rhs = em.load_rhs(stored, lanes, em.gep(stored, buffer, at))
            value = em.here(stored, lanes, rhs)
            state.append(em.integer(value, "i1") if elem == "i1" else value)
        return state

    def _write(self, buffers: Sequence[Val], at: Val, state: Sequence[Val]) -> None:
        em = self.points.em
        for buffer, one in zip(buffers, state, strict=True):
            value = em.splat(one, self.points.lanes)
            value = em.integer(value, "i8", signed=False) if one.elem == "i1" else value
            pointer = em.gep(value.elem, buffer, at)
            em.line(f"store {value.typed}, {pointer.typed}, align {BITS[value.elem] // 8}")

    def load(self, at: Val) -> list[Val]:
        """The partial results of the current columns."""
        return self._read(self.buffers, self.elems, at)

    def save(self, at: Val, state: Sequence[Val]) -> None:
        """Sets them."""
        self._write(self.buffers, at, state)

    def add(self, at: Val, states: Sequence[list[Val]]) -> None:
        """Joins the states of a power of two of rows, and these with the partial results."""
        while len(states) > 1:
            pairs = zip(states[::2], states[1::2], strict=True)
            states = [self.one.join(a, b) for a, b in pairs]
        self.save(at, self.one.join(self.load(at), states[0]))

    def clear(self, at: Val) -> None:
        """Sets them to those of no rows."""
        self.save(at, self.one.start(self.points.lanes))

    def finish(self, at: Val) -> None:
        """Turns the partial results into values."""
        value = self.one.finish(self.points, self.load(at))
        self._write(self.value_buffers, at, parts(value))

    def define(self, at: Val) -> None:
        """Makes the values known to expressions of the current columns."""
        values = self._read(self.value_buffers, self.value_elems, at)
        whole = Pair(*values) if len(values) == 2 else values[0]
        self.points.define(self.one.scalar, whole)


def _each(
    reductions: Sequence[_Reduction], method: Callable[[_Reduction, Val], None], at: Val
) -> None:
    for reduction in reductions:
        method(reduction, at)


def _stored(elem: str) -> str:
    return "i8" if elem == "i1" else elem
