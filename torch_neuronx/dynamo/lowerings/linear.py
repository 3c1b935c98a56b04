"""Matrix products. Sums are float32 for narrow types and rounded once, also over an addition."""

from __future__ import annotations

import torch

from neuronxcc.ir import build as b
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node
from torch_neuronx.dynamo import emit as e
from torch_neuronx.dynamo.dtypes import Scalar, compute_dtype
from torch_neuronx.dynamo.lowerings.grouped import scaled_by_device
from torch_neuronx.dynamo.lowerings.pointwise import finish
from torch_neuronx.dynamo.registry import Context, lowers

aten = torch.ops.aten


def _product(cx: Context, x: Node, y: Node) -> Node:
    """The matrix product in the type that sums are in; boolean and empty operands included."""
    # Truth values are multiplied by PyTorch only if there are none.
    dtype = DType.S32 if cx.dtype is DType.PRED else compute_dtype(cx.dtype)
    if x.dtype is DType.PRED:
        x, y = b.convert(x, dtype), b.convert(y, dtype)
    if x.type.rank == 3:
        batch = (0,)
        return b.dot_general(
            x, y, lhs_batch=batch, rhs_batch=batch, lhs_contract=(2,), rhs_contract=(1,),
            dtype=dtype,
        )  # fmt: skip
    return b.dot_general(x, y, lhs_contract=(-1,), rhs_contract=(0,), dtype=dtype)


@lowers(aten.mm.default, aten.bmm.default, aten.mv.default, aten.mm.dtype, aten.bmm.dtype)
def mm(cx: Context, x: Node, y: Node, out_dtype: object = None) -> Node:
    del out_dtype
    return finish(cx, _product(cx, x, y))


@lowers(aten.dot.default)
def dot(cx: Context, x: Node, y: Node) -> Node:
    return finish(cx, _product(cx, x, y))


@lowers(aten.vdot.default)
def vdot(cx: Context, x: Node, y: Node) -> Node:
    return finish(cx, _product(cx, b.conj(x) if x.dtype.is_complex else x, y))


@lowers(
    aten.addmm.default,
    aten.baddbmm.default,
    aten.addmv.default,
    aten.addmm.dtype,
    aten.baddbmm.dtype,
)
def addmm(
    cx: Context,
    bias: Node,
    x: Node,
    y: Node,
    out_dtype: object = None,
    *,
    beta: Scalar = 1,
    alpha: Scalar = 1,
) -> Node:
    del out_dtype
    product = e.scaled(_product(cx, x, y), alpha)
    if e.is_zero(beta):  # NaN in the bias is ignored then, as in PyTorch
        return finish(cx, product)
    extra = b.broadcast_to(e.scaled(b.convert(bias, product.dtype), beta), product.shape)
    return finish(cx, b.add(product, extra))


@lowers(aten._addmm_activation.default)
def addmm_activation(
    cx: Context,
    bias: Node,
    x: Node,
    y: Node,
    *,
    beta: Scalar = 1,
    alpha: Scalar = 1,
    use_gelu: bool = False,
) -> Node:
    from torch_neuronx.dynamo.lowerings.activation import gelu  # noqa: PLC0415

    result = addmm(cx, bias, x, y, beta=beta, alpha=alpha)
    if use_gelu:
        return gelu(cx, result, approximate="tanh")
    return b.maximum(result, e.like(result, 0))


@lowers(aten.addbmm.default)
def addbmm(
    cx: Context, bias: Node, x: Node, y: Node, *, beta: Scalar = 1, alpha: Scalar = 1
) -> Node:
    total = b.reduce(_product(cx, x, y), "add", 0)
    total = e.scaled(total, alpha)
    if not e.is_zero(beta):
        extra = e.scaled(b.convert(bias, total.dtype), beta)
        total = b.add(total, b.broadcast_to(extra, total.shape))
    return finish(cx, total)


@lowers(aten.addr.default)
def addr(cx: Context, bias: Node, x: Node, y: Node, *, beta: Scalar = 1, alpha: Scalar = 1) -> Node:
    if cx.dtype is DType.PRED:
        column, row = (b.broadcast_in_dim(v, cx.shape, (d,)) for d, v in enumerate((x, y)))
        outer = b.and_(column, row) if alpha else e.number(0, DType.PRED, cx.shape)
        return b.or_(outer, b.broadcast_to(bias, cx.shape)) if beta else outer
    wide = compute_dtype(cx.dtype)
    column, row = (
        b.broadcast_in_dim(b.convert(v, wide), cx.shape, (d,)) for d, v in enumerate((x, y))
    )
    outer = e.times(b.multiply(column, row), alpha)
    if not e.is_zero(beta):
        extra = e.times(b.convert(bias, wide), beta)
        outer = b.add(b.broadcast_to(extra, cx.shape), outer)
    return finish(cx, outer)


@lowers(aten._int_mm.default)
def int_mm(_cx: Context, x: Node, y: Node) -> Node:
    return b.dot_general(x, y, lhs_contract=(1,), rhs_contract=(0,), dtype=DType.S32)


@lowers(aten._scaled_mm.default)
def scaled_mm(
    cx: Context,
    x: Node,
    y: Node,
    scale_x: Node,
    scale_y: Node,
    bias: Node | None = None,
    scale_result: Node | None = None,
    out_dtype: object = None,
    use_fast_accum: bool = False,
) -> Node:
    """Float8 matrices with a scale per tensor, or per row of x and column of y.

    Scales of blocks are the device's own kernel's.
    """
    rows, columns = ((x.shape[0], 1), (), (1,), (1, 1)), ((1, y.shape[1]), (), (1,), (1, 1))
    if scale_x.shape not in rows or scale_y.shape not in columns or scale_result is not None:
        args = (x, y, scale_x, scale_y, bias, scale_result, out_dtype, use_fast_accum)
        return scaled_by_device(cx, *args)
    product = b.dot_general(x, y, lhs_contract=(1,), rhs_contract=(0,), dtype=DType.F32)
    for scale in (scale_x, scale_y):
        scale = b.reshape(scale, ()) if scale.type.size == 1 else scale  # noqa: PLW2901
        product = b.multiply(product, b.broadcast_to(b.convert(scale, DType.F32), product.shape))
    if bias is not None:
        product = b.add(product, b.broadcast_to(b.convert(bias, DType.F32), product.shape))
    return finish(cx, product)
