"""Random numbers: calls of ATen's draws as instructions of the generator in the Vector Engine.

Bits become numbers in [0, 1) of 24 bits, and these become what a distribution asks for. Programs
take no state: on a NeuronCore it stays in the engine from one program to the next. Who runs a
program by its instructions alone has what a generator gives that nobody has seeded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

import nki.isa as nisa
import nki.language as nl
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node
from neuronxcc.ir.node import Operand as Place
from nki.device.emitter import Emitter, NoLoweringError, Value, chunks, require_form
from nki.device.groups import Group
from nki.device.rows import blocks_of
from nki.device.transfers import Leaf, load, store
from nki.device.views import contiguous
from nki.tensor import NkiTensor

__all__ = ["exponential", "run_random", "seed_of_core", "uniform"]

Tensors = Mapping[Node, NkiTensor]
#: A block of numbers for a block of the operand, which only some distributions have.
Draw = Callable[[Emitter, Value | None], Value]

_BITS: Final = 24  # of a number: what float32 tells apart
_COLUMNS: Final = 2048
_OWN: Final = 4  # the generation from which on an instruction draws floats


def run_random(e: Emitter, group: Group, inputs: Tensors, outputs: Tensors) -> None:
    """Issue the instructions of a draw."""
    (call,) = group.nodes
    e.at(call)
    draw, operand = _drawn(call)
    for node in outputs:
        require_form(node.dtype)
        if operand is None:
            source = None
        else:
            use = group.uses[call][operand]
            if use.view.strides != contiguous(use.view.shape).strides:
                raise NoLoweringError("probabilities that do not lie in order are not drawn by")
            source = inputs[use.source], use.source.dtype, use.view.offset
        seed_of_core(e)
        _fill(e, draw, outputs[node], node, source)


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
    source: tuple[NkiTensor, DType, int] | None,
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
                given = None
                if source is not None:
                    tensor, dtype, offset = source
                    given = load(e, leaf(tensor, dtype, offset + begin), row, column)
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
    def draw(e: Emitter, given: Value | None) -> Value:
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

    def draw(e: Emitter, given: Value | None) -> Value:
        scaled = _within(0.0, float(high - low))(e, given)
        found = Value(nl.floor(scaled.tile), DType.F32)
        # 1 - 2**-24 times the span may be rounded up to the span.
        found = e.binary("minimum", found, float(high - low - 1), DType.F32)
        return e.copied(e.binary("add", found, float(low), DType.F32), DType.S32)

    return draw


def _chosen(p: float) -> Draw:
    """Return whether a number is below a probability."""

    def draw(e: Emitter, given: Value | None) -> Value:
        del given
        made = e.tile(e.columns, "uint8")
        if e.isa >= _OWN:
            nisa.tensor_scalar(made, uniform(e).tile, op0="less", operand0=float(p))
        else:
            least = float(round(p * (1 << _BITS)))
            nisa.tensor_scalar(made, _words(e), op0="less", operand0=least)
        return Value(made, DType.PRED)

    return draw


def _chosen_each(e: Emitter, given: Value | None) -> Value:
    """Return whether a number is below its probability."""
    assert given is not None
    return e.binary("less", uniform(e), given, DType.PRED)


def _normal(mean: float, deviation: float) -> Draw:
    """Box and Muller: the root of -2 log(1 - u) times the sine of a turn."""

    def draw(e: Emitter, given: Value | None) -> Value:
        del given
        # 1 - u is never 0.
        size = e.activation("log", uniform(e), DType.F32, scale=-1.0, bias=1.0)
        size = e.activation("sqrt", size, DType.F32, scale=-2.0 * deviation * deviation)
        # The Scalar Engine's sine takes angles from -pi to pi.
        angle = _within(-math.pi, math.pi)(e, None)
        found = e.binary("multiply", size, e.activation("sin", angle, DType.F32), DType.F32)
        return e.binary("add", found, mean, DType.F32) if mean else found

    return draw


def exponential(e: Emitter, rate: float = 1.0) -> Value:
    """Return numbers of the exponential distribution, 0 among them."""
    found = e.activation("log", uniform(e), DType.F32, scale=-1.0, bias=1.0)
    return e.binary("multiply", found, -1.0 / rate, DType.F32)


def _exponential(rate: float) -> Draw:
    def draw(e: Emitter, given: Value | None) -> Value:
        del given
        return exponential(e, rate)

    return draw


def _drawn(call: Node) -> tuple[Draw, int | None]:
    """Return how a call's numbers are drawn, and the number of its operand of probabilities.

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
        return _chosen_each, made
    named = [v for k, v in kwargs.items() if k in _NAMED]
    return made(*numbers, *named), None


def _of_dropout(p: float) -> Draw:
    return _chosen(1.0 - p)


def _below(first: int, second: int | None = None) -> Draw:
    return _whole(0, first) if second is None else _whole(first, second)


_NAMED: Final = frozenset({"from", "to", "mean", "std", "lambd", "p"})
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
    ("normal", "float_float"): lambda mean, std: _normal(float(mean), float(std)),
    ("exponential", ""): lambda rate=1.0: _exponential(float(rate)),
    ("randint", ""): _below,
    ("randint_like", ""): _below,
    ("bernoulli", "p"): _chosen,
    ("bernoulli", "default"): 0,
    ("bernoulli", "Tensor"): 1,
    ("native_dropout", ""): _of_dropout,
}
