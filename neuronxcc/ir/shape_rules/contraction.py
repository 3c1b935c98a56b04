"""Rules of products and convolutions."""

from __future__ import annotations

from neuronxcc.ir.dtypes import COMPLEX, FLOATS8, DType
from neuronxcc.ir.node import TensorType
from neuronxcc.ir.op import Op
from neuronxcc.ir.shape_rules.checks import (
    INTEGERS,
    NUMBERS,
    REAL,
    Attrs,
    ShapeError,
    Types,
    arity,
    check_dims,
    check_dtype,
    check_ints,
)


def _pair(op: Op, lhs: TensorType, rhs: TensorType, result: DType) -> None:
    """Operands of one type; 8-bit floats may be mixed, as training does with e4m3 and e5m2."""
    check_dtype(op, lhs.dtype, NUMBERS)
    mixed8 = {lhs.dtype, rhs.dtype} <= FLOATS8 - {DType.F8E8M0}
    if lhs.dtype != rhs.dtype and not mixed8:
        raise ShapeError(op, f"operands {lhs} and {rhs}; must be of one type")
    allowed = next(s for s in (INTEGERS, REAL, COMPLEX) if lhs.dtype in s)
    check_dtype(op, result, allowed, "result")


def dot_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """Batch dimensions, the free ones of the left operand, those of the right one."""
    arity(op, types, 2)
    lhs, rhs = types
    _pair(op, lhs, rhs, attrs["dtype"])
    lhs_batch = check_dims(op, "lhs_batch", attrs["lhs_batch"], lhs.rank)
    rhs_batch = check_dims(op, "rhs_batch", attrs["rhs_batch"], rhs.rank)
    lhs_contract = check_dims(op, "lhs_contract", attrs["lhs_contract"], lhs.rank)
    rhs_contract = check_dims(op, "rhs_contract", attrs["rhs_contract"], rhs.rank)
    for what, a, b in (("batch", lhs_batch, rhs_batch), ("contract", lhs_contract, rhs_contract)):
        if [lhs.shape[d] for d in a] != [rhs.shape[d] for d in b]:
            raise ShapeError(op, f"{what} dims {a} of {lhs} and {b} of {rhs} differ in extent")
    lhs_used, rhs_used = {*lhs_batch, *lhs_contract}, {*rhs_batch, *rhs_contract}
    if len(lhs_used) != len(lhs_batch + lhs_contract) or len(rhs_used) != len(
        rhs_batch + rhs_contract
    ):
        raise ShapeError(op, "a dimension is both batch and contract")
    shape = [lhs.shape[d] for d in lhs_batch]
    shape += [n for d, n in enumerate(lhs.shape) if d not in lhs_used]
    shape += [n for d, n in enumerate(rhs.shape) if d not in rhs_used]
    return (TensorType(attrs["dtype"], tuple(shape)),)


def dilated(extent: int, dilation: int) -> int:
    """The extent with `dilation` - 1 holes between elements."""
    return (extent - 1) * dilation + 1 if extent else 0


def windows(padded: int, window: int, stride: int) -> int:
    """How many windows of that (dilated) extent fit."""
    return (padded - window) // stride + 1 if padded >= window else 0


def convolution_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """Features of a group match; extents count the windows that fit the padded input."""
    arity(op, types, 2)
    x, w = types
    _pair(op, x, w, attrs["dtype"])
    if x.rank != w.rank or x.rank < 2:
        raise ShapeError(op, f"operands {x} and {w}; must have one rank of at least 2")
    specs = {}
    for name in ("lhs_spec", "rhs_spec", "out_spec"):
        specs[name] = check_dims(op, name, attrs[name], x.rank)
        if len(specs[name]) != x.rank:
            raise ShapeError(op, f"{name} {specs[name]}; must name all {x.rank} dimensions")
    batch, features, *spatial = (x.shape[d] for d in specs["lhs_spec"])
    out_features, group_features, *window = (w.shape[d] for d in specs["rhs_spec"])
    groups, batch_groups = attrs["feature_group_count"], attrs["batch_group_count"]
    if groups < 1 or batch_groups < 1 or (groups > 1 and batch_groups > 1):
        raise ShapeError(
            op, f"groups {groups} and batch groups {batch_groups}; positive, one of them 1"
        )
    if group_features * groups != features or out_features % groups:
        raise ShapeError(
            op,
            f"{features} input features in {groups} group(s) with weights of {group_features} "
            f"input and {out_features} output features",
        )
    if batch % batch_groups or out_features % batch_groups:
        raise ShapeError(op, f"batch {batch}, {out_features} features, batch groups {batch_groups}")
    rank = x.rank - 2
    strides = check_ints(op, "strides", attrs["strides"], rank, 1)
    low, high = (check_ints(op, name, attrs[name], rank) for name in ("low", "high"))
    lhs_dilation = check_ints(op, "lhs_dilation", attrs["lhs_dilation"], rank, 1)
    rhs_dilation = check_ints(op, "rhs_dilation", attrs["rhs_dilation"], rank, 1)
    out = [batch // batch_groups, out_features]
    for i in range(rank):
        padded = max(low[i] + dilated(spatial[i], lhs_dilation[i]) + high[i], 0)
        out.append(windows(padded, dilated(window[i], rhs_dilation[i]), strides[i]))
    shape = [0] * x.rank
    for position, extent in zip(specs["out_spec"], out, strict=True):
        shape[position] = extent
    return (TensorType(attrs["dtype"], tuple(shape)),)
