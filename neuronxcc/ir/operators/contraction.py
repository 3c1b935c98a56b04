"""Dot products and convolutions.

The reference multiplies and sums floats in float64 and rounds by way of float32: the value that
every order of float32 additions approximates. Integers wrap in the type of the result.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from neuronxcc.ir.arithmetic import Array, cast, precise
from neuronxcc.ir.dtypes import COMPLEX, FLOATS8, DType
from neuronxcc.ir.node import Node, TensorType
from neuronxcc.ir.op import Op
from neuronxcc.ir.operators.checks import (
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
    dilated,
    windows,
)
from neuronxcc.ir.operators.definition import (
    IN_F32,
    INT64,
    WIDE,
    Case,
    Cost,
    Gap,
    Kind,
    Operator,
    more_than_one,
    names,
    takes,
    tensor,
)
from neuronxcc.ir.operators.layout import padded
from neuronxcc.targets import Engine


def _pair(op: Op, lhs: TensorType, rhs: TensorType, result: DType) -> None:
    """Operands of one type; 8-bit floats may be mixed, as training does with e4m3 and e5m2."""
    check_dtype(op, lhs.dtype, NUMBERS)
    mixed8 = {lhs.dtype, rhs.dtype} <= FLOATS8 - {DType.F8E8M0}
    if lhs.dtype != rhs.dtype and not mixed8:
        raise ShapeError(op, f"operands {lhs} and {rhs}; must be of one type")
    allowed = next(s for s in (INTEGERS, REAL, COMPLEX) if lhs.dtype in s)
    check_dtype(op, result, allowed, "result")


def _operand(x: Array, result: DType) -> Array:
    return x.astype(result.numpy) if result.is_integer else precise(x)


def _rounded(total: Array, operand: DType, result: DType) -> Array:
    """Sums of narrow floats are float32 before they are rounded to the result, even to float64."""
    if operand.is_float and operand is not DType.F64:
        total = cast(total, DType.F32)
    return cast(total, result)


_OF_INTEGERS = (
    Gap(
        "NCC_EVRF035",
        lambda node: takes(node, INT64),
        says="dot does not support 64-bit integer operands on this target" + IN_F32,
        accept="dot",
    ),
    Gap(
        "NCC_EVRF035",
        lambda node: takes(node, WIDE - INT64),
        says="dot does not support 32-bit integer operands on this target" + IN_F32,
        on=lambda target: not target.core.wide_products,
        accept="dot",
    ),
)

# ---- dot_general --------------------------------------------------------------------------------


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


def dot(node: Node, lhs: Array, rhs: Array) -> Array:
    """DOT_GENERAL: as a batched matrix product."""
    batch, contract = node["lhs_batch"], node["lhs_contract"]
    rhs_batch, rhs_contract = node["rhs_batch"], node["rhs_contract"]
    rows = [d for d in range(lhs.ndim) if d not in batch + contract]
    columns = [d for d in range(rhs.ndim) if d not in rhs_batch + rhs_contract]

    def count(x: Array, dims: tuple[int, ...] | list[int]) -> int:
        return math.prod(x.shape[d] for d in dims)

    a = lhs.transpose([*batch, *rows, *contract])
    a = a.reshape(count(lhs, batch), count(lhs, rows), count(lhs, contract))
    b = rhs.transpose([*rhs_batch, *rhs_contract, *columns])
    b = b.reshape(count(rhs, rhs_batch), count(rhs, rhs_contract), count(rhs, columns))
    # Contiguous, so that the order of additions depends on extents alone.
    left, right = (np.ascontiguousarray(_operand(x, node.dtype)) for x in (a, b))
    product = np.matmul(left, right)
    return _rounded(product.reshape(node.shape), node.srcs[0].dtype, node.dtype)


def _dots() -> Iterable[Case]:
    dims = {"lhs_batch": (0,), "rhs_batch": (0,), "lhs_contract": (2,), "rhs_contract": (1,)}
    for dtype in (
        DType.F32, DType.BF16, DType.F16, DType.F8E4M3, DType.S8, DType.S32, DType.C64, DType.F64
    ):  # fmt: skip
        types = (tensor(dtype, 2, 3, 4), tensor(dtype, 2, 4, 5))
        result = DType.F32 if dtype in FLOATS8 else dtype
        yield Case(dtype.value, types, {**dims, "dtype": result}, special=False)


DOT_GENERAL = Operator(
    op=Op.DOT_GENERAL,
    kind=Kind.CONTRACTION,
    engine=Engine.TENSOR,
    cost=Cost.PRODUCTS,
    attrs=names("lhs_batch rhs_batch lhs_contract rhs_contract dtype"),
    rule=dot_rule,
    meaning=dot,
    cases=_dots,
    gaps=_OF_INTEGERS,
    complex=True,
)

# ---- convolution: groups in feature_group_count -------------------------------------------------


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


def convolution(node: Node, x: Array, w: Array) -> Array:
    """CONVOLUTION: for every group and place in the window, a product over input features."""
    x = _operand(x.transpose(node["lhs_spec"]), node.dtype)
    w = _operand(w.transpose(node["rhs_spec"]), node.dtype)
    rank = x.ndim - 2
    x = padded(x, 0, (0, 0, *node["low"]), (0, 0, *node["high"]), (1, 1, *node["lhs_dilation"]))
    out_shape = [node.shape[d] for d in node["out_spec"]]
    total = np.zeros(out_shape, x.dtype)
    groups, batch_groups = node["feature_group_count"], node["batch_group_count"]
    per_group = w.shape[0] // (groups * batch_groups)
    features, batch = w.shape[1], out_shape[0]
    for group in range(groups * batch_groups):
        outputs = slice(group * per_group, (group + 1) * per_group)
        if batch_groups > 1:
            part = x[group * batch : (group + 1) * batch]
        else:
            part = x[:, group * features : (group + 1) * features]
        for place in np.ndindex(w.shape[2:]):
            window = tuple(
                slice(p * r, p * r + (n - 1) * s + 1 if n else p * r, s)
                for p, r, n, s in zip(
                    place, node["rhs_dilation"], out_shape[2:], node["strides"], strict=True
                )
            )
            seen = part[(slice(None), slice(None), *window)]
            weights = w[(outputs, slice(None), *place)]
            product = np.tensordot(weights, seen, axes=([1], [1]))  # (out, batch, spatial...)
            total[:, outputs] += np.swapaxes(product, 0, 1)
    order = np.argsort(node["out_spec"]) if rank >= 0 else ()
    return _rounded(total.transpose(order), node.srcs[0].dtype, node.dtype)


def _convolutions() -> Iterable[Case]:
    order = (0, 1, 2, 3)
    attrs = {
        **dict.fromkeys(("strides",), (2, 2)),
        **dict.fromkeys(("low", "high", "lhs_dilation", "rhs_dilation"), (1, 1)),
        **dict.fromkeys(("lhs_spec", "rhs_spec", "out_spec"), order),
        "feature_group_count": 2,
        "batch_group_count": 1,
    }
    for dtype in (DType.F32, DType.BF16):
        types = (tensor(dtype, 2, 4, 6, 7), tensor(dtype, 6, 2, 3, 3))
        yield Case(dtype.value, types, {**attrs, "dtype": dtype}, special=False)


def _dilated_and(name: str) -> Gap:
    codes = {"rhs_dilation": "NCC_EVRF010", "strides": "NCC_EVRF011"}
    return Gap(
        codes[name],
        lambda node: more_than_one(node, "lhs_dilation") and more_than_one(node, name),
    )


CONVOLUTION = Operator(
    op=Op.CONVOLUTION,
    kind=Kind.CONTRACTION,
    engine=Engine.TENSOR,
    cost=Cost.PRODUCTS,
    attrs=names(
        "strides low high lhs_dilation rhs_dilation feature_group_count batch_group_count "
        "lhs_spec rhs_spec out_spec dtype"
    ),
    rule=convolution_rule,
    meaning=convolution,
    cases=_convolutions,
    gaps=(_dilated_and("rhs_dilation"), _dilated_and("strides"), *_OF_INTEGERS),
)

OPERATORS = (DOT_GENERAL, CONVOLUTION)
