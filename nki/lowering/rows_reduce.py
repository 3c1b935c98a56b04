"""Reductions: tensor_reduce, tensor_partition_reduce, tensor_scalar_reduce."""

from __future__ import annotations

import math

from neuronxcc.codegen import build
from neuronxcc.codegen.loop import Kind, Scalar
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.op import Op
from nki.isa.alu import ALU
from nki.lowering import alu, values
from nki.lowering.implement import implements
from nki.lowering.loops import Lanes, LoopMaker
from nki.lowering.operands import Operand
from nki.lowering.rows_activate import begin, finish
from nki.lowering.rows_elementwise import staged
from nki.lowering.shapes import refine
from nki.lowering.work import Work

__all__: list[str] = []

_REDUCE = {
    "add": Op.ADD, "multiply": Op.MULTIPLY, "maximum": Op.MAXIMUM, "minimum": Op.MINIMUM,
    "bitwise_and": Op.AND, "bitwise_or": Op.OR, "bitwise_xor": Op.XOR,
}  # fmt: skip
_LOGICAL = {"logical_and": Op.MINIMUM, "logical_or": Op.MAXIMUM}


@implements("tensor_reduce")
def _tensor_reduce(work: Work) -> None:
    op = work.attributes["op"]
    lanes = work.lanes("data", kept=("dst",), reduce=True)
    if ALU[op].bitvec:
        total = build.reduce(_REDUCE[op], lanes.bits("data"))
        lanes.store("dst", values.from_bits(total, work.dtype("dst")))
    else:
        total = _folded(lanes, op)
        negated = build.op(Op.NEGATE, total) if work.attributes["negate"] else total
        lanes.write("dst", negated)
    lanes.finish()


def _folded(lanes: Lanes, op: str) -> Scalar:
    """Return the elements folded from the first one on, in float32."""
    value = lanes.read("data")
    if op in _REDUCE:
        return build.reduce(_REDUCE[op], value)
    work = lanes.work
    first = values.to_float32(lanes.first("data"), work.dtype("data"))
    if math.prod(work.form("data").shape) == math.prod(work.form("dst").shape):
        return first
    if op == "subtract":
        later = build.compare("GT", lanes.position(reduced=True), 0)
        rest = build.reduce(Op.ADD, build.select(later, value, 0.0))
        return build.op(Op.SUBTRACT, first, rest)
    truth = alu.truth(value)
    if op == "logical_xor":
        count = build.reduce(Op.ADD, build.convert(truth, DType.S32))
        return build.convert(build.op(Op.AND, count, 1), DType.F32)
    return build.reduce(_LOGICAL[op], build.convert(truth, DType.F32))


@implements("tensor_partition_reduce")
def _partition_reduce(work: Work) -> None:
    op = work.attributes["op"]
    data, dst = work.operand("data"), work.operand("dst")
    found = refine([dst.free_dims, data.free_dims])
    if isinstance(found, int):
        # Dense copies agree, and what was computed in one is copied back.
        data = work.dense(data)
        target = work.temporary(dst.shape, dst.dtype)
        found = refine([target.free_dims, data.free_dims])
        assert not isinstance(found, int)
    else:
        target = dst
    extents, (to, source) = found
    loop = LoopMaker(
        work,
        "tensor_partition_reduce",
        (data.partitions, *extents),
        (Kind.REDUCE, *[Kind.PARALLEL] * len(extents)),
    )
    bitwise = op.startswith("bitwise")
    kind = values.bits_type(data.dtype) if bitwise else values.stored_type(data.dtype)
    item = loop.get(data.pointer, kind, (data.strides[0], *source))
    loop.put(target.pointer, _partitions(loop, op, item, data, dst), (0, *to))
    loop.finish()
    if target is not dst:
        work.copy_bits(target, dst)


def _partitions(loop: LoopMaker, op: str, item: Scalar, data: Operand, dst: Operand) -> Scalar:
    if op.startswith("bitwise"):
        total = build.reduce(_REDUCE[op], item)
        return values.from_bits(total, dst.dtype)
    value = values.to_float32(item, data.dtype)
    total = build.reduce(Op.MAXIMUM if op == "maximum" else Op.ADD, value)
    if op == "average":
        total = build.op(Op.DIVIDE, total, loop.number(data.partitions))
    return values.cast(total, dst.dtype)


@implements("tensor_scalar_reduce")
def _scalar_reduce(work: Work) -> None:
    attributes = work.attributes
    command = attributes["reduce_cmd"]
    lanes = begin(work, "data", command)
    stage = (attributes["op0"], "operand0", attributes["reverse0"])
    value = staged(lanes, lanes.read("data"), [stage])
    finish(lanes, value, attributes["reduce_op"], command, "reduce_init",
           negate=attributes["reduce_res_negate"])  # fmt: skip
