"""Sorting by a comparator, and the largest k.

A comparator is any program on pairs of scalars. Nearly all compare one or several keys in turn:
`f(a) < f(b)`, or that among equal keys of another operand. Such a sort is one stable sort per key,
the least significant first. Every other comparator drives a sorting network.
"""

from __future__ import annotations

from collections.abc import Sequence

from neuronxcc.frontends.hlo.errors import invalid, unsupported
from neuronxcc.frontends.hlo.scalar import Scalar, lift
from neuronxcc.frontends.hlo.site import Handler, Site, Value
from neuronxcc.ir import build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node, TensorType, topological
from neuronxcc.ir.op import Op

MAX_NETWORK = 1 << 16  # elements of a sort by a comparator of unknown form

# A key: a scalar node of the parameters of the left element, and whether larger ones come first.
Key = tuple[Node, bool]


def _sort(site: Site) -> Value:
    xs = site.tensors
    if not xs or any(x.shape != xs[0].shape for x in xs):
        raise invalid("sort takes tensors of one shape")
    rank = xs[0].type.rank
    dims = list(site.proto.dimensions) or [rank - 1]
    if len(dims) != 1 or not 0 <= dims[0] < rank:
        raise invalid(f"sort along dimensions {dims} of rank {rank}")
    pairs = [x.dtype for x in xs for _ in range(2)]
    comparator = Scalar.of(site, pairs)
    if len(comparator.results) != 1 or comparator.results[0].dtype is not DType.PRED:
        raise invalid("the comparator of a sort returns one pred")
    keys = _keys(comparator)
    results = (
        _network(comparator, xs, dims[0])
        if keys is None
        else _by_keys(keys, comparator, xs, dims[0])
    )
    return results if isinstance(site.type, tuple) else results[0]


def _keys(comparator: Scalar) -> list[Key] | None:
    """The keys of a comparator, the most significant first; None if it has another form."""
    keys: list[Key] = []
    root = comparator.results[0]
    while root.op is Op.OR:
        # less(k), or equal(k) and the rest
        match = _split(root)
        if match is None:
            return None
        first, equal, root = match
        key = _key(comparator, first)
        if key is None or not _equal_of(first, equal):
            return None
        keys.append(key)
    last = _key(comparator, root)
    return None if last is None else [*keys, last]


def _split(root: Node) -> tuple[Node, Node, Node] | None:
    for first, other in (root.srcs, root.srcs[::-1]):
        if first.op is Op.COMPARE and other.op is Op.AND:
            for equal, rest in (other.srcs, other.srcs[::-1]):
                compares = equal.op is Op.COMPARE and equal["direction"] == "EQ"
                if compares and _equal_of(first, equal):
                    return first, equal, rest
    return None


def _equal_of(less: Node, equal: Node) -> bool:
    return equal.srcs in (less.srcs, less.srcs[::-1])


def _key(comparator: Scalar, node: Node) -> Key | None:
    """F and direction of f(a) < f(b) or f(a) > f(b)."""
    if node.op is not Op.COMPARE or node["direction"] not in ("LT", "GT", "LE", "GE"):
        return None
    lefts, rights = comparator.params[::2], comparator.params[1::2]
    larger_first = node["direction"] in ("GT", "GE")
    for key, other in ((node.srcs, larger_first), (node.srcs[::-1], not larger_first)):
        used = {n for n in topological([key[0]]) if n.op is Op.PARAMETER}
        if not used <= set(lefts):
            continue
        swapped = lift([key[0]], dict(zip(lefts, rights, strict=True)))
        if swapped[0] is key[1]:
            return key[0], other
    return None


def _by_keys(
    keys: Sequence[Key], comparator: Scalar, xs: Sequence[Node], dim: int
) -> tuple[Node, ...]:
    current = tuple(xs)
    for key, larger_first in reversed(keys):
        (values,) = lift([key], dict(zip(comparator.params[::2], current, strict=True)))
        if values is current[0]:
            sorted_ = build.sort(current, dim, descending=larger_first)
            current = build.results(sorted_)
        else:
            sorted_ = build.sort((values, *current), dim, descending=larger_first)
            current = build.results(sorted_)[1:]
    return current


