"""Elementwise operators of one operand whose result has another type, or fewer bits of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from neuronxcc.ir.arithmetic import Array, arithmetic, cast
from neuronxcc.ir.dtypes import COMPLEX, FLOATS, FLOATS8, DType
from neuronxcc.ir.node import Node, TensorType
from neuronxcc.ir.op import Op
from neuronxcc.ir.operators.checks import (
    REAL,
    REAL_OF,
    Attrs,
    ShapeError,
    Types,
    arity,
    check_dtype,
)
from neuronxcc.ir.operators.definition import (
    Case,
    Cost,
    Kind,
    Meaning,
    Operator,
    Rounding,
    Rule,
    each_type,
    names,
    tensor,
)
from neuronxcc.targets import Engine


def _operator(
    op: Op,
    rule: Rule,
    meaning: Meaning,
    attrs: str = "",
    *,
    cases: Any = lambda: each_type(1, (3, 5)),
    complex: bool = False,  # noqa: A002 - the name of the field
    instructions: int = 1,
) -> Operator:
    return Operator(
        op=op,
        kind=Kind.CONVERSION,
        engine=Engine.VECTOR,
        cost=Cost.ELEMENTS,
        attrs=names(attrs),
        rule=rule,
        meaning=meaning,
        cases=cases,
        complex=complex,
        rounding=Rounding.ONCE,
        instructions=instructions,
    )


# ---- predicates and parts -----------------------------------------------------------------------


def predicate_rule(op: Op, types: Types, _attrs: Attrs) -> Types:
    """A pred for every float."""
    arity(op, types, 1)
    check_dtype(op, types[0].dtype, FLOATS)
    return (TensorType(DType.PRED, types[0].shape),)


def part_rule(op: Op, types: Types, _attrs: Attrs) -> Types:
    """The real type of a complex one."""
    arity(op, types, 1)
    check_dtype(op, types[0].dtype, COMPLEX)
    return (TensorType(REAL_OF[types[0].dtype], types[0].shape),)


IS_FINITE = _operator(Op.IS_FINITE, predicate_rule, lambda _, x: np.isfinite(arithmetic(x)))
IS_NAN = _operator(Op.IS_NAN, predicate_rule, lambda _, x: np.isnan(arithmetic(x)))
REAL_PART = _operator(Op.REAL, part_rule, lambda _, x: x.real, complex=True)
IMAGINARY_PART = _operator(Op.IMAG, part_rule, lambda _, x: x.imag, complex=True)

# ---- convert ------------------------------------------------------------------------------------


def convert_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """Any type to any other."""
    arity(op, types, 1)
    return (TensorType(attrs["dtype"], types[0].shape),)


def _conversions() -> Iterable[Case]:
    for source in DType:
        for target in DType:
            if source is not target:
                yield Case(
                    f"{source.value} {target.value}", (tensor(source, 9),), {"dtype": target}
                )


CONVERT = _operator(
    Op.CONVERT, convert_rule, lambda node, x: cast(x, node["dtype"]), "dtype", cases=_conversions
)

# ---- bitcast_convert ----------------------------------------------------------------------------


def bitcast_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """Numbers of one size."""
    arity(op, types, 1)
    src, dst = types[0].dtype, attrs["dtype"]
    if DType.PRED in (src, dst) or src.is_complex or dst.is_complex or src.itemsize != dst.itemsize:
        raise ShapeError(op, f"{src.value} to {dst.value}; both must be numbers of one size")
    return (TensorType(dst, types[0].shape),)


def _bitcast(node: Node, x: Array) -> Array:
    return np.asarray(np.ascontiguousarray(x).view(node["dtype"].numpy).reshape(x.shape))


def _bitcasts() -> Iterable[Case]:
    pairs = ((DType.F32, DType.S32), (DType.BF16, DType.U16), (DType.S64, DType.F64))
    for source, target in pairs:
        yield Case(f"{source.value} {target.value}", (tensor(source, 9),), {"dtype": target})


BITCAST_CONVERT = _operator(Op.BITCAST_CONVERT, bitcast_rule, _bitcast, "dtype", cases=_bitcasts)

# ---- reduce_precision: a format of fewer bits, in the same type (tf32: 8 and 10) ----------------


def reduce_precision_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """Floats of at least 16 bits keep their type."""
    arity(op, types, 1)
    check_dtype(op, types[0].dtype, REAL - FLOATS8)
    exponent, mantissa = attrs["exponent_bits"], attrs["mantissa_bits"]
    if exponent < 1 or mantissa < 0:
        raise ShapeError(op, f"exponent_bits {exponent}, mantissa_bits {mantissa}; need >= 1, >= 0")
    return types


def reduce_precision(node: Node, x: Array) -> Array:
    """REDUCE_PRECISION: on the bits, in the way XLA does it."""
    info = _layout(node.dtype)
    width, source_exponent, source_mantissa = info
    unsigned = np.dtype(f"u{width // 8}").type
    bits = np.ascontiguousarray(x).view(unsigned).reshape(x.shape)
    exponent, mantissa = node["exponent_bits"], node["mantissa_bits"]
    sign = bits & unsigned(1 << (width - 1))
    rest = bits & unsigned((1 << (width - 1)) - 1)
    infinity = unsigned(((1 << source_exponent) - 1) << source_mantissa)
    if mantissa < source_mantissa:
        drop = source_mantissa - mantissa
        last = (rest >> unsigned(drop)) & unsigned(1)
        rest = rest + last + unsigned((1 << (drop - 1)) - 1)
        rest &= unsigned(((1 << (width - 1)) - 1) & ~((1 << drop) - 1))
    if exponent < source_exponent:
        bias, reduced = (1 << (source_exponent - 1)) - 1, (1 << (exponent - 1)) - 1
        greatest = unsigned((bias + reduced) << source_mantissa)
        least = unsigned((bias - reduced) << source_mantissa)
        rest = np.where((rest & infinity) > greatest, infinity, rest)
        rest = np.where((rest & infinity) <= least, unsigned(0), rest)
    rounded = np.ascontiguousarray(sign | rest).view(x.dtype).reshape(x.shape)
    return np.where(np.isnan(arithmetic(x)), x, rounded)


def _layout(dtype: DType) -> tuple[int, int, int]:
    """Bits of a float: all, exponent, mantissa."""
    layouts = {
        DType.F16: (16, 5, 10),
        DType.BF16: (16, 8, 7),
        DType.F32: (32, 8, 23),
        DType.F64: (64, 11, 52),
    }
    return layouts[dtype]


def _formats() -> Iterable[Case]:
    for exponent, mantissa in ((8, 10), (5, 10), (4, 3)):
        attrs = {"exponent_bits": exponent, "mantissa_bits": mantissa}
        yield Case(f"{exponent} {mantissa}", (tensor(DType.F32, 64),), attrs)


REDUCE_PRECISION = _operator(
    Op.REDUCE_PRECISION,
    reduce_precision_rule,
    reduce_precision,
    "exponent_bits mantissa_bits",
    cases=_formats,
    instructions=6,
)

OPERATORS = (
    IS_FINITE,
    IS_NAN,
    REAL_PART,
    IMAGINARY_PART,
    CONVERT,
    BITCAST_CONVERT,
    REDUCE_PRECISION,
)
