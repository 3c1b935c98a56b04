"""Kernels with reductions: passes over the reduced dimensions, one per link of the chain.

The first pass accumulates what needs no other reduction, the second what needs the first's results,
and so on; values that vary along reduced dimensions are stored in the last pass. The lanes lie
along a reduced dimension (rows: partial results are joined at the end) or along a parallel one
(columns: every lane is a result of its own), whichever reads memory better.

The order in which a row is added up depends on its length and the host alone: vectors of four
registers, then one of the next power of two of lanes, both folded by halves. The eager kernel of
sums (`sum_row` in torch_neuronx/csrc/kernels/norm_impl.h) has the same order, so a kernel for which
`adds_rows` holds gives its bits, whatever else it computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from neuronxcc.codegen.llvm import columns
from neuronxcc.codegen.llvm.accumulate import Accumulator, accumulator
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
from neuronxcc.codegen.llvm.passes import Passes, complexity, passes_of
from neuronxcc.codegen.llvm.points import Points
from neuronxcc.codegen.llvm.vectors import cheapest_vector, prefix_mask
from neuronxcc.codegen.loop import Access, Kernel, Kind, Scalar
from neuronxcc.codegen.space import Space, simplify

# Row buffers larger than this are not kept: computing again is cheaper than reading far memory.
_SCRATCH_BYTES = 512 << 10
# Rows of these sizes are asked for in advance: longer ones would drive others out of the cache.
_AHEAD_BYTES = 1 << 10, 128 << 10
# Registers of a row's partial results: several vectors at once hide the latency of the additions.
_REGISTERS = 4
# Instructions of a vector up to which all of these are computed at once, and not half of them.
_LIGHT = 24


@dataclass(frozen=True, slots=True)
class _Strip:
    """Vectors along the vector dimension: `main` lanes in a loop up to `full`, then a tail.

    Both are computed in pieces of at most `piece` lanes, each with partial results of its own.
    """

    extent: int
    main: int
    tail: int  # lanes of the tail vector, 0 for none
    piece: int

    @property
    def full(self) -> int:
        return self.extent // self.main * self.main

    @property
    def one_vector(self) -> bool:
        return self.extent <= max(self.main, self.tail)

    def pieces(self, lanes: int) -> int:
        return -(-lanes // self.piece)


def _strips(extent: int, lanes: int, passes: Passes) -> list[_Strip]:
    """For each pass; a row that is short enough is one vector in all of them."""
    main = _REGISTERS * lanes
    rest = extent % main
    tail = power_of_two_above(rest) if rest else 0
    return [
        _Strip(extent, main, tail, main if work <= _LIGHT or extent <= main else main // 2)
        for work in passes.work
    ]


def adds_rows(kernel: Kernel, host: Host) -> int | None:
    """Whether a kernel reduces rows in the order that depends on their length alone.

    Returns:
        The length of the rows; 0 if nothing is reduced; None if it reduces in another order.
    """
    space = simplify(kernel)
    if not space.reduced:
        return 0
    vec = cheapest_vector(space, host)
    return space.extent(space.reduced[0]) if space.reduced == (vec,) else None


@dataclass
class _Schedule:
    """A kernel's emission in progress."""

    points: Points
    vec: int | None  # the dimension that the lanes lie along
    passes: Passes
    loops: tuple[int, ...]  # reduced dimensions that are plain loops
    strips: list[_Strip]  # of the vector dimension for each pass, if that is reduced
    keep_lanes: int = 0  # elements of a row buffer for each point of `loops`
    buffers: dict[Scalar, int] = field(default_factory=dict)  # byte offsets in scratch
    strip: _Strip | None = None  # of the current pass
    # Rows to ask for during the last pass: loads, and how many elements on the next item's are.
    ahead: list[tuple[Scalar, int]] = field(default_factory=list)

    @property
    def busiest(self) -> int:
        """The pass with the most work that need not wait for memory."""
        return max(range(self.passes.count), key=lambda n: (n > 0, self.passes.work[n]))

    @property
    def em(self) -> Emitter:
        """The function."""
        return self.points.em

    # -- one item -----------------------------------------------------------------------------

    def run(self) -> None:
        """All passes at the current parallel position."""
        points, space = self.points, self.points.space
        varying = self.passes.varying_stores
        steady = [s for s in space.kernel.stores if s not in varying]
        points.kept = {}
        for number in range(self.passes.count):
            self._pass(number)
        if self.strip is not None:
            points.single()
        points.prepare(steady)
        for store in steady:
            points.store(store)

    def _pass(self, number: int) -> None:
        points, em = self.points, self.em
        self.strip = self.strips[number] if self.strips else None
        found = self.passes.reductions[number]
        accumulators = [accumulator(em, points.space, scalar) for scalar in found]
        kept = self.passes.kept_by(number)
        last = number == self.passes.count - 1
        stores = self.passes.varying_stores if last else []
        ahead = self.ahead if number and number == self.busiest else []

        def body(states: list[list[Val]]) -> list[list[Val]]:
            result = [a.step(points, s) for a, s in zip(accumulators, states, strict=True)]
            for scalar, distance in ahead:
                assert scalar.access is not None
                points.prefetch(scalar.access, scalar.dtype, distance)
            for scalar in kept:
                self._keep(scalar)
            points.prepare(stores)
            for store in stores:
                points.store(store)
            return result

        finished = self._sweep(accumulators, body)
        for one, state in zip(accumulators, finished, strict=True):
            points.define(one.scalar, one.finish(points, state))
        for scalar in kept:
            points.kept[scalar] = self._loader(scalar)

    # -- loops over the reduced dimensions ----------------------------------------------------

    def _sweep(
        self,
        accumulators: Sequence[Accumulator],
        body: Callable[[list[list[Val]]], list[list[Val]]],
    ) -> list[list[Val]]:
        points = self.points
        if self.strip is None:
            return self._nest(0, [a.start(points.lanes) for a in accumulators], body)
        strip = self.strip
        widths = [strip.main] * (strip.full > 0) + [strip.tail] * (strip.tail > 0)
        states = [
            one.start(min(width, strip.piece))
            for width in widths
            for _ in range(strip.pieces(width))
            for one in accumulators
        ]
        count = len(accumulators)
        states = self._nest(0, states, lambda s: self._row(s, body, count))
        at_once = count * strip.pieces(widths[0])
        finished = []
        for number, one in enumerate(accumulators):
            main = states[number:at_once:count] if count else []
            if len(widths) > 1:
                tail = states[at_once + number :: count]
                main = _folded(one, main, strip.tail)
                main = [one.join(m, t) for m, t in zip(main, tail, strict=True)]
            finished.append(_folded(one, main, main[0][0].lanes)[0])
        return finished

    def _nest(
        self,
        depth: int,
        states: list[list[Val]],
        body: Callable[[list[list[Val]]], list[list[Val]]],
    ) -> list[list[Val]]:
        """Runs the body for all points of self.loops[depth:]."""
        if depth == len(self.loops):
            return body(states)
        em, dim = self.em, self.loops[depth]
        stop = em.const("i64", self.points.space.extent(dim))
        flat = [v for state in states for v in state]
        shape = [len(state) for state in states]
        with em.loop(em.const("i64", 0), stop, 1, flat) as loop:
            self.points.position[dim] = loop.index
            result = self._nest(depth + 1, _split(loop.carried, shape), body)
            loop.next = [v for state in result for v in state]
        return _split(loop.results, shape)

    def _row(
        self,
        states: list[list[Val]],
        body: Callable[[list[list[Val]]], list[list[Val]]],
        count: int,
    ) -> list[list[Val]]:
        """The vector dimension, which is reduced."""
        em, strip = self.em, self.strip
        assert strip is not None
        at_once = count * strip.pieces(strip.main) if strip.full else 0
        main, tail = states[:at_once], states[at_once:]
        result: list[list[Val]] = []
        if strip.full > strip.main:
            flat = [v for state in main for v in state]
            shape = [len(state) for state in main]
            stop = em.const("i64", strip.full)
            with em.loop(em.const("i64", 0), stop, strip.main, flat) as loop:
                new = self._vector(
                    _split(loop.carried, shape), loop.index, strip.main, strip.main, body
                )
                loop.next = [v for state in new for v in state]
            result += _split(loop.results, shape)
        elif strip.full:
            start = em.const("i64", 0)
            result += self._vector(
                main, start, strip.main, strip.main, body, apart=bool(strip.tail)
            )
        if strip.tail:
            start = em.const("i64", strip.full)
            result += self._vector(
                tail, start, strip.tail, strip.extent - strip.full, body, apart=bool(strip.full)
            )
        return result

    def _vector(
        self,
        states: list[list[Val]],
        start: Val,
        width: int,
        active: int,
        body: Callable[[list[list[Val]]], list[list[Val]]],
        *,
        apart: bool = False,
    ) -> list[list[Val]]:
        """`width` lanes from `start` on, of which `active` take part, in pieces."""
        points, em, strip, vec = self.points, self.em, self.strip, self.vec
        assert strip is not None
        assert vec is not None
        lanes, pieces = min(width, strip.piece), strip.pieces(width)
        each = len(states) // pieces
        result: list[list[Val]] = []
        for number in range(pieces):
            offset = number * lanes
            points.lie_along(vec, lanes, prefix_mask(em, lanes, min(lanes, active - offset)))
            place = em.binary("add", start, em.const("i64", offset)) if offset else start
            points.position[vec] = place
            given = states[number * each : (number + 1) * each]
            result += self._isolated(apart or pieces > 1, given, body)
        return result

    def _isolated(
        self,
        apart: bool,
        states: list[list[Val]],
        body: Callable[[list[list[Val]]], list[list[Val]]],
    ) -> list[list[Val]]:
        # If one vector holds the whole row its values stay in registers from pass to pass.
        if not apart:
            return body(states)
        with self.em.region():
            result = body(states)
        return [[Val(v.elem, v.lanes, v.text, self.em.level) for v in s] for s in result]

    # -- row buffers --------------------------------------------------------------------------

    def _place(self, scalar: Scalar) -> tuple[Val, str]:
        """Pointer to the kept value of the current points, and the type of its elements."""
        points, em, space = self.points, self.em, self.points.space
        elem = register_elem(scalar.dtype)
        elem = "i8" if elem == "i1" else elem
        pointer = em.gep("i8", Val("ptr", 0, "%scratch", 0), em.const("i64", self.buffers[scalar]))
        row: Val | None = None
        for dim in self.loops:
            position = points.position[dim]
            if row is not None:
                size = em.const("i64", space.extent(dim))
                position = em.binary("add", em.binary("mul", row, size), position)
            row = position
        if row is not None:
            pointer = em.gep(elem, pointer, em.binary("mul", row, em.const("i64", self.keep_lanes)))
        if self.strip is not None:
            assert self.vec is not None
            pointer = em.gep(elem, pointer, points.position[self.vec])
        return pointer, elem

    def _keep(self, scalar: Scalar) -> None:
        em = self.em
        value = self.points.real(scalar)
        if self.points.lanes:
            value = em.splat(value, self.points.lanes)
        pointer, elem = self._place(scalar)
        if elem == "i8" and value.elem == "i1":
            value = em.integer(value, "i8", signed=False)
        em.line(f"store {value.typed}, {pointer.typed}, align {BITS[elem] // 8}")

    def _loader(self, scalar: Scalar) -> Callable[[], Val]:
        def load() -> Val:
            em = self.em
            pointer, elem = self._place(scalar)
            value = em.here(elem, self.points.lanes, em.load_rhs(elem, self.points.lanes, pointer))
            if register_elem(scalar.dtype) == "i1":
                return em.compare("ne", value, em.like(value, 0))
            return value

        return load


