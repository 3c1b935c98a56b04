"""Random numbers: calls of ATen's draws as instructions of the generator in the Vector Engine.

Bits become numbers in [0, 1) of 24 bits, and these become what a distribution asks for. Programs
take no state: on a NeuronCore it stays in the engine from one program to the next. Who runs a
program by its instructions alone has what a generator gives that nobody has seeded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import nki.isa as nisa
import nki.language as nl
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node
from neuronxcc.ir.node import Operand as Place
from nki.device.emitter import (
    Emitter,
    NoLoweringError,
    Number,
    Operand,
    Value,
    chunks,
    require_form,
)
from nki.device.groups import Group, is_number
from nki.device.rows import blocks_of, number_of
from nki.device.transfers import Leaf, load, store
from nki.device.views import contiguous
from nki.tensor import NkiTensor

__all__ = ["exponential", "run_random", "seed_of_core", "uniform"]

Tensors = Mapping[Node, NkiTensor]
#: A block of numbers for blocks of the operands, which only some distributions have.
Draw = Callable[[Emitter, Sequence[Operand]], Value]
Source = tuple[NkiTensor, DType, int] | Number  # a tensor with the offset of its first element

_BITS: Final = 24  # of a number: what float32 tells apart
_COLUMNS: Final = 2048
_OWN: Final = 4  # the generation from which on an instruction draws floats


def run_random(e: Emitter, group: Group, inputs: Tensors, outputs: Tensors) -> None:
    """Issue the instructions of a draw."""
    (call,) = group.nodes
    e.at(call)
    draw, operands = _drawn(call)
    for node in outputs:
        require_form(node.dtype)
        sources: list[Source] = []
        for number in operands:
            use = group.uses[call][number]
            if is_number(use.source):
                sources.append(number_of(use.source))
                continue
            # One of each is read for every number that is drawn.
            if use.view.shape != node.shape or use.view.strides != contiguous(node.shape).strides:
                raise NoLoweringError("parameters that do not lie as the numbers are not drawn by")
            sources.append((inputs[use.source], use.source.dtype, use.view.offset))
        seed_of_core(e)
        _fill(e, draw, outputs[node], node, sources)


def seed_of_core(e: Emitter) -> None:
    """Let every core draw numbers of its own."""
    if e.core:
        seed = nl.ndarray((1, 1), dtype="uint32", buffer=nl.sbuf)
        nisa.memset(seed, e.core)
        nisa.set_rng_seed(seed)


def _fill(
    e: Emitter,
    draw: Draw,
    target: NkiTensor,
    node: Node,
    sources: Sequence[Source],
) -> None:
    """Draw all elements of a result: whole rows of columns, and what is left."""
    total = node.type.size
    columns = min(_COLUMNS, max(1, math.ceil(total / 128)))
    rows, rest = divmod(total, columns)
    parts = [(0, rows, columns)] * bool(rows) + [(rows * columns, 1, rest)] * bool(rest)
    for begin, height, width in parts:

        def leaf(
            tensor: NkiTensor, dtype: DType, offset: int, height: int = height, width: int = width
        ) -> Leaf:
            rows = ((height, width),) if height > 1 else ()
            return Leaf(tensor, dtype, offset, rows, ((width, 1),))

        for row, partitions in e.share(blocks_of(height)):
            for column, some in chunks(width, _COLUMNS):
                e.partitions, e.columns = partitions, some
                given: list[Operand] = []
                for source in sources:
                    if isinstance(source, tuple):
                        tensor, dtype, offset = source
                        part = leaf(tensor, dtype, offset + begin)
                        given.append(load(e, part, row, column))
                    else:
                        given.append(source)
                value = draw(e, given)
                if value.dtype is not node.dtype:
                    value = e.copied(value, node.dtype)
                store(e, leaf(target, node.dtype, begin), value, row, column)


# --- distributions -------------------------------------------------------------------------------


def uniform(e: Emitter) -> Value:
    """Return numbers in [0, 1)."""
    made = e.tile(e.columns, "float32")
    if e.isa >= _OWN:
        nisa.rand2(made, min=0.0, max=1.0)
        return Value(made, DType.F32)
    nisa.tensor_scalar(made, _words(e), op0="multiply", operand0=2.0**-_BITS)
    return Value(made, DType.F32)


def _words(e: Emitter) -> NkiTensor:
    """Return random integers of 24 bits."""
    bits, high = e.tile(e.columns, "uint32"), e.tile(e.columns, "uint32")
    nisa.rng(bits)
    nisa.tensor_scalar(high, bits, op0="right_shift", operand0=32 - _BITS)
    return high


def _within(low: float, high: float) -> Draw:
    def draw(e: Emitter, given: Sequence[Operand]) -> Value:
        del given
        x = uniform(e)
        if (low, high) == (0.0, 1.0):
            return x
        made = e.tile(e.columns, "float32")
        nisa.tensor_scalar(
            made, x.tile, op0="multiply", operand0=high - low, op1="add", operand1=low
        )
        return Value(made, DType.F32)

    return draw


def _whole(low: int, high: int) -> Draw:
    """Return integers from low to below high."""
    if not 0 < high - low <= 1 << _BITS or max(abs(low), abs(high)) > 1 << _BITS:
        raise NoLoweringError(f"integers from {low} to {high} have more than {_BITS} bits")

    def draw(e: Emitter, given: Sequence[Operand]) -> Value:
        scaled = _within(0.0, float(high - low))(e, given)
        found = Value(nl.floor(scaled.tile), DType.F32)
        # 1 - 2**-24 times the span may be rounded up to the span.
        found = e.binary("minimum", found, float(high - low - 1), DType.F32)
        return e.copied(e.binary("add", found, float(low), DType.F32), DType.S32)

    return draw


def _chosen(p: float) -> Draw:
    """Return whether a number is below a probability."""

    def draw(e: Emitter, given: Sequence[Operand]) -> Value:
        del given
        made = e.tile(e.columns, "uint8")
        if e.isa >= _OWN:
            nisa.tensor_scalar(made, uniform(e).tile, op0="less", operand0=float(p))
        else:
            least = float(round(p * (1 << _BITS)))
            nisa.tensor_scalar(made, _words(e), op0="less", operand0=least)
        return Value(made, DType.PRED)

    return draw


def _chosen_each(e: Emitter, given: Sequence[Operand]) -> Value:
    """Return whether a number is below its probability."""
    (chance,) = given
    return e.binary("less", uniform(e), chance, DType.PRED)


def _normal(mean: float, deviation: float) -> Draw:
    """Box and Muller: the root of -2 log(1 - u) times the sine of a turn."""

    def draw(e: Emitter, given: Sequence[Operand]) -> Value:
        del given
        # 1 - u is never 0.
        size = e.activation("log", uniform(e), DType.F32, scale=-1.0, bias=1.0)
        size = e.activation("sqrt", size, DType.F32, scale=-2.0 * deviation * deviation)
        # The Scalar Engine's sine takes angles from -pi to pi.
        angle = _within(-math.pi, math.pi)(e, ())
        found = e.binary("multiply", size, e.activation("sin", angle, DType.F32), DType.F32)
        return e.binary("add", found, mean, DType.F32) if mean else found

    return draw


def _normal_each(mean: Place | float = 0.0, deviation: Place | float = 1.0) -> Draw:
    """Return numbers with a mean or a deviation each."""

    def draw(e: Emitter, given: Sequence[Operand]) -> Value:
        rest = iter(given)
        center, width = (next(rest) if isinstance(x, Place) else x for x in (mean, deviation))
        scaled = e.binary("multiply", _normal(0.0, 1.0)(e, ()), width, DType.F32)
        return e.binary("add", scaled, center, DType.F32)

    return draw


def _log_normal(mean: float = 1.0, deviation: float = 2.0) -> Draw:
    def draw(e: Emitter, given: Sequence[Operand]) -> Value:
        return e.activation("exp", _normal(mean, deviation)(e, given), DType.F32)

    return draw


def _cauchy(median: float = 0.0, width: float = 1.0) -> Draw:
    """The tangent of an angle between -pi/2 and pi/2."""

    def draw(e: Emitter, given: Sequence[Operand]) -> Value:
        angle = _within(-math.pi / 2, math.pi / 2)(e, given)
        size, rest = e.tile(e.columns, "float32"), e.tile(e.columns, "float32")
        nisa.tensor_scalar(size, angle.tile, op0="abs", operand0=None)
        nisa.tensor_scalar(
            rest, size, op0="multiply", operand0=-1.0, op1="add", operand1=math.pi / 2
        )
        cosine = e.activation("sin", Value(rest, DType.F32), DType.F32)
        # The cosine of half of the least step: at -pi/2 nothing is divided by 0.
        cosine = e.binary("maximum", cosine, math.pi * 2.0 ** -(_BITS + 1), DType.F32)
        inverse = e.activation("reciprocal", cosine, DType.F32)
        sine = e.activation("sin", angle, DType.F32)
        scaled = e.binary("multiply", e.binary("multiply", sine, inverse, DType.F32), width,
                          DType.F32)  # fmt: skip
        return e.binary("add", scaled, median, DType.F32) if median else scaled

    return draw


def _geometric(p: float) -> Draw:
    """How often one tries until what has probability p happens: log(1 - u) / log(1 - p), up."""
    factor = 1.0 / math.log1p(-p) if p < 1.0 else 0.0

    def draw(e: Emitter, given: Sequence[Operand]) -> Value:
        del given
        logs = e.activation("log", uniform(e), DType.F32, scale=-1.0, bias=1.0)
        turns = Value(nl.ceil(e.binary("multiply", logs, factor, DType.F32).tile), DType.F32)
        return e.binary("maximum", turns, 1.0, DType.F32)

    return draw


def exponential(e: Emitter, rate: float = 1.0) -> Value:
    """Return numbers of the exponential distribution, 0 among them."""
    found = e.activation("log", uniform(e), DType.F32, scale=-1.0, bias=1.0)
    return e.binary("multiply", found, -1.0 / rate, DType.F32)


def _exponential(rate: float) -> Draw:
    def draw(e: Emitter, given: Sequence[Operand]) -> Value:
        del given
        return exponential(e, rate)

    return draw


def _drawn(call: Node) -> tuple[Draw, tuple[int, ...]]:
    """Return how a call's numbers are drawn, and its operands with a parameter for each of them.

    Raises:
        NoLoweringError: no instructions draw them.
    """
    args, kwargs = call["args"], dict(call["kwargs"])
    numbers = [a for a in args if isinstance(a, int | float) and not isinstance(a, bool)]
    name, _, overload = call["target"].partition("::")[2].partition(".")
    made = _DISTRIBUTIONS.get((name, overload if name in _OVERLOADED else ""))
    if made is None or any(isinstance(v, Place) for v in kwargs.values()):
        raise NoLoweringError(f"{call['target']} has no lowering to instructions")
    if isinstance(made, int):
        return _chosen_each, (made,)
    if made is _normal_each:
        parameters = [a for a in args if isinstance(a, int | float | Place)]
        return made(*parameters), tuple(a.index for a in parameters if isinstance(a, Place))
    named = [v for k, v in kwargs.items() if k in _NAMED]
    return made(*numbers, *named), ()


def _of_dropout(p: float) -> Draw:
    return _chosen(1.0 - p)


def _below(first: int, second: int | None = None) -> Draw:
    return _whole(0, first) if second is None else _whole(first, second)


_NAMED: Final = frozenset({"from", "to", "mean", "std", "lambd", "p", "median", "sigma"})
_OVERLOADED: Final = frozenset({"bernoulli", "normal"})
#: By name, and overload where it matters: the distribution for the call's numbers, or the number
#: of the operand that has a probability for each element.
_DISTRIBUTIONS: Final[Mapping[tuple[str, str], Callable[..., Draw] | int]] = {
    ("rand", ""): lambda: _within(0.0, 1.0),
    ("rand_like", ""): lambda: _within(0.0, 1.0),
    ("uniform", ""): lambda low=0.0, high=1.0: _within(float(low), float(high)),
    ("randn", ""): lambda: _normal(0.0, 1.0),
    ("randn_like", ""): lambda: _normal(0.0, 1.0),
    ("normal_functional", ""): lambda mean=0.0, std=1.0: _normal(float(mean), float(std)),
    ("normal", "Tensor_Tensor"): _normal_each,
    ("normal", "Tensor_float"): _normal_each,
    ("normal", "float_Tensor"): _normal_each,
    ("log_normal", ""): _log_normal,
    ("cauchy", ""): _cauchy,
    ("geometric", ""): _geometric,
    ("normal", "float_float"): lambda mean, std: _normal(float(mean), float(std)),
    ("exponential", ""): lambda rate=1.0: _exponential(float(rate)),
    ("randint", ""): _below,
    ("randint_like", ""): _below,
    ("bernoulli", "p"): _chosen,
    ("bernoulli", "default"): 0,
    ("bernoulli", "Tensor"): 1,
    ("native_dropout", ""): _of_dropout,
}
