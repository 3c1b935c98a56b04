"""Small graphs of any extents, for what is to hold of all device programs."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from neuronxcc.ir import build, indexing
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import Graph
from neuronxcc.ir.node import Node

from .device_tools import given_, graph_of

__all__ = ["FAMILIES", "extents_of"]


def product(dtype: DType, m: int, k: int, n: int) -> Graph:
    return graph_of(build.exp(build.matmul(given_(0, dtype, m, k), given_(1, dtype, k, n))))


def products(dtype: DType, batch: int, m: int, k: int, n: int) -> Graph:
    return graph_of(build.matmul(given_(0, dtype, batch, m, k), given_(1, dtype, batch, k, n)))


def pointwise(dtype: DType, rows: int, columns: int) -> Graph:
    x, y = (given_(i, dtype, rows, columns) for i in range(2))
    return graph_of(build.tanh(build.multiply(build.add(x, y), x)))


def reduction(dtype: DType, outer: int, kept: int, inner: int) -> Graph:
    return graph_of(build.reduce(build.exp(given_(0, dtype, outer, kept, inner)), "add", (0, 2)))


def normed(x: Node) -> Node:
    """A softmax of the last dimension."""
    top = build.broadcast_to(build.reduce(x, "max", (x.type.rank - 1,), keep=True), x.shape)
    powers = build.exp(build.subtract(x, top))
    sums = build.reduce(powers, "add", (x.type.rank - 1,), keep=True)
    return build.divide(powers, build.broadcast_to(sums, x.shape))


def softmax(dtype: DType, rows: int, columns: int) -> Graph:
    return graph_of(normed(given_(0, dtype, rows, columns)))


def attention(dtype: DType, heads: int, queries: int, keys: int, width: int) -> Graph:
    q, k, v = (given_(i, dtype, heads, n, width) for i, n in enumerate((queries, keys, keys)))
    return graph_of(build.matmul(normed(build.matmul(q, build.swap_dims(k))), v))


def layers(dtype: DType, rows: int, width: int, inner: int) -> Graph:
    """Two products with a gate between, and what went in is added."""
    x = given_(0, dtype, rows, width)
    hidden = build.matmul(x, given_(1, dtype, width, inner))
    hidden = build.multiply(hidden, build.logistic(hidden))
    return graph_of(build.add(x, build.matmul(hidden, given_(2, dtype, inner, width))))


def convolution(dtype: DType, images: int, channels: int, size: int, made: int) -> Graph:
    x, w = given_(0, dtype, images, channels, size, size), given_(1, dtype, made, channels, 3, 3)
    return graph_of(build.convolution(x, w, low=1, high=1))


def pooling(dtype: DType, images: int, channels: int, size: int) -> Graph:
    x = given_(0, dtype, images, channels, size, size)
    return graph_of(
        build.reduce_window(x, "max", (1, 1, 3, 3), low=(0, 0, 1, 1), high=(0, 0, 1, 1))
    )


def turned(dtype: DType, rows: int, columns: int) -> Graph:
    return graph_of(build.add(build.transpose(given_(0, dtype, rows, columns), (1, 0)), 1.0))


def moved(dtype: DType, outer: int, rows: int, columns: int) -> Graph:
    x = given_(0, dtype, outer, rows, columns)
    swapped = build.transpose(x, (1, 0, 2))
    return graph_of(build.concatenate([swapped, swapped], 0))


def padded(dtype: DType, rows: int, columns: int) -> Graph:
    return graph_of(build.pad(given_(0, dtype, rows, columns), 0.0, (1, 2), (3, 4)))


def running(dtype: DType, rows: int, columns: int) -> Graph:
    return graph_of(build.cumulative(given_(0, dtype, rows, columns), "add", 1))


def place(dtype: DType, rows: int, columns: int) -> Graph:
    return graph_of(build.arg_reduce(given_(0, dtype, rows, columns), "max", 1))


def rows_taken(dtype: DType, rows: int, columns: int, taken: int) -> Graph:
    """As an embedding is."""
    table, where = given_(0, dtype, rows, columns), given_(1, DType.S32, taken)
    return graph_of(indexing.take(table, where, 0))


def rows_added(dtype: DType, rows: int, columns: int, added: int) -> Graph:
    """As the gradient of an embedding is."""
    where = build.broadcast_in_dim(given_(1, DType.S32, added), (added, columns), (0,))
    table, updates = given_(0, dtype, rows, columns), given_(2, dtype, added, columns)
    return graph_of(indexing.put_along(table, where, updates, 0, "add"))


def chosen(dtype: DType, rows: int, columns: int) -> Graph:
    best = build.topk(given_(0, dtype, rows, columns + 8), 8)
    return graph_of(build.get(best, 0), build.get(best, 1))


#: Graphs by their number type and extents.
FAMILIES: tuple[Callable[..., Graph], ...] = (
    product, products, pointwise, reduction, softmax, attention, layers, convolution, pooling,
    turned, moved, padded, running, place, rows_taken, rows_added, chosen,
)  # fmt: skip


def extents_of(family: Callable[..., Graph]) -> int:
    """How many extents a family has."""
    return len(inspect.signature(family).parameters) - 1