def _folded(one: Accumulator, pieces: list[list[Val]], lanes: int) -> list[list[Val]]:
    """The state in pieces, with their lanes joined by halves until so many are left in all."""
    while len(pieces) > 1 and len(pieces) * pieces[0][0].lanes > lanes:
        half = len(pieces) // 2
        pieces = [one.join(a, b) for a, b in zip(pieces[:half], pieces[half:], strict=True)]
    return [one.fold(piece, lanes) if piece[0].lanes > lanes else piece for piece in pieces]


def _padded(strip: _Strip) -> int:
    return strip.full + strip.tail


def _split(flat: Sequence[Val], shape: Sequence[int]) -> list[list[Val]]:
    result, start = [], 0
    for size in shape:
        result.append(list(flat[start : start + size]))
        start += size
    return result


def emit(space: Space, host: Host, name: str, streams: frozenset[Access]) -> Emitted:
    """The loop function of a kernel with REDUCE dimensions; `streams` as for pointwise ones."""
    passes = passes_of(space)
    vec = cheapest_vector(space, host)
    if (
        vec is not None
        and space.kind(vec) is Kind.PARALLEL
        and columns.fits(space, passes, vec, host)
    ):
        return columns.emit(space, host, name, vec, passes, streams)
    em = Emitter(host)
    points = Points(em, space, pointers(em, len(space.kernel.slots)), streams)
    rows = vec is not None and space.kind(vec) is Kind.REDUCE
    strips: list[_Strip] = []
    outer = [d for d in space.parallel if d != vec]
    extents = [space.extent(d) for d in outer]
    block, blocks, extent = 0, 1, 0
    if rows:
        assert vec is not None
        strips = _strips(space.extent(vec), host.lanes, passes)
        block = max(_padded(strip) for strip in strips)
    elif vec is not None:
        extent = space.extent(vec)
        widest = 4 if complexity(space) <= _LIGHT else 2
        block = min(host.lanes * widest, power_of_two_above(extent))
        blocks = -(-extent // block)
    loops = tuple(d for d in space.reduced if d != vec)
    schedule = _Schedule(points, vec, passes, loops, strips, block)
    scratch = _allocate(schedule, space)
    if rows and not loops and outer:
        assert vec is not None
        schedule.ahead = _ahead(space, vec, outer[-1])
    items = blocks
    for size in extents:
        items *= size

    with each_item(em) as item:
        indices = decode(em, item, [*extents, blocks])
        for dim, index in zip(outer, indices, strict=False):
            points.position[dim] = index
        if rows or vec is None:
            schedule.run()
        else:
            _blocks(schedule, indices[-1], block, extent)
    item_dims = [*space.reduced] if rows or vec is None else [*space.reduced, vec]
    item_bytes = traffic(space, item_dims)
    if extent:
        item_bytes = max(1, item_bytes * block // extent)
    text = wrap(em, name, LOOP_PARAMETERS)
    return Emitted(text, em.declarations, items, grain(item_bytes, items), scratch)


def _blocks(schedule: _Schedule, index: Val, block: int, extent: int) -> None:
    """A block of columns: the lanes are `block` neighbouring ones of `extent`."""
    blocks = -(-extent // block)
    points, em = schedule.points, schedule.em
    vec = schedule.vec
    assert vec is not None
    start = em.binary("mul", index, em.const("i64", block))
    rest = extent % block
    points.position[vec] = start
    if not rest:
        points.lie_along(vec, block)
        schedule.run()
        return
    if blocks > 1:
        with em.when(em.compare("slt", index, em.const("i64", blocks - 1))):
            points.lie_along(vec, block)
            schedule.run()
    last = em.compare("eq", index, em.const("i64", blocks - 1))
    with em.when(last) if blocks > 1 else em.region():
        points.position[vec] = em.const("i64", extent - rest)
        tail = power_of_two_above(rest)
        points.lie_along(vec, tail, prefix_mask(em, tail, rest))
        schedule.run()


def _ahead(space: Space, vec: int, outer: int) -> list[tuple[Scalar, int]]:
    """Loads of whole rows, with the elements from a row to the next item's.

    While the later passes over a row read it from the cache, memory would have nothing to do.
    """
    found = {}
    for scalar in space.order:
        access = scalar.access
        if access is None or access.indices or scalar.srcs or space.stride(access, vec) != 1:
            continue
        distance = space.stride(access, outer)
        nbytes = space.extent(vec) * scalar.dtype.itemsize
        if distance and _AHEAD_BYTES[0] <= nbytes <= _AHEAD_BYTES[1]:
            found[access] = (scalar, distance)
    return list(found.values())


def _allocate(schedule: _Schedule, space: Space) -> int:
    """Places the row buffers; drops those that would not fit. Returns the bytes of scratch."""
    points_kept = 1
    for dim in schedule.loops:
        points_kept *= space.extent(dim)
    points_kept *= schedule.keep_lanes
    offset = 0
    for scalar in schedule.passes.candidates():
        size = max(1, BITS[register_elem(scalar.dtype)] // 8) * points_kept
        if offset + size > _SCRATCH_BYTES:
            schedule.passes.drop(scalar)
            continue
        schedule.buffers[scalar] = offset
        offset += -(-size // 64) * 64
    if schedule.strips and all(s.one_vector for s in schedule.strips) and not schedule.loops:
        # The row is one vector: its values stay in registers.
        for scalar in schedule.passes.candidates():
            schedule.passes.drop(scalar)
        return 0
    return offset
