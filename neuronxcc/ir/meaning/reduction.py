"""Reductions, windows, scans and sorts in NumPy.

Sums and products of floats are taken in float64 and rounded by way of float32: the value that every
order of float32 additions approximates. Integers wrap in their own type.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce as fold
from typing import Any

import numpy as np

from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.meaning.elementwise import Array, arithmetic, cast, maximum, minimum, precise
from neuronxcc.ir.meaning.movement import padded
from neuronxcc.ir.node import Node

COMBINE: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "mul": np.multiply,
    "min": minimum,
    "max": maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "logaddexp": np.logaddexp,
}


def neutral(kind: str, dtype: DType) -> Any:
    """The value that changes nothing when combined, as a NumPy scalar of the type."""
    of = dtype.numpy.type
    if kind in ("min", "max"):
        low, high = _extremes(dtype)
        return of(high if kind == "min" else low)
    zero = of(0)
    every = {"add": zero, "or": zero, "xor": zero, "mul": of(1), "logaddexp": -np.inf}
    return every[kind] if kind in every else np.invert(zero)  # and: all bits set


def _extremes(dtype: DType) -> tuple[Any, Any]:
    if dtype is DType.PRED:
        return 0, 1
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        return info.min, info.max
    if dtype is DType.F8E4M3FN:  # has no infinity
        return -448.0, 448.0
    return -np.inf, np.inf


def _sum_type(x: Array, kind: str) -> Array:
    return precise(x) if kind in ("add", "mul", "logaddexp") else arithmetic(x)


def reduce(node: Node, x: Array) -> Array:
    """REDUCE: the elements to combine become the first dimension, combined one by one."""
    dims, kind = node["dims"], node["kind"]
    kept = [d for d in range(x.ndim) if d not in dims]
    if not x.size:
        return np.full(node.shape, neutral(kind, node.dtype), node.dtype.numpy)
    rows = x.transpose([*dims, *kept]).reshape(-1, *node.shape)
    wide = _sum_type(rows, kind)
    return cast(fold(COMBINE[kind], wide), node.dtype)


def arg_reduce(node: Node, x: Array) -> Array:
    """ARG_REDUCE: NumPy also takes the first, and the first NaN."""
    of = np.argmax if node["kind"] == "max" else np.argmin
    return np.asarray(of(arithmetic(x), axis=node["dim"]), node.dtype.numpy)


def _places(node: Node, out: tuple[int, ...]) -> list[tuple[slice, ...]]:
    """For every place in the window, the elements of the padded operand that lie there."""
    holes = node.get("window_dilation", (1,) * len(out))
    steps = list(zip(holes, out, node["strides"], strict=True))
    return [
        tuple(
            slice(p * h, p * h + (n - 1) * s + 1 if n else p * h, s)
            for p, (h, n, s) in zip(place, steps, strict=True)
        )
        for place in np.ndindex(node["window"])
    ]


def reduce_window(node: Node, x: Array) -> Array:
    """REDUCE_WINDOW."""
    kind = node["kind"]
    fill = neutral(kind, node.dtype)
    wide = _sum_type(padded(x, fill, node["low"], node["high"], node["base_dilation"]), kind)
    if not np.prod(node.shape):
        return np.empty(node.shape, node.dtype.numpy)
    return cast(
        fold(COMBINE[kind], [wide[place] for place in _places(node, node.shape)]), node.dtype
    )


def select_and_scatter(node: Node, x: Array, source: Array) -> Array:
    """SELECT_AND_SCATTER: window by window."""
    kind = node["kind"]
    total = np.full(x.shape, neutral(kind, node.dtype), node.dtype.numpy)
    total = _sum_type(total, kind)
    beats: Callable[[Any, Any], Any] = operator.gt if node["select"] == "max" else operator.lt

    def better(new: Any, best: Any) -> bool:
        return bool(beats(new, best) or (np.isnan(new) and not np.isnan(best)))

    values = arithmetic(x)
    for position in np.ndindex(source.shape):
        first = [
            p * s - low for p, s, low in zip(position, node["strides"], node["low"], strict=True)
        ]
        chosen: tuple[int, ...] | None = None
        for place in np.ndindex(node["window"]):
            where = tuple(a + b for a, b in zip(first, place, strict=True))
            if any(not 0 <= i < n for i, n in zip(where, x.shape, strict=True)):
                continue
            if chosen is None or better(values[where], values[chosen]):
                chosen = where
        if chosen is not None:
            update = _sum_type(np.asarray(source[position]), kind)
            total[chosen] = COMBINE[kind](total[chosen], update)
    return cast(total, node.dtype)


def cumulative(node: Node, x: Array) -> Array:
    """CUMULATIVE."""
    rows = np.moveaxis(_sum_type(x, node["kind"]), node["dim"], 0).copy()
    for i in range(1, rows.shape[0]):
        rows[i] = COMBINE[node["kind"]](rows[i - 1], rows[i])
    return cast(np.moveaxis(rows, 0, node["dim"]), node.dtype)


def order(key: Array, dim: int, *, descending: bool) -> Array:
    """Stable sorting positions; NaN is largest, -0.0 equals 0.0, equals keep their order."""
    values = arithmetic(key)
    if not descending:
        return np.argsort(values, axis=dim, kind="stable")
    # Sorted backwards from the back, equals come out in their order.
    turned = np.argsort(np.flip(values, dim), axis=dim, kind="stable")
    return np.flip(key.shape[dim] - 1 - turned, dim)


def sort(node: Node, *operands: Array) -> tuple[Array, ...]:
    """SORT."""
    places = order(operands[0], node["dim"], descending=node["descending"])
    return tuple(np.take_along_axis(x, places, node["dim"]) for x in operands)


def topk(node: Node, x: Array) -> tuple[Array, Array]:
    """TOPK."""
    places = order(x, -1, descending=node["largest"])[..., : node["k"]]
    return np.take_along_axis(x, places, -1), places.astype(np.int64)
