"""Microscaling: quantize_mx, nc_matmul_mx. See `nki.isa.mx` for the formats.

Of P partitions, 32 * a + 8 * b + c is in the group whose scales are in partition 32 * a + b, so
kernels have dimensions (P / 32, 4, 8): then everything lies in steps.

Products are float32 products of scaled elements. The reference has float64 here, and differs where
a scaled element is beyond float32, which takes a scale above 2**112 or so.
"""

from __future__ import annotations

from dataclasses import replace

from neuronxcc.codegen import build
from neuronxcc.codegen.loop import Kind, Scalar
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.op import Op
from nki.isa.mx import ELEMENTS, GROUP_PARTITIONS, LARGEST, QUADRANT, ScaleRule, rule_in_use
from nki.lowering import values
from nki.lowering.implement import implements
from nki.lowering.loops import LoopMaker
from nki.lowering.operands import Operand
from nki.lowering.rows_matmul import multiply
from nki.lowering.shapes import merge
from nki.lowering.work import Work

__all__: list[str] = []

_GROUPS = QUADRANT // GROUP_PARTITIONS  # of a quadrant
_NAN = 255
_LANE = {"float8_e5m2_x4": DType.F8E5M2, "float8_e4m3fn_x4": DType.F8E4M3FN}
_SHIFT, _RIGHT = Op.SHIFT_LEFT, Op.SHIFT_RIGHT_LOGICAL


def _row(work: Work, operand: Operand) -> Operand:
    """Return an operand that is read as (partitions, elements) with one stride each."""
    dims = merge(operand.free_dims)
    if operand.moved or len(dims) > 1:
        operand = work.dense(operand)
        dims = merge(operand.free_dims)
    step = dims[0][1] if dims else 0
    return replace(
        operand, shape=(operand.partitions, operand.free), strides=(operand.strides[0], step)
    )


def _power(code: Scalar) -> Scalar:
    """Return 2**(code - 127) of an integer 0 to 254 in float32, NaN of 255."""
    normal = build.op(_SHIFT, code, 23)
    bits = build.select(build.compare("EQ", code, 0), 0x00400000, normal)
    bits = build.select(build.compare("EQ", code, _NAN), 0x7FC00000, bits)
    return build.op(Op.BITCAST_CONVERT, bits, dtype=DType.F32)


def _scale(loop: LoopMaker, scales: Operand, steps: tuple[int, ...]) -> Scalar:
    """Load scale bytes as integers."""
    item = loop.get(scales.pointer, values.bits_type(scales.dtype), steps)
    return build.convert(item, DType.S32)


# quantize_mx


def _largest(work: Work, source: Operand) -> Operand:
    """Return the largest magnitude of every 8 partitions: float32 (P / 8, F)."""
    groups = source.partitions // GROUP_PARTITIONS
    found = work.temporary((groups, source.free), "float32")
    loop = LoopMaker(
        work,
        "largest",
        (groups, GROUP_PARTITIONS, source.free),
        (Kind.PARALLEL, Kind.REDUCE, Kind.PARALLEL),
    )
    row, step = source.strides
    kind = values.stored_type(source.dtype)
    item = loop.get(source.pointer, kind, (GROUP_PARTITIONS * row, row, step))
    size = build.op(Op.ABS, build.convert(item, DType.F32))
    loop.put(found.pointer, build.reduce(Op.MAXIMUM, size), (source.free, 0, 1))
    loop.finish()
    return found


