"""Operators that move elements, in NumPy; gather and scatter by XLA's rules, window by window."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from neuronxcc.ir.meaning.elementwise import Array, arithmetic, cast, maximum, minimum
from neuronxcc.ir.node import Node

Window = tuple[slice, ...]


def iota(node: Node) -> Array:
    """IOTA."""
    dim, shape = node["dim"], node.shape
    along = np.arange(shape[dim], dtype=np.int64).reshape(
        [n if d == dim else 1 for d, n in enumerate(shape)]
    )
    return cast(np.broadcast_to(along, shape), node.dtype)


def broadcast(node: Node, x: Array) -> Array:
    """BROADCAST_IN_DIM."""
    aligned = [1] * len(node["shape"])
    for extent, dim in zip(x.shape, node["dims"], strict=True):
        aligned[dim] = extent
    return np.broadcast_to(x.reshape(aligned), node["shape"])


def reshape(node: Node, x: Array) -> Array:
    """RESHAPE."""
    return x.reshape(node["shape"])


def transpose(node: Node, x: Array) -> Array:
    """TRANSPOSE."""
    return x.transpose(node["permutation"])


def slice_(node: Node, x: Array) -> Array:
    """SLICE."""
    return x[tuple(map(slice, node["starts"], node["limits"], node["strides"]))]


def pad(node: Node, x: Array, value: Array) -> Array:
    """PAD."""
    return padded(x, value, node["low"], node["high"], [i + 1 for i in node["interior"]])


def padded(x: Array, value: Any, low: Any, high: Any, distance: Any) -> Array:
    """Put elements `distance` apart, then pad with value or, where negative, cut off."""
    spread = [(n - 1) * d + 1 if n else 0 for n, d in zip(x.shape, distance, strict=True)]
    inner = np.full(spread, value, x.dtype)
    inner[tuple(slice(None, None, d) for d in distance)] = x
    shape = [max(n + a + b, 0) for n, a, b in zip(spread, low, high, strict=True)]
    result = np.full(shape, value, x.dtype)
    source, target = [], []
    for n, out, a in zip(spread, shape, low, strict=True):
        first, place = max(-a, 0), max(a, 0)
        count = max(min(n - first, out - place), 0)
        source.append(slice(first, first + count))
        target.append(slice(place, place + count))
    result[tuple(target)] = inner[tuple(source)]
    return result


def concatenate(node: Node, *parts: Array) -> Array:
    """CONCATENATE."""
    return np.concatenate(parts, node["dim"])


def reverse(node: Node, x: Array) -> Array:
    """REVERSE."""
    return np.flip(x, node["dims"])


def _window(x: Array, starts: Any, sizes: Any) -> Window:
    """A window whose starts are clamped so that it lies inside."""
    clamped = [
        min(max(int(s), 0), n - size) for s, n, size in zip(starts, x.shape, sizes, strict=True)
    ]
    return tuple(slice(s, s + size) for s, size in zip(clamped, sizes, strict=True))


def dynamic_slice(node: Node, x: Array, *starts: Array) -> Array:
    """DYNAMIC_SLICE."""
    return x[_window(x, starts, node["sizes"])]


def dynamic_update_slice(_node: Node, x: Array, update: Array, *starts: Array) -> Array:
    """DYNAMIC_UPDATE_SLICE."""
    result = x.copy()
    result[_window(x, starts, update.shape)] = update
    return result


def _batches(
    node: Node, indices: Array, mapped: str, batching: str, of_indices: str
) -> Iterator[tuple[tuple[int, ...], list[int]]]:
    """Every position of the indices (without the index vector) with its start in the operand.

    The last three are the names of the attributes, which differ between gather and scatter.
    """
    vector_dim = node["index_vector_dim"]
    if vector_dim == indices.ndim:
        indices = indices[..., None]
    vectors = np.moveaxis(indices, vector_dim, -1)
    # A batching dimension's place among the dimensions without the index vector.
    places = [d - (d > vector_dim) for d in node[of_indices]]
    for position in np.ndindex(vectors.shape[:-1]):
        start = [0] * node.srcs[0].type.rank
        for dim, value in zip(node[mapped], vectors[position], strict=True):
            start[dim] = int(value)
        for dim, place in zip(node[batching], places, strict=True):
            start[dim] = position[place]
        yield position, start


def gather(node: Node, x: Array, indices: Array) -> Array:
    """GATHER."""
    result = np.empty(node.shape, x.dtype)
    offset = node["offset_dims"]
    dropped = {*node["collapsed_slice_dims"], *node["operand_batching_dims"]}
    batch_dims = [d for d in range(result.ndim) if d not in offset]
    for position, start in _batches(
        node, indices, "start_index_map", "operand_batching_dims", "start_indices_batching_dims"
    ):
        window = x[_window(x, start, node["slice_sizes"])]
        where: list[int | slice] = [slice(None)] * result.ndim
        for dim, place in zip(batch_dims, position, strict=True):
            where[dim] = place
        kept = [n for d, n in enumerate(window.shape) if d not in dropped]
        result[tuple(where)] = window.reshape(kept)
    return result


COMBINE: dict[str, Callable[[Array, Array], Array]] = {
    "set": lambda _old, new: new,
    "add": np.add,
    "mul": np.multiply,
    "min": minimum,
    "max": maximum,
}


def scatter(node: Node, x: Array, indices: Array, updates: Array) -> Array:
    """SCATTER. A window that does not lie inside is left out."""
    result = x.copy()
    window_dims = node["update_window_dims"]
    dropped = {*node["inserted_window_dims"], *node["input_batching_dims"]}
    sizes = [1] * x.ndim
    for dim, size_dim in zip(
        [d for d in range(x.ndim) if d not in dropped], window_dims, strict=True
    ):
        sizes[dim] = updates.shape[size_dim]
    batch_dims = [d for d in range(updates.ndim) if d not in window_dims]
    for position, start in _batches(
        node,
        indices,
        "scatter_dims_to_operand_dims",
        "input_batching_dims",
        "scatter_indices_batching_dims",
    ):
        ends = zip(start, sizes, x.shape, strict=True)
        if any(s < 0 or s + size > n for s, size, n in ends):
            continue
        where = tuple(slice(s, s + size) for s, size in zip(start, sizes, strict=True))
        which: list[int | slice] = [slice(None)] * updates.ndim
        for dim, place in zip(batch_dims, position, strict=True):
            which[dim] = place
        update = updates[tuple(which)].reshape(sizes)
        if node["kind"] == "set":
            result[where] = update
        else:
            combined = COMBINE[node["kind"]](arithmetic(result[where]), arithmetic(update))
            result[where] = cast(combined, node.dtype)
    return result
