"""One form for what can be written in several: movement, reductions, sorting.

What later stages may rely on after it:

- a transpose moves at least two dimensions of extents above 1, and its operand is no transpose;
- the operand of a reshape is no reshape; a broadcast repeats something or is a splat (of a
  scalar), and its operand has no dimension of extent 1;
- padding is never negative; a slice's operand is no slice; starts of a dynamic slice are not all
  constant;
- a reduction has sorted dimensions with extents other than 1;
- tensors without elements are splats of 0.
"""

from __future__ import annotations

from neuronxcc.ir import build
from neuronxcc.ir.arithmetic import neutral
from neuronxcc.ir.node import Node, is_uniform
from neuronxcc.ir.op import Op
from neuronxcc.ir.table import Group
from neuronxcc.passes.match import again, fill, repeat, scalar_of, splat, spread
from neuronxcc.passes.rules import Rule, rule

_PURE = (Group.ELEMENTWISE | Group.MOVEMENT | {Op.SCATTER, Op.CUMULATIVE, Op.REDUCE}) - {Op.CONVERT}


@rule("nothing at all", *_PURE, Op.CONVERT, Op.DOT_GENERAL, Op.CONVOLUTION, Op.REDUCE_WINDOW)
def empty(node: Node) -> Node | None:
    """A tensor without elements is a splat, whatever made it."""
    if node.type.size or scalar_of(node) is not None:
        return None
    return fill(0, node.type)


# ---- reshape, transpose, broadcast --------------------------------------------------------------


@rule("reshape of a reshape", Op.RESHAPE)
def reshape_twice(node: Node) -> Node | None:
    """Only the last shape matters; the same shape needs none; of a scalar it is a splat."""
    (x,) = node.srcs
    if not x.shape:
        return repeat(x, node.shape)
    if x.op is Op.RESHAPE:
        return build.reshape(x.srcs[0], node.shape)
    return x if x.shape == node.shape else None


@rule("reshape of a broadcast", Op.RESHAPE)
def reshape_broadcast(node: Node) -> Node | None:
    """A splat of another shape; a broadcast with ones put in or taken out."""
    (x,) = node.srcs
    if x.op is not Op.BROADCAST_IN_DIM:
        return None
    (source,) = x.srcs
    if not source.shape:
        return repeat(source, node.shape)
    places = dimension_map(x.shape, node.shape)
    if places is None or any(d not in places for d in x["dims"]):
        return None
    return build.broadcast_in_dim(source, node.shape, [places[d] for d in x["dims"]])


def dimension_map(old: tuple[int, ...], new: tuple[int, ...]) -> dict[int, int] | None:
    """Where the dimensions of extents other than 1 go, if a reshape only adds and drops ones."""
    before = [d for d, n in enumerate(old) if n != 1]
    after = [d for d, n in enumerate(new) if n != 1]
    if [old[d] for d in before] != [new[d] for d in after]:
        return None
    return dict(zip(before, after, strict=True))


@rule("transpose of a transpose", Op.TRANSPOSE)
def transpose_twice(node: Node) -> Node | None:
    """Merge permutations."""
    (x,) = node.srcs
    if x.op is not Op.TRANSPOSE:
        return None
    inner = x["permutation"]
    return build.transpose(x.srcs[0], [inner[d] for d in node["permutation"]])


@rule("transpose that only moves ones", Op.TRANSPOSE)
def transpose_ones(node: Node) -> Node | None:
    """Where dimensions above 1 keep their order, a reshape says it."""
    (x,) = node.srcs
    moved = [d for d in node["permutation"] if x.shape[d] != 1]
    return build.reshape(x, node.shape) if moved == sorted(moved) else None


@rule("transpose of a broadcast", Op.TRANSPOSE)
def transpose_broadcast(node: Node) -> Node | None:
    """Broadcast to where the transpose wants the dimensions."""
    (x,) = node.srcs
    if x.op is not Op.BROADCAST_IN_DIM:
        return None
    place = {old: new for new, old in enumerate(node["permutation"])}
    return spread(x.srcs[0], node.shape, [place[d] for d in x["dims"]])


@rule("broadcast that repeats nothing", Op.BROADCAST_IN_DIM)
def broadcast_nothing(node: Node) -> Node | None:
    """A reshape, or nothing."""
    (x,) = node.srcs
    if not x.shape:
        return x if not node.shape else None  # a splat, whatever its extents
    return build.reshape(x, node.shape) if x.type.size == node.type.size else None


@rule("broadcast of a broadcast", Op.BROADCAST_IN_DIM)
def broadcast_twice(node: Node) -> Node | None:
    """Merge the dimensions."""
    (x,) = node.srcs
    if x.op is not Op.BROADCAST_IN_DIM:
        return None
    return build.broadcast_in_dim(x.srcs[0], node.shape, [node["dims"][d] for d in x["dims"]])


