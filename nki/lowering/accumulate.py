"""The accumulator registers of the Scalar and the Vector Engine, and folds of rows.

See `nki.isa.rows.accumulate`: the registers are a state of the core, 128 numbers for each engine.
"""

from __future__ import annotations

from neuronxcc.codegen import build
from neuronxcc.codegen.loop import Scalar
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.op import Op
from nki.isa.alu import ALU
from nki.lowering import alu
from nki.lowering.loops import Lanes
from nki.lowering.operands import State

__all__ = ["accumulate", "fold", "uses_registers"]

_LANES = 128
_REDUCTIONS = {
    "add": Op.ADD,
    "multiply": Op.MULTIPLY,
    "maximum": Op.MAXIMUM,
    "minimum": Op.MINIMUM,
}


def uses_registers(command: str, *, result: bool) -> bool:
    """Return whether a command needs the rows of values, or the registers, at all."""
    return result or command != "idle"


def fold(lanes: Lanes, op: str, value: Scalar, start: Scalar) -> Scalar:
    """Return ``start <op> value <op> value...`` over the REDUCE dimensions, in float32."""
    if op in _REDUCTIONS:
        return alu.apply(op, start, build.reduce(_REDUCTIONS[op], value))
    return _farthest(lanes, op, value, start)


def _farthest(lanes: Lanes, op: str, value: Scalar, start: Scalar) -> Scalar:
    """abs_max and abs_min: the last one of the largest or smallest absolute value.

    NaN takes the place of whatever was there, and the next value takes its place.
    """
    largest = op == "abs_max"
    extreme = Op.MAXIMUM if largest else Op.MINIMUM
    position = lanes.position(DType.S32)
    nowhere = build.const(-1, DType.S32)
    bad = build.op(Op.IS_NAN, value)
    last_bad = build.reduce(Op.MAXIMUM, build.select(bad, position, nowhere))
    live = build.compare("GT", position, last_bad)
    size = build.op(Op.ABS, value)
    worst = build.const(-1.0 if largest else float("inf"), DType.F32)
    best = build.reduce(extreme, build.select(live, size, worst))
    equal = build.op(Op.AND, live, build.compare("EQ", size, best))
    at = build.reduce(Op.MAXIMUM, build.select(equal, position, nowhere))
    bits = build.op(Op.BITCAST_CONVERT, value, dtype=DType.U32)
    mine = build.select(build.compare("EQ", position, at), bits, 0)
    found = build.op(Op.BITCAST_CONVERT, build.reduce(Op.OR, mine), dtype=DType.F32)
    found = build.select(build.compare("LT", at, 0), float("nan"), found)
    farther = build.compare("GT" if largest else "LT", build.op(Op.ABS, start), best)
    whole = build.compare("LT", last_bad, 0)
    return build.select(build.op(Op.AND, whole, farther), start, found)


def accumulate(
    lanes: Lanes, value: Scalar, op: str, command: str, initial: str | None = None
) -> Scalar:
    """Carry out `reduce_cmd` with the float32 values of rows; return the registers.

    Args:
        lanes: a kernel that reduces whole partitions.
        value: what the instruction computed.
        op: a reduction operator that has an identity.
        command: a member of `reduce_cmd` by name.
        initial: the operand of ``load_reduce``.
    """
    template = lanes.work.template
    state = State(f"accumulators.{template.engine}", bytes(4 * _LANES), 4 * lanes.work.lane())
    where, steps, advance = lanes.lane_state(state, DType.F32)
    if command in ("reset", "reset_reduce"):
        identity = ALU[op].identity
        assert identity is not None, op
        registers = build.const(float(identity), DType.F32)
    elif command == "load_reduce":
        assert initial is not None
        registers = lanes.read(initial)
    else:
        registers = lanes.get(where, DType.F32, steps, advance=advance)
    if command in ("reduce", "reset_reduce", "load_reduce"):
        registers = fold(lanes, op, value, registers)
    if command != "idle":
        lanes.put(where, registers, steps, advance=advance)
    return registers
