"""Recurrences along a partition: tensor_tensor_scan, tensor_scalar_cumulative."""

from __future__ import annotations

from neuronxcc.program.natives.alu import SCANNED
from nki.isa.alu import ALU
from nki.lowering import alu
from nki.lowering.implement import implements
from nki.lowering.native import Rows, call, given, number_rows, wanted
from nki.lowering.operands import State, f32
from nki.lowering.work import Work

__all__: list[str] = []

_NUMBER = {name: number for number, name in enumerate(SCANNED)}


@implements("tensor_tensor_scan")
def _scan(work: Work) -> None:
    data, attributes = work.operand("data0"), work.attributes
    out = wanted(work, "dst", "float32")
    slots = (out.rows, given(work, "data0"), given(work, "data1"), number_rows(work, "initial"))
    operators = (
        _NUMBER[attributes["op0"]],
        int(attributes["reverse0"]),
        _NUMBER[attributes["op1"]],
        int(attributes["reverse1"]),
    )
    call(
        work,
        "scan",
        data.partitions,
        slots,
        lambda rows: (rows, data.free, *operators, *(slot.step for slot in slots)),
    )
    out.finish()


def accumulators(work: Work) -> Rows:
    """Return the accumulator registers of the engine that runs the instruction, from its lane."""
    initial = bytes(4 * 128)
    return Rows(State(f"accumulators.{work.template.engine}", initial, 4 * work.lane()), 4)


def _initial(work: Work, registers: Rows, op: str, command: str) -> Rows:
    if command == "load_reduce":
        return number_rows(work, "imm1")
    if command == "reset_reduce":
        identity = ALU[op].identity
        assert identity is not None, op
        return Rows(f32(identity), 0)
    return registers


@implements("tensor_scalar_cumulative")
def _cumulative(work: Work) -> None:
    source, attributes = work.operand("src"), work.attributes
    x = given(
        work,
        "src",
        make=lambda lanes, value: alu.apply(attributes["op0"], value, lanes.read("imm0")),
    )
    registers = accumulators(work)
    initial = _initial(work, registers, attributes["op1"], attributes["reduce_cmd"])
    out = wanted(work, "dst", "float32")
    slots = (out.rows, registers, x, initial)
    call(
        work,
        "cumulate",
        source.partitions,
        slots,
        lambda rows: (
            rows,
            source.free,
            _NUMBER[attributes["op1"]],
            *(slot.step for slot in slots),
        ),
    )
    out.finish()
