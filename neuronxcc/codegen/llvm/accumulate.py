"""Partial results of reductions, in vectors."""

from __future__ import annotations

import math
from dataclasses import dataclass

from neuronxcc.codegen.errors import CodegenUnsupported
from neuronxcc.codegen.llvm import ops
from neuronxcc.codegen.llvm.complexes import Pair, Value
from neuronxcc.codegen.llvm.convert import convert
from neuronxcc.codegen.llvm.emitter import BITS, Emitter, Val
from neuronxcc.codegen.llvm.formats import register_elem, round_to
from neuronxcc.codegen.llvm.points import Points
from neuronxcc.codegen.loop import Scalar
from neuronxcc.codegen.space import Space
from neuronxcc.ir.dtypes import FLOATS, DType
from neuronxcc.ir.op import Op

_NARROW = FLOATS - {DType.F32, DType.F64}


def accumulator(em: Emitter, space: Space, scalar: Scalar) -> Accumulator:
    """For a "reduce" or "arg" expression."""
    if scalar.what == "arg":
        return ArgAccumulator(em, scalar, space.reduced[0] if space.reduced else -1)
    return ReduceAccumulator(em, scalar)


@dataclass
class Accumulator:
    """A reduction in progress. Its state is a list of vectors of equal lanes (0: scalars)."""

    em: Emitter
    scalar: Scalar

    def start(self, lanes: int) -> list[Val]:
        """The state of no points."""
        raise NotImplementedError

    def step(self, points: Points, state: list[Val]) -> list[Val]:
        """The state after the current points."""
        raise NotImplementedError

    def join(self, a: list[Val], b: list[Val]) -> list[Val]:
        """The state of the points of both."""
        raise NotImplementedError

    def finish(self, points: Points, state: list[Val]) -> Value:
        """The value, of lanes folded into one if they lie along a reduced dimension."""
        raise NotImplementedError

    def fold(self, state: list[Val], lanes: int) -> list[Val]:
        """The state with the lanes joined by halves until so many are left."""
        while state[0].lanes > lanes:
            half = state[0].lanes // 2
            low = [self.em.shuffle(v, None, range(half)) for v in state]
            high = [self.em.shuffle(v, None, range(half, 2 * half)) for v in state]
            state = self.join(low, high)
        if lanes == 1:
            return [self.em.extract(v, 0) for v in state]
        return state

    def _folded(self, points: Points, state: list[Val]) -> list[Val]:
        reduced = any(dim in points.space.reduced for dim in points.along)
        return self.fold(state, 1) if reduced and state[0].lanes else state


class ReduceAccumulator(Accumulator):
    """Sums, products, extremes and logical reductions; narrow floats accumulate in float32."""

    @property
    def dtype(self) -> DType:
        """The type of the partial results."""
        return DType.F32 if self.scalar.dtype in _NARROW else self.scalar.dtype

    def start(self, lanes: int) -> list[Val]:
        """See Accumulator."""
        assert self.scalar.op is not None
        elem = register_elem(self.dtype)
        first = identity(self.scalar.op, self.dtype)
        state = [self.em.const(elem, first.real, lanes)]
        if self.dtype.is_complex:
            state.append(self.em.const(elem, first.imag, lanes))
        return state

    def step(self, points: Points, state: list[Val]) -> list[Val]:
        """See Accumulator."""
        em = self.em
        src = self.scalar.srcs[0]
        value = points.value(src)
        if src.dtype is not self.dtype:
            value = convert(em, value, src.dtype, self.dtype)
        new = self.join(state, parts(value))
        if points.mask is None:
            return new
        return [em.select(points.mask, n, s) for n, s in zip(new, state, strict=True)]

    def join(self, a: list[Val], b: list[Val]) -> list[Val]:
        """See Accumulator."""
        assert self.scalar.op is not None
        what = ops.Typed(self.scalar.op, self.dtype, self.dtype)
        value = ops.apply(self.em, what, [_value(a), _value(b)])
        return parts(value)

    def finish(self, points: Points, state: list[Val]) -> Value:
        """See Accumulator."""
        state = self._folded(points, state)
        if self.scalar.dtype is self.dtype:
            return _value(state)
        return round_to(self.em, self.scalar.dtype, state[0])


def _value(state: list[Val]) -> Value:
    return state[0] if len(state) == 1 else Pair(state[0], state[1])


def parts(value: Value) -> list[Val]:
    """The vectors that a value consists of."""
    return [value.re, value.im] if isinstance(value, Pair) else [value]


def identity(op: Op, dtype: DType) -> complex:
    """The value that a reduction starts from."""
    if op in (Op.ADD, Op.OR, Op.XOR):
        return 0
    if op is Op.MULTIPLY:
        return 1
    if op is Op.AND:
        return 1 if dtype is DType.PRED else -1
    if op not in (Op.MINIMUM, Op.MAXIMUM):
        raise CodegenUnsupported(f"reduction by {op.value}")
    lowest, highest = extremes(dtype)
    return lowest if op is Op.MAXIMUM else highest


def extremes(dtype: DType) -> tuple[float, float]:
    """The smallest and the largest value."""
    if dtype is DType.PRED:
        return 0, 1
    if dtype.is_float:
        return -math.inf, math.inf
    bits = BITS[register_elem(dtype)]
    if dtype.is_signed:
        return -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    return 0, (1 << bits) - 1


@dataclass
class ArgAccumulator(Accumulator):
    """The best value and its position; the first one wins, NaN wins over numbers."""

    dim: int

    @property
    def _source(self) -> Scalar:
        return self.scalar.srcs[0]

    def start(self, lanes: int) -> list[Val]:
        """See Accumulator."""
        assert self.scalar.op is not None
        elem = register_elem(self._source.dtype)
        first = identity(self.scalar.op, self._source.dtype).real
        return [self.em.const(elem, first, lanes), self.em.const("i32", 0, lanes)]

    def _better(self, a: Val, b: Val) -> Val:
        """The lanes in which a wins over b."""
        em, dtype = self.em, self._source.dtype
        greater = self.scalar.op is Op.MAXIMUM
        if dtype.is_float:
            wins = em.compare("ogt" if greater else "olt", a, b)
            first_nan = em.binary(
                "and",
                em.compare("uno", a, a),
                em.compare("ord", b, b),
            )
            return em.binary("or", wins, first_nan)
        sign = "s" if dtype.is_signed else "u"
        return em.compare(sign + ("gt" if greater else "lt"), a, b)

    def step(self, points: Points, state: list[Val]) -> list[Val]:
        """See Accumulator."""
        em = self.em
        value = points.real(self._source)
        position: Val = em.const("i32", 0)
        if self.dim >= 0:
            position = points.lane_positions(self.dim, "i32")
        wins = self._better(value, state[0])
        if points.mask is not None:
            wins = em.binary("and", wins, points.mask)
        return [em.select(wins, value, state[0]), em.select(wins, position, state[1])]

    def join(self, a: list[Val], b: list[Val]) -> list[Val]:
        """See Accumulator."""
        em = self.em
        wins = self._better(b[0], a[0])
        loses = self._better(a[0], b[0])
        neither = em.binary("xor", em.binary("or", wins, loses), em.const("i1", 1, wins.lanes))
        earlier = em.compare("slt", b[1], a[1])
        takes = em.binary("or", wins, em.binary("and", neither, earlier))
        return [em.select(takes, b[0], a[0]), em.select(takes, b[1], a[1])]

    def finish(self, points: Points, state: list[Val]) -> Value:
        """See Accumulator."""
        position = self._folded(points, state)[1]
        return self.em.integer(position, register_elem(self.scalar.dtype))