@rule("broadcast of extents of 1", Op.BROADCAST_IN_DIM)
def broadcast_ones(node: Node) -> Node | None:
    """Drop them from the operand: broadcasting need not name them."""
    (x,) = node.srcs
    kept = [d for d, n in enumerate(x.shape) if n != 1]
    if len(kept) == x.type.rank:
        return None
    squeezed = build.reshape(x, [x.shape[d] for d in kept])
    return build.broadcast_in_dim(squeezed, node.shape, [node["dims"][d] for d in kept])


@rule("elementwise on broadcasts", *Group.ELEMENTWISE)
def elementwise_on_broadcasts(node: Node) -> Node | None:
    """Compute before repeating, where all operands repeat in the same way or are splats."""
    wide = [src for src in node.srcs if scalar_of(src) is None]
    if not wide or any(src.op is not Op.BROADCAST_IN_DIM for src in wide):
        return _on_scalars(node) if not wide and node.shape else None
    dims, shape = wide[0]["dims"], wide[0].srcs[0].shape
    if any((src["dims"], src.srcs[0].shape) != (dims, shape) for src in wide):
        return None
    narrow = [
        src.srcs[0] if src in wide else build.broadcast_to(_scalar(src), shape) for src in node.srcs
    ]
    return build.broadcast_in_dim(again(node, *narrow), node.shape, dims)


def _on_scalars(node: Node) -> Node:
    return repeat(again(node, *map(_scalar, node.srcs)), node.shape)


def _scalar(node: Node) -> Node:
    scalar = scalar_of(node)
    assert scalar is not None
    return scalar


@rule("movement of a splat", Op.SLICE, Op.REVERSE, Op.DYNAMIC_SLICE, Op.GATHER)
def move_splat(node: Node) -> Node | None:
    """All elements are equal, so any choice of them is a splat."""
    scalar = scalar_of(node.srcs[0])
    if scalar is None or not node.srcs[0].shape:
        return None
    return repeat(scalar, node.shape)


# ---- slices, pads, concatenations ---------------------------------------------------------------


@rule("slice of everything", Op.SLICE, Op.DYNAMIC_SLICE)
def slice_everything(node: Node) -> Node | None:
    """A window as large as the operand is clamped to its place."""
    return node.srcs[0] if node.shape == node.srcs[0].shape else None


@rule("slice of a slice", Op.SLICE)
def slice_twice(node: Node) -> Node | None:
    """Positions of the outer one, counted in the inner one."""
    (x,) = node.srcs
    if x.op is not Op.SLICE:
        return None
    strides = [a * b for a, b in zip(x["strides"], node["strides"], strict=True)]
    starts = [a + s * b for a, s, b in zip(x["starts"], x["strides"], node["starts"], strict=True)]
    limits = [a + (n - 1) * s + 1 for a, s, n in zip(starts, strides, node.shape, strict=True)]
    return build.slice_(x.srcs[0], starts, limits, strides)


@rule("slice of one element", Op.SLICE)
def slice_stride(node: Node) -> Node | None:
    """Strides of extents of 1 mean nothing; limits end at the last element."""
    steps = zip(node["starts"], node["strides"], node.shape, strict=True)
    limits = tuple(a + (n - 1) * s + 1 for a, s, n in steps)
    strides = tuple(1 if n == 1 else s for s, n in zip(node["strides"], node.shape, strict=True))
    if (limits, strides) == (node["limits"], node["strides"]):
        return None
    return build.slice_(node.srcs[0], node["starts"], limits, strides)


@rule("slice of a broadcast", Op.SLICE)
def slice_broadcast(node: Node) -> Node | None:
    """Repeat less often; slice what is repeated."""
    (x,) = node.srcs
    if x.op is not Op.BROADCAST_IN_DIM:
        return None
    part = [[node[name][d] for d in x["dims"]] for name in ("starts", "limits", "strides")]
    return build.broadcast_in_dim(build.slice_(x.srcs[0], *part), node.shape, x["dims"])


@rule("slice of a concatenation", Op.SLICE)
def slice_concatenate(node: Node) -> Node | None:
    """Of one of the parts, if it lies inside one."""
    (x,) = node.srcs
    if x.op is not Op.CONCATENATE:
        return None
    dim = x["dim"]
    start, limit = node["starts"][dim], node["limits"][dim]
    begin = 0
    for part in x.srcs:
        end = begin + part.shape[dim]
        if begin <= start and limit <= end:
            starts, limits = list(node["starts"]), list(node["limits"])
            starts[dim], limits[dim] = start - begin, limit - begin
            return build.slice_(part, starts, limits, node["strides"])
        begin = end
    return None


