"""Dot products and convolutions in NumPy.

Floats are multiplied and summed in float64 and rounded by way of float32: the value that every
order of float32 additions approximates. Integers wrap in the type of the result.
"""

from __future__ import annotations

import math

import numpy as np

from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.meaning.elementwise import Array, cast, precise
from neuronxcc.ir.meaning.movement import padded
from neuronxcc.ir.node import Node


def _operand(x: Array, result: DType) -> Array:
    return x.astype(result.numpy) if result.is_integer else precise(x)


def _rounded(total: Array, operand: DType, result: DType) -> Array:
    """Sums of narrow floats are float32 before they are rounded to the result, even to float64."""
    if operand.is_float and operand is not DType.F64:
        total = cast(total, DType.F32)
    return cast(total, result)


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
