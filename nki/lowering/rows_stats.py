"""Mean and variance: bn_stats, bn_aggr. Sums are float32, about the mean in a second pass."""

from __future__ import annotations

from dataclasses import replace

from neuronxcc.codegen import build
from neuronxcc.codegen.loop import Scalar
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.op import Op
from nki.lowering import values
from nki.lowering.implement import implements
from nki.lowering.loops import Lanes
from nki.lowering.operands import Operand
from nki.lowering.shapes import merge
from nki.lowering.work import Work

__all__: list[str] = []

_TUPLE = 3


def _store(lanes: Lanes, dst: Operand, results: list[Scalar]) -> None:
    for number, result in enumerate(results):
        lanes.store(dst.element(number), values.cast(result, dst.dtype))


@implements("bn_stats")
def _bn_stats(work: Work) -> None:
    dst, data = work.operand("dst"), work.operand("data")
    if dst.pointer == data.pointer:
        data = work.dense(data)  # six items in place: a result is not where its operand was
    lanes = work.lanes(data, reduce=True)
    value = values.to_float32(lanes.load(data), data.dtype)
    odd = build.op(Op.AND, lanes.position(DType.S32), 1)
    results: list[Scalar] = []
    for parity in (0, 1):
        mine = build.compare("EQ", odd, parity)
        count = (data.free + 1 - parity) // 2
        number = lanes.number(count)
        total = build.reduce(Op.ADD, build.select(mine, value, 0.0))
        mean = build.op(Op.DIVIDE, total, lanes.number(max(count, 1)))
        apart = build.op(Op.SUBTRACT, value, mean)
        squares = build.select(mine, build.op(Op.MULTIPLY, apart, apart), 0.0)
        results += [number, mean, build.reduce(Op.ADD, squares)]
    _store(lanes, dst, results)
    lanes.finish()


def _parts(work: Work) -> list[Operand]:
    """Return counts, means and moments as operands of their own."""
    data = work.operand("data")
    if len(merge(data.free_dims)) > 1:
        data = work.dense(data)
    dims = merge(data.free_dims)
    step = dims[0][1] if dims else 1
    shape = (data.partitions, data.free // _TUPLE)
    whole = replace(data, shape=shape, strides=(data.strides[0], _TUPLE * step))
    return [
        replace(whole, pointer=whole.shifted(part * step), name=f"data.{part}")
        for part in range(_TUPLE)
    ]


@implements("bn_aggr")
def _bn_aggr(work: Work) -> None:
    dst, parts = work.operand("dst"), _parts(work)
    lanes = work.lanes(*parts, reduce=True)
    count, mean, moment = (values.to_float32(lanes.load(p), p.dtype) for p in parts)
    total = build.reduce(Op.ADD, count)
    sums = build.reduce(Op.ADD, build.op(Op.MULTIPLY, count, mean))
    average = build.op(Op.DIVIDE, sums, total)
    apart = build.op(Op.SUBTRACT, mean, average)
    squares = build.op(Op.MULTIPLY, build.op(Op.MULTIPLY, apart, apart), count)
    between = build.op(Op.ADD, build.reduce(Op.ADD, moment), build.reduce(Op.ADD, squares))
    _store(lanes, dst, [average, build.op(Op.DIVIDE, between, total)])
    lanes.finish()
