"""The Tensor Engine without microscaling: nc_matmul and nc_transpose."""

from __future__ import annotations

from dataclasses import replace

from neuronxcc.codegen import build
from neuronxcc.codegen.loop import Kind, Scalar
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.op import Op
from neuronxcc.program.tape_functions import TapeNative, TapeProduct
from nki.dtypes import info
from nki.isa.rows.matmul_rules import INPUTS
from nki.lowering import values
from nki.lowering.implement import implements
from nki.lowering.loops import Flat, LoopMaker
from nki.lowering.operands import Operand, Reach
from nki.lowering.shapes import merge, row_major
from nki.lowering.work import Work

__all__ = ["multiply"]

_EXACT = {"float32": "float32", "bfloat16": "bfloat16", "float16": "float16"}
_FLOAT8 = ("float8_e4m3", "float8_e4m3fn", "float8_e5m2")


def _common(kinds: list[str]) -> str:
    """Return the type that the product takes both operands as, which holds them exactly."""
    wide = {"float32" if kind == "tfloat32" else kind for kind in kinds} - {*_FLOAT8}
    if not wide:
        return "bfloat16"
    return wide.pop() if len(wide) == 1 else "float32"


def _matrix(work: Work, operand: Operand, rows: int, dtype: str) -> Operand:
    """Return an operand as (K, N) of a type of the product: itself, or a cast copy."""
    dims = merge(operand.free_dims)
    columns = operand.size // (operand.partitions * rows)
    if operand.dtype == dtype and rows == 1 and len(dims) <= 1 and _forward(dims):
        step = dims[0][1] if dims else 1
        return replace(
            operand,
            shape=(operand.partitions, columns),
            strides=(operand.strides[0], step),
        )
    copy = work.temporary(operand.shape, dtype)
    lanes = work.lanes(copy, operand)
    item = values.to_float32(lanes.load(operand), operand.dtype)
    lanes.store(copy, values.cast(item, dtype))
    lanes.finish()
    # Dense: of (K, 2, N) the two halves of a partition are neighbours.
    return replace(copy, shape=(operand.partitions * rows, columns), strides=(columns, 1))


def _forward(dims: tuple[tuple[int, int], ...]) -> bool:
    return all(stride > 0 for _, stride in dims)


@implements("nc_matmul")
def _matmul(work: Work) -> None:
    if work.attributes["is_transpose"] and work.template.generation >= 3:
        _turned(work)
        return
    rows = 2 if work.attributes["perf_mode"] == "double_row" else 1
    kinds = [work.dtype("stationary"), work.dtype("moving")]
    product(work, rows, _common(kinds), accumulate=bool(work.template.accumulate))


def product(work: Work, rows: int, dtype: str, *, accumulate: bool) -> None:
    """Multiply `stationary` and `moving` to `dst`."""
    left = _matrix(work, work.operand("stationary"), rows, dtype)
    right = _matrix(work, work.operand("moving"), rows, dtype)
    multiply(work, left, right, dtype, accumulate=accumulate)


def multiply(work: Work, left: Operand, right: Operand, dtype: str, *, accumulate: bool) -> None:
    """Multiply matrices (K, M) and (K, N) of a type that products take to `dst`."""
    dst = work.operand("dst")
    dims = merge(dst.free_dims)
    target = dst
    if len(dims) > 1 or not _forward(dims) or dst.dtype not in ("float32", "bfloat16"):
        target = work.temporary((dst.partitions, dst.free), "float32")
        if accumulate:
            lanes = work.lanes(target, dst)
            lanes.store(target, values.to_float32(lanes.load(dst), dst.dtype))
            lanes.finish()
        dims = ((dst.free, 1),)
    step = dims[0][1] if dims else 1
    m, n, k = left.shape[1], right.shape[1], left.shape[0]
    kind, out = info(dtype).loop, info(target.dtype).loop
    assert kind is not None
    assert out is not None
    function = TapeProduct(
        m, n, k, kind, out,
        out_strides=(target.strides[0] or dst.free, step),
        a_strides=(left.strides[0] or m, left.strides[1]),
        b_strides=(right.strides[0] or n, right.strides[1]),
        accumulate=accumulate,
    )  # fmt: skip
    reaches = [
        Reach(0, ((r - 1) * s[0] + (c - 1) * s[1] + 1) * t.itemsize, written=written)
        for r, c, s, t, written in (
            (m, n, function.out_strides, out, True),
            (k, m, function.a_strides, kind, False),
            (k, n, function.b_strides, kind, False),
        )
    ]
    work.add(function, [target.pointer, left.pointer, right.pointer], reaches)
    if target is not dst:
        lanes = work.lanes(dst, target)
        lanes.store(dst, values.cast(lanes.load(target), dst.dtype))
        lanes.finish()