@rule("dynamic slice at constants", Op.DYNAMIC_SLICE)
def dynamic_constant(node: Node) -> Node | None:
    """A slice; the starts are clamped."""
    x, *starts = node.srcs
    known = [splat(start) for start in starts]
    places = []
    for start, size, extent in zip(known, node["sizes"], x.shape, strict=True):
        # Where there is only one place for the window, the start does not matter.
        if size != extent and start is None:
            return None
        value = 0 if start is None else int(start)
        places.append(min(max(value, 0), extent - size))
    limits = [place + size for place, size in zip(places, node["sizes"], strict=True)]
    return build.slice_(x, places, limits)


@rule("update of everything or nothing", Op.DYNAMIC_UPDATE_SLICE)
def update_everything(node: Node) -> Node | None:
    """The update itself, or the operand."""
    x, update, *_ = node.srcs
    if update.shape == x.shape:
        return update
    return x if not update.type.size else None


@rule("pad without padding", Op.PAD)
def pad_nothing(node: Node) -> Node | None:
    """Nothing before, between or after; a dimension of one element has no between."""
    x, value = node.srcs
    interior = tuple(0 if n <= 1 else i for i, n in zip(node["interior"], x.shape, strict=True))
    if not any((*node["low"], *node["high"], *interior)):
        return x
    if interior != node["interior"]:
        return build.pad(x, value, node["low"], node["high"], interior)
    return None


@rule("negative padding", Op.PAD)
def pad_negative(node: Node) -> Node | None:
    """Pad, then slice."""
    low, high = node["low"], node["high"]
    if min((*low, *high), default=0) >= 0:
        return None
    x, value = node.srcs
    grown = build.pad(
        x, value, [max(n, 0) for n in low], [max(n, 0) for n in high], node["interior"]
    )
    starts = [max(-n, 0) for n in low]
    limits = [n - max(-b, 0) for n, b in zip(grown.shape, high, strict=True)]
    return build.slice_(grown, starts, limits)


@rule("pad of a splat with the same", Op.PAD)
def pad_splat(node: Node) -> Node | None:
    """A larger splat; around nothing too."""
    x, value = node.srcs
    return (
        build.broadcast_to(value, node.shape) if scalar_of(x) is value or not x.type.size else None
    )


@rule("concatenation of one, of nothing, of a concatenation", Op.CONCATENATE)
def concatenate_flat(node: Node) -> Node | None:
    """Leave out what is empty; take parts of concatenations along the same dimension."""
    dim = node["dim"]
    parts: list[Node] = []
    for part in node.srcs:
        inside = part.op is Op.CONCATENATE and part["dim"] == dim
        parts.extend(part.srcs if inside else ([part] if part.shape[dim] else []))
    if len(parts) == 1:
        return parts[0]
    return build.concatenate(parts, dim) if tuple(parts) != node.srcs else None


@rule("concatenation of neighbours", Op.CONCATENATE)
def concatenate_neighbours(node: Node) -> Node | None:
    """Slices that lie side by side in one tensor, or equal splats, are one."""
    dim = node["dim"]
    parts: list[Node] = []
    for part in node.srcs:
        joined = _join(parts[-1], part, dim) if parts else None
        if joined is None:
            parts.append(part)
        else:
            parts[-1] = joined
    return build.concatenate(parts, dim) if len(parts) < len(node.srcs) else None


def _join(first: Node, second: Node, dim: int) -> Node | None:
    scalar = scalar_of(first)
    if scalar is not None and scalar is scalar_of(second):
        shape = list(first.shape)
        shape[dim] += second.shape[dim]
        return repeat(scalar, shape)
    if first.op is not Op.SLICE or second.op is not Op.SLICE or first.srcs != second.srcs:
        return None
    if (first["strides"][dim], second["strides"][dim]) != (1, 1):
        return None
    others = [
        [(n["starts"][d], n["limits"][d], n["strides"][d]) for d in range(n.type.rank) if d != dim]
        for n in (first, second)
    ]
    if others[0] != others[1] or first["limits"][dim] != second["starts"][dim]:
        return None
    limits = list(first["limits"])
    limits[dim] = second["limits"][dim]
    return build.slice_(first.srcs[0], first["starts"], limits, first["strides"])


@rule("reverse of ones, of a reverse", Op.REVERSE)
def reverse_less(node: Node) -> Node | None:
    """Turn only what has an order, and not twice."""
    (x,) = node.srcs
    dims = {d for d in node["dims"] if x.shape[d] > 1}
    if x.op is Op.REVERSE:
        x, dims = x.srcs[0], dims ^ set(x["dims"])
    elif len(dims) == len(node["dims"]):
        return None
    return build.reverse(x, sorted(dims)) if dims else x