def _network(comparator: Scalar, xs: Sequence[Node], dim: int) -> tuple[Node, ...]:
    """A bitonic network: log(n) squared exchanges between all elements at a time, made stable."""
    rank, extent = xs[0].type.rank, xs[0].shape[dim]
    if extent > MAX_NETWORK:
        raise unsupported(f"sort of {extent} elements by a comparator of its own")
    order = [d for d in range(rank) if d != dim] + [dim]
    size = 1 << max(extent - 1, 0).bit_length()
    lanes = [build.transpose(x, order) for x in xs]
    lead = lanes[0].shape[:-1]
    # Beyond the end: elements that come after all others.
    place = build.iota(DType.S32, (*lead, size), rank - 1)
    beyond = build.greater_equal(place, extent)
    edge = [0] * (rank - 1) + [size - extent]
    lanes = [build.pad(x, build.constant(0, x.dtype), 0, edge) for x in lanes]
    state = [*lanes, place, beyond]
    step = 2
    while step <= size:
        distance = step // 2
        while distance:
            state = _exchange(comparator, state, step, distance)
            distance //= 2
        step *= 2
    kept = [build.slice_dim(x, rank - 1, 0, extent) for x in state[:-2]]
    back = sorted(range(rank), key=order.__getitem__)
    return tuple(build.transpose(x, back) for x in kept)


def _exchange(comparator: Scalar, state: list[Node], step: int, distance: int) -> list[Node]:
    """Order every element and the one `distance` on, ascending in every other run of `step`."""
    *lead, size = state[0].shape
    last = len(lead)
    split = (*lead, size // (2 * distance), 2, distance)

    def half(x: Node, which: int) -> Node:
        return build.slice_dim(build.reshape(x, split), last + 1, which, which + 1)

    low, high = [half(x, 0) for x in state], [half(x, 1) for x in state]
    start = build.iota(DType.S32, low[0].shape, last)
    run = build.divide(build.multiply(start, 2 * distance), step)
    ascending = build.equal(build.and_(run, 1), 0)
    swap = build.equal(_comes_first(comparator, high, low), ascending)
    joined = []
    for a, b in zip(low, high, strict=True):
        pair = build.select(swap, b, a), build.select(swap, a, b)
        joined.append(build.reshape(build.concatenate(pair, last + 1), (*lead, size)))
    return joined


def _comes_first(comparator: Scalar, one: list[Node], other: list[Node]) -> Node:
    """Return whether `one` comes first: by comparator, by position among equals, padding last."""
    *a, a_place, a_beyond = one
    *b, b_place, b_beyond = other
    less = comparator.lift([x for pair in zip(a, b, strict=True) for x in pair])[0]
    more = comparator.lift([x for pair in zip(b, a, strict=True) for x in pair])[0]
    tie = build.and_(build.not_(more), build.less(a_place, b_place))
    inside = build.or_(less, tie)
    both = build.select(b_beyond, build.not_(a_beyond), inside)
    return build.select(
        build.and_(a_beyond, b_beyond),
        build.less(a_place, b_place),
        build.and_(build.not_(build.and_(a_beyond, build.not_(b_beyond))), both),
    )


def _topk(site: Site) -> Value:
    x = site.one
    if not isinstance(site.type, tuple) or len(site.type) != 2:
        raise invalid("topk returns values and positions")
    values, where = build.results(build.topk(x, site.proto.k, largest=bool(site.proto.largest)))
    declared = site.type[1]
    if not isinstance(declared, TensorType):
        raise invalid("the positions of topk are a tensor")
    return values, build.convert(where, declared.dtype)


TABLE: dict[str, Handler] = {"sort": _sort, "topk": _topk}
