"""Where operands are read so that an operator can be computed at a position: a rule per operator.

Every rule is pure: the same position gives the same answer, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.ir.table import Group
from neuronxcc.lowering.geometry import index as ix
from neuronxcc.lowering.geometry.index import At, Cond, Index, Quotient, Remainder, Space, Value
from neuronxcc.lowering.geometry.progressions import fixed_places

Source = tuple[Node, At]
Rule = Callable[[Node, At, Space], tuple[Source, ...]]


def sources(node: Node, at: At, space: Space, over: tuple[Index, ...] = ()) -> tuple[Source, ...]:
    """The elements of operands from which the element `at` of the node is computed.

    Args:
        node: Of an operator in classify.SOFT or REDUCTIONS, or an update that `is_choice`.
        at: A position of the node.
        space: In which it is expressed.
        over: For reductions: positions along the reduced dimensions.

    Raises:
        index.SplitNeeded: the answer would be affine if an axis were split.
    """
    if node.op is Op.REDUCE_WINDOW:
        return _window(node, at, space, over)
    if node.op in (Op.REDUCE, Op.ARG_REDUCE):
        return _reduce(node, at, over)
    return _RULES[node.op](node, at, space)


def _same(node: Node, at: At, _space: Space) -> tuple[Source, ...]:
    return tuple((src, at) for src in node.srcs)


def _reduce(node: Node, at: At, over: tuple[Index, ...]) -> tuple[Source, ...]:
    dims = node["dims"] if node.op is Op.REDUCE else (node["dim"],)
    kept, reduced = iter(at.coords), iter(over)
    rank = node.srcs[0].type.rank
    coords = tuple(next(reduced) if d in dims else next(kept) for d in range(rank))
    return ((node.srcs[0], At(coords, at.mask)),)


def _broadcast(node: Node, at: At, _space: Space) -> tuple[Source, ...]:
    src = node.srcs[0]
    pairs = zip(src.shape, node["dims"], strict=True)
    coords = tuple(ix.ZERO if extent == 1 else at.coords[dim] for extent, dim in pairs)
    return ((src, At(coords, at.mask)),)


def _reshape(node: Node, at: At, space: Space) -> tuple[Source, ...]:
    src = node.srcs[0]
    return ((src, At(ix.reshape(at.coords, node.shape, src.shape, space), at.mask)),)


def _transpose(node: Node, at: At, _space: Space) -> tuple[Source, ...]:
    coords = [ix.ZERO] * node.type.rank
    for dim, coordinate in zip(node["permutation"], at.coords, strict=True):
        coords[dim] = coordinate
    return ((node.srcs[0], At(tuple(coords), at.mask)),)


def _slice(node: Node, at: At, _space: Space) -> tuple[Source, ...]:
    parts = zip(at.coords, node["starts"], node["strides"], strict=True)
    coords = tuple(ix.shift(ix.scale(c, step), start) for c, start, step in parts)
    return ((node.srcs[0], At(coords, at.mask)),)


def _reverse(node: Node, at: At, _space: Space) -> tuple[Source, ...]:
    turned = node["dims"]
    coords = tuple(
        ix.shift(ix.scale(c, -1), n - 1) if d in turned else c
        for d, (c, n) in enumerate(zip(at.coords, node.shape, strict=True))
    )
    return ((node.srcs[0], At(coords, at.mask)),)


def within(index: Index, low: int, high: int, space: Space) -> tuple[Cond, ...]:
    """The condition low <= index < high, nothing if that is always so."""
    limits = ix.bounds(index, space.extents)
    if limits is not None and low <= limits[0] and limits[1] < high:
        return ()
    return (Cond(index, low, high),)


def joined(*masks: tuple[Cond, ...]) -> tuple[Cond, ...]:
    """All conditions, each once."""
    return tuple(dict.fromkeys(cond for mask in masks for cond in mask))


def _pad(node: Node, at: At, space: Space) -> tuple[Source, ...]:
    x, fill = node.srcs
    inner = _unpadded(at, x.shape, node["low"], node["interior"], space)
    return ((x, inner), (fill, At((), at.mask)))


def _window(node: Node, at: At, space: Space, over: tuple[Index, ...]) -> tuple[Source, ...]:
    (x,) = node.srcs
    parts = zip(at.coords, node["strides"], over, node["window_dilation"], strict=True)
    coords = tuple(
        ix.weighted(((position, stride), (place, holes)))
        for position, stride, place, holes in parts
    )
    holes = tuple(dilation - 1 for dilation in node["base_dilation"])
    return ((x, _unpadded(At(coords, at.mask), x.shape, node["low"], holes, space)),)


def _unpadded(
    at: At, shape: Sequence[int], low: Sequence[int], interior: Sequence[int], space: Space
) -> At:
    """A position of a padded tensor taken to the tensor itself, where it is inside."""
    coords: list[Index] = []
    mask = at.mask
    edges = zip(at.coords, shape, low, interior, strict=True)
    for coordinate, extent, before, holes in edges:
        index = ix.shift(coordinate, -before)
        step = holes + 1
        mask = joined(mask, within(index, 0, (extent - 1) * step + 1, space))
        if holes:
            # Moved by whole steps so that it is nowhere negative.
            moved = max(0, -(-before // step))
            positive = ix.shift(index, moved * step)
            mask = joined(mask, (Cond(ix.of_term(Remainder(positive, step)), 0, 1),))
            index = ix.shift(ix.of_term(Quotient(positive, step)), -moved)
        coords.append(index)
    return At(tuple(coords), mask)


def _concatenate(node: Node, at: At, space: Space) -> tuple[Source, ...]:
    dim = node["dim"]
    start = 0
    result = []
    for src in node.srcs:
        index = ix.shift(at.coords[dim], -start)
        coords = (*at.coords[:dim], index, *at.coords[dim + 1 :])
        mask = joined(at.mask, within(index, 0, src.shape[dim], space))
        result.append((src, At(coords, mask)))
        start += src.shape[dim]
    return tuple(result)


def started(node: Node, at: At, low: int, high: int) -> Index:
    """The element of an integer tensor, clamped to [low, high]; a number if it is constant."""
    if low == high:
        return ix.constant(low)
    if node.op is Op.CONSTANT and node["literal"].array.size == 1:
        return ix.constant(min(max(int(node["literal"].array.flat[0]), low), high))
    return ix.of_term(Value(node, at, low, high))


def _dynamic_slice(node: Node, at: At, _space: Space) -> tuple[Source, ...]:
    x, *starts = node.srcs
    scalar = At((), at.mask)
    coords = tuple(
        ix.add(coordinate, started(start, scalar, 0, extent - size))
        for coordinate, start, extent, size in zip(
            at.coords, starts, x.shape, node.shape, strict=True
        )
    )
    return ((x, At(coords, at.mask)), *_read(At(coords), starts))


def _read(at: At, nodes: Sequence[Node]) -> Iterator[Source]:
    """The elements of those integer tensors that a position depends on."""
    found: dict[Source, None] = {}
    ix.values_of(at, lambda value: found.setdefault((value.node, value.at)))
    return (source for source in found if source[0] in nodes)


def index_at(coords: tuple[Index, ...], vector_dim: int, rank: int, part: int) -> tuple[Index, ...]:
    """Where number `part` of the index vector lies in a gather's or scatter's indices."""
    if vector_dim == rank:
        return coords
    return (*coords[:vector_dim], ix.constant(part), *coords[vector_dim:])


def _gather(node: Node, at: At, _space: Space) -> tuple[Source, ...]:
    x, indices = node.srcs
    offsets = node["offset_dims"]
    batch = tuple(c for d, c in enumerate(at.coords) if d not in offsets)
    window = iter([at.coords[d] for d in offsets])
    vector_dim = node["index_vector_dim"]
    batching = dict(
        zip(node["operand_batching_dims"], node["start_indices_batching_dims"], strict=True)
    )
    starts = {dim: part for part, dim in enumerate(node["start_index_map"])}
    coords = []
    for dim, (extent, size) in enumerate(zip(x.shape, node["slice_sizes"], strict=True)):
        if dim in batching:
            place = batching[dim]
            coords.append(batch[place - (place > vector_dim)])
            continue
        index = ix.ZERO
        if dim in starts:
            where = index_at(batch, vector_dim, indices.type.rank, starts[dim])
            index = started(indices, At(where, at.mask), 0, extent - size)
        if dim not in node["collapsed_slice_dims"]:
            index = ix.add(index, next(window))
        coords.append(index)
    found = At(tuple(coords), at.mask)
    return ((x, found), *_read(found, (indices,)))


def is_choice(node: Node) -> bool:
    """Return whether an update is computed by choosing, per element, between operand and update.

    So it is for a window at a fixed place, and for a scatter that updates at most one element per
    row: the gradients of selecting and of picking from rows.
    """
    if fixed_places(node) is not None:
        return True
    if node.op is not Op.SCATTER or node["update_window_dims"]:
        return False
    x, indices, _ = node.srcs
    vector_dim = node["index_vector_dim"]
    batching = node["scatter_indices_batching_dims"]
    rest = [n for d, n in enumerate(indices.shape) if d not in batching and d != vector_dim]
    return (
        len(node["scatter_dims_to_operand_dims"]) == 1
        and len(batching) == x.type.rank - 1
        and all(extent == 1 for extent in rest)
    )


def _fixed_window(node: Node, at: At, space: Space) -> tuple[Source, ...]:
    update = node.srcs[2] if node.op is Op.SCATTER else node.srcs[1]
    places = fixed_places(node)
    assert places is not None
    low = [place.start for place in places]
    interior = [place.step - 1 for place in places]
    return ((update, _unpadded(at, update.shape, low, interior, space)), (node.srcs[0], at))


def _row_scatter(node: Node, at: At, _space: Space) -> tuple[Source, ...]:
    x, indices, updates = node.srcs
    vector_dim = node["index_vector_dim"]
    where = [ix.ZERO] * updates.type.rank
    pairs = zip(node["input_batching_dims"], node["scatter_indices_batching_dims"], strict=True)
    for dim, place in pairs:
        where[place - (place > vector_dim)] = at.coords[dim]
    batch = tuple(where)
    index = index_at(batch, vector_dim, indices.type.rank, 0)
    return ((updates, At(batch, at.mask)), (indices, At(index, at.mask)), (x, at))


def _update(node: Node, at: At, space: Space) -> tuple[Source, ...]:
    rule = _row_scatter if fixed_places(node) is None else _fixed_window
    return rule(node, at, space)


_RULES: Mapping[Op, Rule] = {
    Op.SCATTER: _update,
    Op.DYNAMIC_UPDATE_SLICE: _update,
    **dict.fromkeys(Group.ELEMENTWISE, _same),
    Op.BROADCAST_IN_DIM: _broadcast,
    Op.RESHAPE: _reshape,
    Op.TRANSPOSE: _transpose,
    Op.SLICE: _slice,
    Op.REVERSE: _reverse,
    Op.PAD: _pad,
    Op.CONCATENATE: _concatenate,
    Op.DYNAMIC_SLICE: _dynamic_slice,
    Op.GATHER: _gather,
}