# ---- reductions, sorting ------------------------------------------------------------------------


@rule("reduction of ones", Op.REDUCE)
def reduce_ones(node: Node) -> Node | None:
    """Reducing an extent of 1 is a reshape; dimensions are sorted."""
    (x,) = node.srcs
    dims = node["dims"]
    if not dims:
        return build.alone(x, node["kind"])
    real = sorted(d for d in dims if x.shape[d] != 1)
    if tuple(real) == dims:
        return None
    gone = [d for d in dims if x.shape[d] == 1]
    squeezed = build.reshape(x, [n for d, n in enumerate(x.shape) if d not in gone])
    if not real:
        return build.alone(squeezed, node["kind"])
    return build.reduce(squeezed, node["kind"], [d - sum(g < d for g in gone) for d in real])


@rule("reduction of nothing", Op.REDUCE)
def reduce_nothing(node: Node) -> Node | None:
    """The neutral element of the kind."""
    if node.srcs[0].type.size or not node.type.size:
        return None
    return fill(neutral(node["kind"], node.dtype), node.type)


_EXACT_KINDS = ("min", "max", "and", "or", "xor")


@rule("reduction of a reduction", Op.REDUCE)
def reduce_twice(node: Node) -> Node | None:
    """Of one kind that rounds nothing: both at once."""
    (x,) = node.srcs
    if x.op is not Op.REDUCE or x["kind"] != node["kind"]:
        return None
    if node["kind"] not in _EXACT_KINDS and not node.dtype.is_integer:
        return None
    source = x.srcs[0]
    kept = [d for d in range(source.type.rank) if d not in x["dims"]]
    return build.reduce(
        source, node["kind"], sorted((*x["dims"], *(kept[d] for d in node["dims"])))
    )


@rule("extreme of a broadcast", Op.REDUCE)
def reduce_broadcast(node: Node) -> Node | None:
    """Repeating changes no extreme: reduce what is repeated."""
    (x,) = node.srcs
    idempotent = node["kind"] in ("min", "max", "and", "or")
    if x.op is not Op.BROADCAST_IN_DIM or not idempotent or not x.type.size:
        return None
    inner = [i for i, d in enumerate(x["dims"]) if d in node["dims"]]
    reduced = build.reduce(x.srcs[0], node["kind"], inner) if inner else x.srcs[0]
    kept = [d for d in range(x.type.rank) if d not in node["dims"]]
    dims = [kept.index(d) for d in x["dims"] if d in kept]
    return build.broadcast_in_dim(reduced, node.shape, dims)


@rule("position along an extent of 1", Op.ARG_REDUCE)
def arg_one(node: Node) -> Node | None:
    """It is 0."""
    return fill(0, node.type) if node.srcs[0].shape[node["dim"]] == 1 else None


@rule("running total of one", Op.CUMULATIVE)
def cumulative_one(node: Node) -> Node | None:
    """The element itself, unless it is a -0.0 that is added."""
    one = node.shape[node["dim"]] <= 1
    return build.alone(node.srcs[0], node["kind"]) if one else None


@rule("sort of one", Op.GET)
def sort_one(node: Node) -> Node | None:
    """Nothing to sort."""
    (sort,) = node.srcs
    if sort.op is not Op.SORT or sort.types[0].shape[sort["dim"]] > 1:
        return None
    operand: Node = sort.srcs[node["index"]]
    return operand


@rule("constant of equal elements", Op.CONSTANT)
def constant_splat(node: Node) -> Node | None:
    """A splat is smaller and says more."""
    array = node["literal"].array
    if not node.shape or not array.size:
        return None
    if not is_uniform(array):
        return None
    return fill(array.reshape(-1)[0], node.type)


RULES: tuple[Rule, ...] = (
    empty,
    constant_splat,
    reshape_twice,
    reshape_broadcast,
    transpose_twice,
    transpose_ones,
    transpose_broadcast,
    broadcast_nothing,
    broadcast_twice,
    broadcast_ones,
    elementwise_on_broadcasts,
    move_splat,
    slice_everything,
    slice_twice,
    slice_stride,
    slice_broadcast,
    slice_concatenate,
    dynamic_constant,
    update_everything,
    pad_nothing,
    pad_negative,
    pad_splat,
    concatenate_flat,
    concatenate_neighbours,
    reverse_less,
    reduce_nothing,
    reduce_ones,
    reduce_twice,
    reduce_broadcast,
    arg_one,
    cumulative_one,
    sort_one,
)