def _turned(work: Work) -> None:
    """Rows of `stationary` chosen by the one-hot columns of `moving`, turned, every bit kept."""
    stationary, moving, dst = (work.operand(n) for n in ("stationary", "moving", "dst"))
    if len(merge(stationary.free_dims)) > 1:
        stationary = work.dense(stationary)
    k, n = moving.partitions, moving.free
    chosen = work.temporary((1, n), "int32")
    wrong = work.temporary((1, n), "int32")
    _choose(work, moving, chosen, wrong)
    work.add(TapeNative("check_one_hot", (n,)), [wrong.pointer], [Reach(0, 4 * n, written=False)])
    dims = merge(stationary.free_dims)
    step = dims[0][1] if dims else 0
    flat = len(merge(dst.free_dims)) <= 1
    target = dst if flat else work.temporary((dst.partitions, n), dst.dtype)
    to = merge(target.free_dims)
    select = LoopMaker(work, "nc_transpose", (target.partitions, n))
    row = select.get(chosen.pointer, DType.S32, (0, 1))
    zero, last = build.const(0, DType.S64), build.const(k - 1, DType.S64)
    clamped = build.op(Op.CLAMP, zero, build.convert(row, DType.S64), last)
    kept = stationary.dtype == target.dtype
    kind = values.bits_type if kept else values.stored_type
    item = select.get(
        stationary.pointer,
        kind(stationary.dtype),
        (step, 0),
        indices=[(clamped, stationary.strides[0], 0, k - 1)],
    )
    if not kept:
        item = values.cast(values.to_float32(item, stationary.dtype), target.dtype)
    select.put(target.pointer, item, (target.strides[0], to[0][1] if to else 0))
    select.finish()
    if target is not dst:
        lanes = work.lanes(dst, target)
        lanes.store(dst, lanes.bits(target))
        lanes.finish()


def _choose(work: Work, moving: Operand, chosen: Operand, wrong: Operand) -> None:
    """For every column of `moving` find where its one is, and count what is no one-hot column."""
    dense = moving if len(merge(moving.free_dims)) <= 1 else work.dense(moving)
    dims = merge(dense.free_dims)
    steps = (dense.strides[0], dims[0][1] if dims else 0)
    extents, kinds = (moving.partitions, moving.free), (Kind.REDUCE, Kind.PARALLEL)
    loop = LoopMaker(work, "one_hot", extents, kinds)
    kind = values.stored_type(moving.dtype)
    value = values.to_float32(loop.get(dense.pointer, kind, steps), moving.dtype)
    one = build.compare("EQ", value, 1.0)
    row = build.index(0, DType.S32)
    at = build.reduce(Op.MAXIMUM, build.select(one, row, 0))
    loop.put(chosen.pointer, at, (0, 1))
    ones = build.reduce(Op.ADD, build.convert(one, DType.S32))
    zero = build.compare("EQ", value, 0.0)
    others = build.op(Op.NOT, build.op(Op.OR, one, zero))
    bad = build.reduce(Op.ADD, build.convert(others, DType.S32))
    wanted = build.op(Op.SUBTRACT, ones, 1)
    loop.put(wrong.pointer, build.op(Op.OR, wanted, bad), (0, 1))
    loop.finish()


@implements("nc_transpose")
def _transpose(work: Work) -> None:
    template = work.template
    dst = work.operand("dst")
    data = work.apart(work.operand("data"), dst)
    if len(merge(data.free_dims)) > 1:
        data = work.dense(data)
    dims = merge(data.free_dims)
    source = (dims[0][1] if dims else 0, data.strides[0])
    spreads = template.engine == "tensor" and template.generation == 2 and data.dtype in INPUTS
    turned = replace(data, shape=(*dst.shape[:1], data.partitions), strides=source)
    if not spreads:
        loop = Flat(work, "nc_transpose", [dst, turned])
        loop.store(dst, loop.bits(turned))
        loop.finish()
        return
    target = dst if len(merge(dst.free_dims)) <= 1 else work.temporary(turned.shape, dst.dtype)
    to = merge(target.free_dims)
    product = LoopMaker(work, "nc_transpose", turned.shape, (Kind.PARALLEL, Kind.REDUCE))
    kind = values.stored_type(data.dtype)
    value = values.to_float32(product.get(data.pointer, kind, source), data.dtype)
    item = values.cast(_spread(value), dst.dtype)
    product.put(target.pointer, item, (target.strides[0], to[0][1] if to else 0))
    product.finish()
    if target is not dst:
        work.copy_bits(replace(target, shape=dst.shape, strides=row_major(dst.shape)), dst)


def _spread(value: Scalar) -> Scalar:
    """A product with the identity: 0 * NaN and 0 * inf of the others reach a whole row."""
    bad = build.convert(build.op(Op.NOT, build.op(Op.IS_FINITE, value)), DType.S32)
    others = build.op(Op.SUBTRACT, build.reduce(Op.ADD, bad), bad)
    # Adding 0 takes -0 to 0, as the zeros of the identity do.
    return build.select(build.compare("GT", others, 0), float("nan"), build.op(Op.ADD, value, 0.0))
