"""Scatter and dynamic update: a kernel over the updates that stores where indices say."""

from __future__ import annotations

from collections.abc import Sequence

from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.ir.operators.checks import COMBINERS
from neuronxcc.lowering.fusion.cluster import Cluster, Storage, Write
from neuronxcc.lowering.geometry import index as ix
from neuronxcc.lowering.geometry.chains import value
from neuronxcc.lowering.geometry.index import At, Cond, Index, Value
from neuronxcc.lowering.geometry.layout import Layout
from neuronxcc.lowering.geometry.progressions import Progression, fixed_places
from neuronxcc.lowering.geometry.sources import index_at, started


def update_write(node: Node, cluster: Cluster, storage: Storage, layout: Layout) -> Write:
    """The store of a SCATTER or DYNAMIC_UPDATE_SLICE over a new space: that of the updates.

    The storage holds the operand by then. The cluster wants the updates and the indices.
    """
    places = fixed_places(node)
    if places is not None:
        return _fixed(node, places, cluster, storage, layout)
    if node.op is Op.DYNAMIC_UPDATE_SLICE:
        return _window(node, cluster, storage, layout)
    return _scatter(node, cluster, storage, layout)


def _fixed(
    node: Node,
    places: Sequence[Progression],
    cluster: Cluster,
    storage: Storage,
    layout: Layout,
) -> Write:
    update = value(node)
    at = cluster.identity(update.shape)
    coords = tuple(
        ix.shift(ix.scale(coordinate, place.step), place.start)
        for coordinate, place in zip(at.coords, places, strict=True)
    )
    cluster.want(update, at)
    return Write(update, at, storage, coords, layout.strides, layout.offset)


def _window(node: Node, cluster: Cluster, storage: Storage, layout: Layout) -> Write:
    x, update, *starts = node.srcs
    at = cluster.identity(update.shape)
    scalar = At(())
    coords = tuple(
        ix.add(coordinate, started(start, scalar, 0, extent - size))
        for coordinate, start, extent, size in zip(
            at.coords, starts, x.shape, update.shape, strict=True
        )
    )
    cluster.want(update, at)
    _want_values(cluster, At(coords))
    return Write(update, at, storage, coords, layout.strides, layout.offset)


def _scatter(node: Node, cluster: Cluster, storage: Storage, layout: Layout) -> Write:
    x, indices, updates = node.srcs
    at = cluster.identity(updates.shape)
    window_dims = node["update_window_dims"]
    batch = tuple(c for d, c in enumerate(at.coords) if d not in window_dims)
    window = iter([(at.coords[d], updates.shape[d]) for d in window_dims])
    vector_dim = node["index_vector_dim"]
    batching = dict(
        zip(node["input_batching_dims"], node["scatter_indices_batching_dims"], strict=True)
    )
    parts = {dim: part for part, dim in enumerate(node["scatter_dims_to_operand_dims"])}
    coords: list[Index] = []
    mask: list[Cond] = []
    for dim, extent in enumerate(x.shape):
        if dim in batching:
            place = batching[dim]
            coords.append(batch[place - (place > vector_dim)])
            continue
        inside, size = ix.ZERO, 1
        if dim not in node["inserted_window_dims"]:
            inside, size = next(window)
        if dim in parts:
            where = index_at(batch, vector_dim, indices.type.rank, parts[dim])
            start = ix.of_term(Value(indices, At(where), 1, 0))
            mask.append(Cond(start, 0, extent - size + 1))
            inside = ix.add(inside, start)
        coords.append(inside)
    cluster.want(updates, at)
    _want_values(cluster, At(tuple(coords)))
    combine = COMBINERS.get(node["kind"])
    return Write(
        updates, at, storage, tuple(coords), layout.strides, layout.offset, tuple(mask), combine
    )


def _want_values(cluster: Cluster, at: At) -> None:
    ix.values_of(at, lambda value: cluster.want(value.node, value.at))