def _scales(work: Work, largest: Operand, dtype: str, scales: Operand) -> None:
    """Write the scale bytes of groups to their rows."""
    doubled = rule_in_use() is ScaleRule.DOUBLED
    offset = LARGEST[dtype][0] - doubled
    items = largest.free // ELEMENTS
    loop = LoopMaker(work, "scales", (largest.partitions // _GROUPS, _GROUPS, items))
    size: Scalar | None = None
    for element in range(ELEMENTS):
        pointer = largest.shifted(element)
        steps = (_GROUPS * largest.free, largest.free, ELEMENTS)
        item = loop.get(pointer, DType.F32, steps)
        size = item if size is None else build.op(Op.MAXIMUM, size, item)
    assert size is not None
    bits = build.op(Op.BITCAST_CONVERT, size, dtype=DType.S32)
    # Of a denormal number the exponent reads 0, which is so small that it comes to the same.
    exponent = build.op(_RIGHT, bits, 23)
    low = build.const(0, DType.S32)
    byte = build.op(Op.CLAMP, low, build.op(Op.SUBTRACT, exponent, offset), _NAN - 1)
    byte = build.select(build.op(Op.IS_FINITE, size), byte, _NAN)
    item = values.from_bits(byte, scales.dtype)
    row, step = scales.strides
    loop.put(scales.pointer, item, (QUADRANT * row, row, step))
    loop.finish()


def _divide(work: Work, source: Operand, scales: Operand, dst: Operand) -> None:
    """Divide by the scales, and pack four elements at a time."""
    lane, most = _LANE[dst.dtype], LARGEST[dst.dtype][1]
    extents = (source.partitions // QUADRANT, _GROUPS, GROUP_PARTITIONS, dst.free)
    loop = LoopMaker(work, "quantize_mx", extents)
    row, step = scales.strides
    code = _scale(loop, scales, (QUADRANT * row, row, 0, step))
    # 2**(127 - byte), which 254 - byte stands for; NaN stays.
    inverse = build.op(Op.SUBTRACT, build.const(2 * 127, DType.S32), code)
    inverse = build.select(build.compare("EQ", code, _NAN), _NAN, inverse)
    factor = _power(inverse)
    packed: Scalar | None = None
    row, step = source.strides
    steps = (QUADRANT * row, GROUP_PARTITIONS * row, row, ELEMENTS * step)
    for element in range(ELEMENTS):
        kind = values.stored_type(source.dtype)
        item = loop.get(source.shifted(element * step), kind, steps)
        scaled = build.op(Op.MULTIPLY, build.convert(item, DType.F32), factor)
        clipped = build.op(Op.CLAMP, build.const(-most, DType.F32), scaled, most)
        byte = build.op(Op.BITCAST_CONVERT, build.convert(clipped, lane), dtype=DType.U8)
        placed = build.op(_SHIFT, build.convert(byte, DType.U32), 8 * element)
        packed = placed if packed is None else build.op(Op.OR, packed, placed)
    assert packed is not None
    row, step = dst.strides
    loop.put(dst.pointer, packed, (QUADRANT * row, GROUP_PARTITIONS * row, row, step))
    loop.finish()


@implements("quantize_mx")
def _quantize(work: Work) -> None:
    source, dst, scales = (work.operand(name) for name in ("src", "dst", "dst_scale"))
    source = _row(work, source)
    packed, bytes_ = dst, scales
    if len(merge(dst.free_dims)) > 1:
        packed = work.temporary(dst.shape, dst.dtype)
    if len(merge(scales.free_dims)) > 1:
        bytes_ = work.temporary(scales.shape, scales.dtype)
        work.copy_bits(scales, bytes_)
    _scales(work, _largest(work, source), dst.dtype, _row(work, bytes_))
    _divide(work, source, _row(work, bytes_), _row(work, packed))
    for made, operand in ((packed, dst), (bytes_, scales)):
        if made is not operand:
            work.copy_bits(made, operand)


# nc_matmul_mx


def _float4(code: Scalar) -> Scalar:
    """Return the value of four bits in float32: 0, 0.5, 1, 1.5, 2, 3, 4, 6, and below 0."""
    magnitude = build.op(Op.AND, code, 7)
    exponent = build.op(_SHIFT, build.op(Op.ADD, build.op(_RIGHT, magnitude, 1), 126), 23)
    bits = build.op(Op.OR, exponent, build.op(_SHIFT, build.op(Op.AND, magnitude, 1), 22))
    bits = build.select(build.compare("EQ", magnitude, 1), 0x3F000000, bits)
    bits = build.select(build.compare("EQ", magnitude, 0), 0, bits)
    sign = build.op(_SHIFT, build.op(_RIGHT, code, 3), 31)
    return build.op(Op.BITCAST_CONVERT, build.op(Op.OR, bits, sign), dtype=DType.F32)


def _element(item: Scalar, dtype: str, element: int) -> Scalar:
    """Return one of four packed elements in float32."""
    wide = build.convert(item, DType.U32)
    if dtype not in _LANE:
        return _float4(build.op(Op.AND, build.op(_RIGHT, wide, 4 * element), 15))
    byte = build.convert(build.op(_RIGHT, wide, 8 * element), DType.U8)
    return build.convert(build.op(Op.BITCAST_CONVERT, byte, dtype=_LANE[dtype]), DType.F32)


def _dequantised(work: Work, name: str) -> Operand:
    """Return float32 (4 P, N) of packed items (P, N): row 4 p + q has the elements q."""
    items, scales = _row(work, work.operand(name)), _row(work, work.operand(f"{name}_scale"))
    made = work.temporary((items.partitions, ELEMENTS * items.free), "float32")
    extents = (items.partitions // QUADRANT, _GROUPS, GROUP_PARTITIONS, items.free)
    loop = LoopMaker(work, "dequantize_mx", extents)
    row, step = scales.strides
    factor = _power(_scale(loop, scales, (QUADRANT * row, row, 0, step)))
    row, step = items.strides
    steps = (QUADRANT * row, GROUP_PARTITIONS * row, row, step)
    item = loop.get(items.pointer, values.stored_type(items.dtype), steps)
    row = made.free
    steps = (QUADRANT * row, GROUP_PARTITIONS * row, row, 1)
    for element in range(ELEMENTS):
        value = build.op(Op.MULTIPLY, _element(item, items.dtype, element), factor)
        loop.put(made.shifted(element * items.free), value, steps)
    loop.finish()
    return replace(made, shape=(ELEMENTS * items.partitions, items.free), strides=(items.free, 1))


@implements("nc_matmul_mx")
def _matmul_mx(work: Work) -> None:
    left, right = _dequantised(work, "stationary"), _dequantised(work, "moving")
    multiply(work, left, right, "float32", accumulate=bool(work.template.accumulate))
