"""Random numbers: rng, rand2, dropout, set_rng_seed, rand_set_state, rand_get_state."""

from __future__ import annotations

from functools import cache

from neuronxcc.codegen import build
from neuronxcc.codegen.loop import Scalar
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.op import Op
from nki.isa.xorwow import GPSIMD_STATES, LANES, VECTOR_STATES, WORDS, Xorwow
from nki.lowering import values
from nki.lowering.implement import implements
from nki.lowering.loops import Lanes
from nki.lowering.native import Rows, call, raw, wanted
from nki.lowering.operands import Operand, State
from nki.lowering.work import Work

__all__: list[str] = []

_STATES = {"vector": VECTOR_STATES, "gpsimd": GPSIMD_STATES}


@cache
def _initial(engine: str) -> bytes:
    return Xorwow(_STATES[engine]).state.tobytes()


def _generators(work: Work, first: int) -> State:
    """Return the generators of the engine from a lane on."""
    engine = work.template.engine
    size = 4 * WORDS * _STATES[engine]
    return State(f"generators.{engine}", _initial(engine), first * size)


def _draw(work: Work, out: Rows, partitions: int, size: int, itemsize: int) -> None:
    """Let a native function write random bits."""
    count = _STATES[work.template.engine]
    generators = Rows(_generators(work, work.lane()), 4 * WORDS * count)
    call(
        work,
        "xorwow",
        partitions,
        (out, generators),
        lambda rows: (rows, size, count, itemsize, out.step),
    )


@implements("rng")
def _rng(work: Work) -> None:
    target = work.operand("dst")
    out = wanted(work, "dst")
    _draw(work, out.rows, target.partitions, target.free, target.itemsize)
    out.finish()


def _bits(work: Work, like: Operand) -> Operand:
    """Return 32 random bits for each element of an operand."""
    bits = work.temporary(like.shape, "uint32")
    _draw(work, Rows(bits.pointer, 4 * bits.free), bits.partitions, bits.free, 4)
    return bits


def _uniform(bits: Scalar) -> Scalar:
    """Return float32 in [0, 1) from the upper 24 bits: every value is exact."""
    upper = build.op(Op.SHIFT_RIGHT_LOGICAL, bits, 8)
    return build.op(Op.MULTIPLY, build.convert(upper, DType.F32), 2.0**-24)


@implements("rand2")
def _rand2(work: Work) -> None:
    bits = _bits(work, work.operand("dst"))
    lanes = work.lanes("dst", bits)
    low, high = lanes.read("min"), lanes.read("max")
    width = build.op(Op.SUBTRACT, high, low)
    scaled = build.op(Op.MULTIPLY, _uniform(lanes.load(bits)), width)
    value = build.op(Op.ADD, low, scaled)
    inside = build.op(Op.MINIMUM, build.op(Op.MAXIMUM, value, low), high)
    lanes.write("dst", inside)
    lanes.finish()


@implements("dropout")
def _dropout(work: Work) -> None:
    bits = _bits(work, work.operand("data"))
    lanes = work.lanes("dst", "data", bits)
    dropped = build.compare("LT", _uniform(lanes.load(bits)), lanes.read("prob"))
    kept = lanes.bits("data")
    lanes.store("dst", values.from_bits(build.select(dropped, 0, kept), work.dtype("dst")))
    lanes.finish()


@implements("set_rng_seed")
def _set_seed(work: Work) -> None:
    slots = (Rows(_generators(work, 0), 0), raw(work, "src_seeds"))
    words = LANES * _STATES[work.template.engine] * WORDS
    call(work, "seed", 1, slots, lambda _: (words,))


def _states(work: Work, name: str) -> tuple[Operand, Operand]:
    """Return an operand with words of states, and the states themselves."""
    operand = work.operand(name)
    states = Operand(
        "", operand.dtype, operand.shape, (operand.free, 1), _generators(work, work.lane())
    )
    return operand, states


@implements("rand_set_state")
def _set_state(work: Work) -> None:
    operand, states = _states(work, "src_seeds")
    work.copy_bits(operand, states)


@implements("rand_get_state")
def _get_state(work: Work) -> None:
    operand, states = _states(work, "dst")
    lanes = Lanes(work, "copy", [operand, states])
    lanes.store(operand, lanes.bits(states))
    lanes.finish()
