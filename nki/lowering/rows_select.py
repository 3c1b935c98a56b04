"""Patterns and selections: iota, affine_select, range_select, select_reduce."""

from __future__ import annotations

from neuronxcc.codegen import build
from neuronxcc.codegen.loop import Scalar
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.op import Op
from nki.lowering import alu
from nki.lowering.implement import implements
from nki.lowering.loops import Lanes
from nki.lowering.operands import Operand, virtual
from nki.lowering.rows_activate import begin, finish
from nki.lowering.rows_copy import copied, stored_number
from nki.lowering.work import Work

__all__: list[str] = []


def _pattern(work: Work) -> Operand:
    """Return an operand whose strides are the steps of the pattern."""
    pairs = work.attributes["pattern"]
    steps = tuple(step for step, _ in pairs)
    shape = (work.form("dst").shape[0], *(count for _, count in pairs))
    return virtual(shape, (0, *steps))


def _affine(lanes: Lanes, pattern: Operand) -> Scalar:
    """Return offset + partition * multiplier + pattern in wrapping int32 arithmetic."""
    multiplier = lanes.whole(lanes.work.attributes["channel_multiplier"])
    rows = build.op(Op.MULTIPLY, lanes.partition(), multiplier)
    offset = build.convert(lanes.integer("offset"), DType.S32)
    return build.op(Op.ADD, build.op(Op.ADD, offset, rows), lanes.along(pattern))


@implements("iota")
def _iota(work: Work) -> None:
    pattern = _pattern(work)
    lanes = work.lanes("dst", pattern)
    lanes.write("dst", _affine(lanes, pattern))
    lanes.finish()


@implements("affine_select")
def _affine_select(work: Work) -> None:
    pattern = _pattern(work)
    lanes = work.lanes("dst", "on_true_tile", pattern)
    value = _affine(lanes, pattern)
    chosen = alu.truth(alu.apply(work.attributes["cmp_op"], value, build.const(0, DType.S32)))
    number = stored_number(float(work.attributes["on_false_value"]), work.dtype("dst"))
    true = copied(lanes, "on_true_tile")
    lanes.store("dst", build.select(chosen, true, lanes.get(number, true.dtype)))
    lanes.finish()


@implements("range_select")
def _range_select(work: Work) -> None:
    attributes = work.attributes
    command = attributes["reduce_cmd"]
    lanes = begin(work, "on_true_tile", command)
    position = build.op(Op.ADD, lanes.position(DType.S32), lanes.whole(attributes["range_start"]))
    index = build.convert(position, DType.F32)
    inside = build.op(
        Op.AND,
        alu.truth(alu.apply(attributes["comp_op0"], index, lanes.read("bound0"))),
        alu.truth(alu.apply(attributes["comp_op1"], index, lanes.read("bound1"))),
    )
    false = lanes.number(attributes["on_false_value"])
    value = build.select(inside, lanes.read("on_true_tile"), false)
    finish(lanes, value, "maximum", command)


@implements("select_reduce")
def _select_reduce(work: Work) -> None:
    attributes = work.attributes
    command = attributes["reduce_cmd"]
    lanes = begin(work, "on_true", command, "predicate")
    predicate = lanes.load("predicate")
    chosen = build.compare("NE", predicate, 0)
    if attributes["reverse_pred"]:
        chosen = build.op(Op.NOT, chosen)
    value = build.select(chosen, lanes.read("on_true"), lanes.read("on_false"))
    finish(lanes, value, "maximum", command)
