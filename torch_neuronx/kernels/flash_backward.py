"""Attention without its matrix of weights in memory: the backward pass as a kernel of NKI."""

from __future__ import annotations

from typing import Any, NamedTuple

import nki
import nki.isa as nisa
import nki.language as nl
from torch_neuronx.kernels.flash_forward import KEYS
from torch_neuronx.kernels.tiles import load, spans, transposed

__all__ = ["flash_backward"]


@nki.jit
def flash_backward(
    grad: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, scale: float, causal: bool
) -> Any:
    """Gradients of `flash_forward` from its arguments and results.

    Args:
        grad: Of the result, like `q`.
        q: As there.
        k: As there.
        v: As there.
        out: The result.
        lse: The logarithms.
        scale: As there.
        causal: As there.

    Returns:
        Gradients of q, k and v, of their shapes and types.
    """
    shared = q.shape[1] // k.shape[1]
    dq = nl.ndarray(q.shape, dtype=q.dtype, buffer=nl.shared_hbm)
    dk = nl.ndarray(k.shape, dtype=k.dtype, buffer=nl.shared_hbm)
    dv = nl.ndarray(v.shape, dtype=v.dtype, buffer=nl.shared_hbm)
    for b in nl.affine_range(q.shape[0]):
        for group in nl.affine_range(k.shape[1]):
            heads = range(group * shared, (group + 1) * shared)
            queries = [_queries(q[b, h], grad[b, h], out[b, h], lse[b, h]) for h in heads]
            for start, end in spans(k.shape[2], KEYS):
                keys = _keys(k[b, group, start:end], v[b, group, start:end])
                for tiles in queries:
                    for tile in tiles:
                        if not causal or tile.end > start:
                            _accumulate(tile, keys, start, scale, causal)
                for (a, z), key_sum, value_sum in zip(
                    spans(end - start), keys.key_sums, keys.value_sums, strict=True
                ):
                    _store_sum(dk[b, group, start + a : start + z], key_sum, scale)
                    _store_sum(dv[b, group, start + a : start + z], value_sum, 1.0)
            for head, tiles in zip(heads, queries, strict=True):
                for tile in tiles:
                    _store_sum(dq[b, head, tile.start : tile.end], tile.total, scale)
    return dq, dk, dv


class _Queries(NamedTuple):
    """A tile of queries: rows, the same as columns, gradients of the result, and sums."""

    start: int
    end: int
    rows: Any
    columns: Any
    grad: Any
    grad_columns: Any
    negative_lse: Any
    delta: Any  # sum(grad * out)
    total: Any  # of their gradient so far, without the scale


class _Keys(NamedTuple):
    """Keys and values of one block."""

    rows: list[Any]
    columns: Any
    value_columns: Any
    key_sums: list[Any]
    value_sums: list[Any]


def _queries(q: Any, grad: Any, out: Any, lse: Any) -> list[_Queries]:
    found = []
    for start, end in spans(q.shape[0]):
        rows, given = load(q[start:end]), load(grad[start:end])
        count, width = rows.shape
        product = nl.ndarray((count, width), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=product, data1=given, data2=load(out[start:end]), op=nl.multiply)
        delta = nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=delta, op=nl.add, data=product, axis=1)
        negative = nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=negative, src=lse[start:end].ap([[1, count], [1, 1]]))
        nisa.tensor_scalar(dst=negative, data=negative, op0=nl.multiply, operand0=-1.0)
        total = nl.ndarray((count, width), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=total, value=0.0)
        found.append(
            _Queries(
                start, end, rows, transposed(rows), given, transposed(given), negative, delta, total
            )
        )
    return found


def _keys(k: Any, v: Any) -> _Keys:
    count, width = k.shape
    columns = nl.ndarray((width, count), dtype=k.dtype, buffer=nl.sbuf)
    value_columns = nl.ndarray((width, count), dtype=v.dtype, buffer=nl.sbuf)
    rows: list[Any] = []
    key_sums: list[Any] = []
    value_sums: list[Any] = []
    for start, end in spans(count):
        rows.append(load(k[start:end]))
        transposed(rows[-1], columns[:, start:end])
        transposed(load(v[start:end]), value_columns[:, start:end])
        for sums in (key_sums, value_sums):
            total = nl.ndarray((end - start, width), dtype=nl.float32, buffer=nl.sbuf)
            nisa.memset(dst=total, value=0.0)
            sums.append(total)
    return _Keys(rows, columns, value_columns, key_sums, value_sums)


def _accumulate(tile: _Queries, keys: _Keys, first: int, scale: float, causal: bool) -> None:
    """Add what one tile of queries and one block of keys, from `first` on, give to the sums."""
    rows, count = tile.end - tile.start, keys.columns.shape[1]
    scores = nl.ndarray((rows, count), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=scores, stationary=tile.columns, moving=keys.columns)
    p = nl.ndarray((rows, count), dtype=tile.rows.dtype, buffer=nl.sbuf)
    nisa.activation(dst=p, op=nl.exp, data=scores, bias=tile.negative_lse, scale=scale)
    if causal and first + count > tile.start + 1:
        nisa.affine_select(
            dst=p, pattern=[[-1, count]], channel_multiplier=1, on_true_tile=p,
            on_false_value=0.0, cmp_op=nl.greater_equal, offset=tile.start - first,
        )  # fmt: skip
    dp = nl.ndarray((rows, count), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=dp, stationary=tile.grad_columns, moving=keys.value_columns)
    ds = nl.ndarray((rows, count), dtype=tile.rows.dtype, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(
        dst=ds, data=dp, op0=nl.subtract, operand0=tile.delta, op1=nl.multiply, operand1=p
    )
    part = nl.ndarray(tile.total.shape, dtype=nl.float32, buffer=nl.psum)
    for number, (a, b) in enumerate(spans(count)):
        _add_product(keys.value_sums[number], p[:, a:b], tile.grad)
        _add_product(keys.key_sums[number], ds[:, a:b], tile.rows)
        nisa.nc_matmul(dst=part, stationary=transposed(ds[:, a:b]), moving=keys.rows[number])
    nisa.tensor_tensor(dst=tile.total, data1=tile.total, data2=part, op=nl.add)


def _add_product(total: Any, stationary: Any, moving: Any) -> None:
    part = nl.ndarray(total.shape, dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=part, stationary=stationary, moving=moving)
    nisa.tensor_tensor(dst=total, data1=total, data2=part, op=nl.add)


def _store_sum(dst: Any, total: Any, scale: float) -> None:
    tile = nl.ndarray(total.shape, dtype=dst.dtype, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=tile, data=total, op0=nl.multiply, operand0=scale)
    nisa.dma_copy(dst=dst, src=tile)
