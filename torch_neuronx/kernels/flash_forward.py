"""Attention without its matrix of weights in memory: the forward pass as a kernel of NKI."""

from __future__ import annotations

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl
from torch_neuronx.kernels.tiles import PARTITIONS, load, spans, store, transposed

__all__ = ["HIDDEN", "add_keys", "flash_forward", "softmax_state", "store_average"]

KEYS = 512  # that one product takes: what a PSUM bank holds of float32
HIDDEN = -3.0e38  # weight of a key that a query must not see, before the exponential


@nki.jit
def flash_forward(q: Any, k: Any, v: Any, scale: float, causal: bool) -> Any:
    """Softmax(q k^T * scale) v, and the logarithms of the softmax's denominators.

    Args:
        q: [batch, heads, queries, width], float32, bfloat16 or float16; width at most 128.
        k: [batch, key heads, keys, width]; the heads are a multiple of the key heads.
        v: Like k.
        scale: What products of queries and keys are multiplied by.
        causal: Query i sees the keys 0 to i.

    Returns:
        The result, like q, and float32 [batch, heads, queries]: log(sum(exp(scores))).
    """
    batch, heads, queries, _ = q.shape
    shared = heads // k.shape[1]
    out = nl.ndarray(q.shape, dtype=q.dtype, buffer=nl.shared_hbm)
    lse = nl.ndarray((batch, heads, queries), dtype=nl.float32, buffer=nl.shared_hbm)
    for b in nl.affine_range(batch):
        for group in nl.affine_range(k.shape[1]):
            keys, values = _keys(k[b, group]), _values(v[b, group])
            for head in range(group * shared, (group + 1) * shared):
                for start, end in spans(queries):
                    turned = transposed(load(q[b, head, start:end]))
                    most = end if causal else k.shape[2]
                    total, weights, largest = _attend(
                        turned, keys, values, scale, start if causal else None, most
                    )
                    _finish(
                        out[b, head, start:end], lse[b, head, start:end], total, weights,
                        largest, scale,
                    )  # fmt: skip
    return out, lse


def _keys(k: Any) -> Any:
    """The keys [n, width], as columns: [width, n]."""
    count, width = k.shape
    columns = nl.ndarray((width, count), dtype=k.dtype, buffer=nl.sbuf)
    for start, end in spans(count):
        transposed(load(k[start:end]), columns[:, start:end])
    return columns


def _values(v: Any) -> list[Any]:
    """The values in tiles of 128 keys."""
    return [load(v[start:end]) for start, end in spans(v.shape[0])]


def _attend(
    q: Any, keys: Any, values: list[Any], scale: float, first: int | None, most: int
) -> tuple[Any, Any, Any]:
    """What `softmax_state` names of queries, which are given as columns.

    `first` is the number of the first query if the attention is causal; `most` keys are looked at.
    """
    width, rows = q.shape
    kept = softmax_state(rows, width)
    for start, end in spans(min(most, keys.shape[1]), KEYS):
        scores = nl.ndarray((rows, end - start), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=scores, stationary=q, moving=keys[:, start:end])
        if first is not None and end > first + 1:
            scores = _masked(scores, first - start)
        tiles = [values[(start + a) // PARTITIONS][0 : b - a] for a, b in spans(end - start)]
        add_keys(kept, scores, tiles, scale, first=start == 0)
    return kept


def softmax_state(rows: int, width: int) -> tuple[Any, Any, Any]:
    """What `add_keys` keeps of queries: weighted sum of values, sum of weights, largest score."""
    return (
        nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.sbuf),
        nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf),
        nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf),
    )


def add_keys(
    kept: tuple[Any, Any, Any], scores: Any, values: list[Any], scale: float, *, first: bool
) -> None:
    """Add keys to an attention that goes through them part by part.

    Args:
        kept: Of the keys so far; nothing is in it yet if this is the `first` part.
        scores: Of the queries [rows] and these keys, not yet scaled.
        values: Of these keys in tiles of 128; the last one may have fewer.
        scale: Of the scores.
        first: Whether this is the first part.
    """
    total, weights, largest = kept
    rows, count = scores.shape
    top = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=top, op=nl.maximum, data=scores, axis=1)
    if not first:
        nisa.tensor_tensor(dst=top, data1=top, data2=largest, op=nl.maximum)
    shift = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=shift, data=top, op0=nl.multiply, operand0=-scale)
    p = nl.ndarray((rows, count), dtype=values[0].dtype, buffer=nl.sbuf)
    sums = weights if first else nl.ndarray((rows, 1), nl.float32, nl.sbuf)
    nisa.activation_reduce(
        dst=p, op=nl.exp, data=scores, reduce_op=nl.add, reduce_res=sums, bias=shift,
        scale=scale,
    )  # fmt: skip
    part = _weighted(p, values)
    if first:
        nisa.tensor_copy(dst=total, src=part)
    else:
        # What was summed so far, as if the new largest score had been known.
        decay = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.activation(dst=decay, op=nl.exp, data=largest, bias=shift, scale=scale)
        for before, new in ((weights, sums), (total, part)):
            nisa.scalar_tensor_tensor(
                dst=before, data=before, op0=nl.multiply, operand0=decay, op1=nl.add, operand1=new
            )
    nisa.tensor_copy(dst=largest, src=top)


def _masked(scores: Any, offset: int) -> Any:
    """Scores [queries, keys] without keys that are behind: query p sees x if p + offset >= x."""
    rows, count = scores.shape
    tile = nl.ndarray((rows, count), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=tile, src=scores)
    nisa.affine_select(
        dst=tile, pattern=[[-1, count]], channel_multiplier=1, on_true_tile=tile,
        on_false_value=HIDDEN, cmp_op=nl.greater_equal, offset=offset,
    )  # fmt: skip
    return tile


def _weighted(p: Any, values: list[Any]) -> Any:
    """Weights [queries, keys] times the values of the keys, in PSUM."""
    rows, count = p.shape
    part = nl.ndarray((rows, values[0].shape[1]), dtype=nl.float32, buffer=nl.psum)
    for (a, b), value in zip(spans(count), values, strict=True):
        nisa.nc_matmul(dst=part, stationary=transposed(p[:, a:b]), moving=value)
    return part


def store_average(out: Any, total: Any, weights: Any) -> None:
    """Store a weighted sum, divided by the sum of the weights."""
    inverse = nl.ndarray(weights.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.reciprocal(dst=inverse, data=weights)
    result = nl.ndarray(total.shape, dtype=out.dtype, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=result, data=total, op0=nl.multiply, operand0=inverse)
    nisa.dma_copy(dst=out, src=result)


def _finish(out: Any, lse: Any, total: Any, weights: Any, largest: Any, scale: float) -> None:
    rows = total.shape[0]
    store_average(out, total, weights)
    log = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=log, op=nl.log, data=weights)
    nisa.scalar_tensor_tensor(
        dst=log, data=largest, op0=nl.multiply, operand0=scale, op1=nl.add, operand1=log
    )
    store(lse.ap([[1, rows], [1, 1]]), log)
