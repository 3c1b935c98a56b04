"""Functions of one variable: activation, activation_reduce, activate2, exponential."""

from __future__ import annotations

from neuronxcc.codegen import build
from neuronxcc.codegen.loop import Scalar
from neuronxcc.ir.op import Op
from nki.lowering import alu
from nki.lowering.accumulate import accumulate, uses_registers
from nki.lowering.act import activate
from nki.lowering.implement import implements
from nki.lowering.loops import Lanes
from nki.lowering.work import Work

__all__ = ["begin", "finish"]


def begin(work: Work, data: str, command: str, *more: str) -> Lanes:
    """Begin a kernel on `dst` and inputs, by rows if registers take part."""
    reduces = uses_registers(command, result=work.has("reduce_res"))
    return work.lanes("dst", data, *more, reduce=reduces)


def finish(
    lanes: Lanes,
    value: Scalar,
    op: str,
    command: str,
    initial: str | None = None,
    *,
    negate: bool = False,
) -> None:
    """Store what was computed, and what the registers hold then."""
    work = lanes.work
    lanes.write("dst", value)
    if uses_registers(command, result=work.has("reduce_res")):
        registers = accumulate(lanes, value, op, command, initial)
        if work.has("reduce_res"):
            result = build.op(Op.NEGATE, registers) if negate else registers
            lanes.write("reduce_res", result)
    lanes.finish()


def _activation(work: Work, command: str) -> None:
    lanes = begin(work, "data", command)
    value = lanes.read("data")
    if work.form("scale") != 1.0:
        value = build.op(Op.MULTIPLY, value, lanes.read("scale"))
    if work.has("bias"):
        value = build.op(Op.ADD, value, lanes.read("bias"))
    result = activate(work.attributes["op"], value)
    finish(lanes, result, work.attributes["reduce_op"] or "add", command)


@implements("activation")
def _activation_row(work: Work) -> None:
    _activation(work, work.attributes["reduce_cmd"])


@implements("activation_reduce")
def _activation_reduce(work: Work) -> None:
    _activation(work, "reset_reduce")


@implements("activate2")
def _activate2(work: Work) -> None:
    attributes = work.attributes
    command = attributes["reduce_cmd"]
    lanes = begin(work, "data", command)
    value = lanes.read("data")
    for i in (0, 1):
        op = attributes[f"op{i}"]
        if op != "bypass":
            other = lanes.read(f"imm{i}")
            value = alu.apply(op, value, other, reverse=attributes[f"reverse{i}"])
    parameter = lanes.read("relu_param") if attributes["op"] == "prelu" else None
    result = activate(attributes["op"], value, parameter)
    finish(lanes, result, attributes["reduce_op"] or "add", command)


@implements("exponential")
def _exponential(work: Work) -> None:
    command = work.attributes["reduce_cmd"]
    lanes = begin(work, "src", command)
    value = build.op(Op.SUBTRACT, lanes.read("src"), lanes.read("max_value"))
    finish(lanes, build.op(Op.EXP, value), "add", command, "reduce_init")
