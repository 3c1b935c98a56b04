"""Reductions: over dimensions, over windows, and back to the extreme of a window."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from neuronxcc.frontends.hlo.errors import RefusedError, invalid, unsupported
from neuronxcc.frontends.hlo.scalar import Scalar, combine, is_neutral
from neuronxcc.frontends.hlo.site import Handler, Site, Value
from neuronxcc.ir import build
from neuronxcc.ir.arithmetic import neutral
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.halving import reduce_by_halves
from neuronxcc.ir.node import Node, TensorType
from neuronxcc.ir.op import Op

MAX_WINDOW = 1024  # positions of a window whose computation has no kind


def _inputs(site: Site) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """Operands and their initial values, one scalar each."""
    count = len(site.tensors) // 2
    xs, inits = site.tensors[:count], site.tensors[count:]
    fits = len(xs) == len(inits) and xs and all(x.shape == xs[0].shape for x in xs)
    if not fits or any(i.shape or i.dtype is not x.dtype for x, i in zip(xs, inits, strict=True)):
        listed = ", ".join(str(node.type) for node in site.tensors)
        raise invalid(f"{site.opcode} of ({listed}); one scalar for every operand is needed")
    return xs, inits


def _reduce(site: Site) -> Value:
    xs, inits = _inputs(site)
    dims = tuple(sorted(build.axes(Op.REDUCE, list(site.proto.dimensions), xs[0].type.rank)))
    computation = Scalar.of(site, [node.dtype for node in (*xs, *inits)])
    if len(computation.results) != len(xs):
        raise invalid(f"{site.opcode} of {len(xs)} operands with another number of results")
    kinds = computation.known_kinds()
    if kinds is not None:
        results = tuple(map(_reduce_kind, xs, inits, kinds, [dims] * len(xs)))
    else:
        found = _extreme(computation, xs, inits, dims)
        results = found if found is not None else _reduce_tree(computation, xs, inits, dims)
    return results if isinstance(site.type, tuple) else results[0]


def _reduce_kind(x: Node, init: Node, kind: str, dims: Sequence[int]) -> Node:
    result = build.reduce(x, kind, dims)
    if is_neutral(kind, init):
        return result
    return combine(kind, build.broadcast_in_dim(init, result.shape, ()), result)


def _reduce_tree(
    computation: Scalar, xs: Sequence[Node], inits: Sequence[Node], dims: Sequence[int]
) -> tuple[Node, ...]:
    """Any computation, then the initial value. XLA leaves the order open."""
    shape = [n for d, n in enumerate(xs[0].shape) if d not in dims]
    starts = [build.broadcast_in_dim(init, shape, ()) for init in inits]
    if not math.prod(xs[0].shape[d] for d in dims):
        return tuple(starts)
    return computation.lift([*starts, *reduce_by_halves(xs, dims, computation.lift)])


# ---- the position of the extreme ----------------------------------------------------------------


def _extreme(
    computation: Scalar, xs: Sequence[Node], inits: Sequence[Node], dims: Sequence[int]
) -> tuple[Node, ...] | None:
    """Value and first position of the extreme, if that is what is computed; otherwise None.

    Front ends write it as a reduction of values and positions together.
    """
    if len(xs) != 2 or len(dims) != 1 or not xs[1].dtype.is_integer:
        return None
    positions = build.iota(xs[1].dtype, xs[1].shape, dims[0])
    if not xs[0].shape[dims[0]] or not _counts(xs[1], dims[0], positions):
        return None
    for kind in ("max", "min"):
        known = computation.results in _extreme_forms(computation.params, kind)
        if known and is_neutral(kind, inits[0]) and xs[0].dtype is not DType.PRED:
            where = build.arg_reduce(xs[0], kind, dims[0], xs[1].dtype)
            return build.reduce(xs[0], kind, dims), where
    return None


def _counts(x: Node, dim: int, positions: Node) -> bool:
    """Return whether a tensor holds the position along a dimension."""
    if x is positions:
        return True
    if x.op is not Op.BROADCAST_IN_DIM or x.srcs[0].op is not Op.IOTA:
        return False
    counted = x["dims"][x.srcs[0]["dim"]]
    return bool(counted == dim and x.srcs[0].shape[x.srcs[0]["dim"]] == x.shape[dim])


def _extreme_forms(params: Sequence[Node], kind: str) -> list[tuple[Node, ...]]:
    """How front ends write it; values a and b at positions i and j."""
    a, i, b, j = params
    direction = "GT" if kind == "max" else "LT"
    better = build.compare(a, b, direction)
    at_least = build.compare(a, b, "GE" if kind == "max" else "LE")
    earlier = build.less(i, j)
    same = build.equal(a, b)
    forms = []
    # JAX: a NaN is chosen, and among equals the first.
    wins = build.or_(better, build.not_equal(a, a))
    forms.append((wins, build.or_(wins, build.and_(same, earlier))))
    # torch_xla and TensorFlow: the same without NaN, or in order of the elements.
    forms.append((better, build.or_(better, build.and_(same, earlier))))
    forms.append((at_least, at_least))
    chosen: list[tuple[Node, ...]]
    chosen = [(build.select(v, a, b), build.select(p, i, j)) for v, p in forms]
    tie = build.select(better, i, j)
    lower = build.minimum(i, j)
    chosen.append((build.select(at_least, a, b), build.select(same, lower, tie)))
    return chosen


# ---- windows ------------------------------------------------------------------------------------


def _window(site: Site, rank: int) -> dict[str, list[int]]:
    dims = site.proto.window.dimensions
    if len(dims) != rank:
        raise invalid(f"{site.opcode} has a window of {len(dims)} dimensions for rank {rank}")
    if any(d.size < 1 or d.stride < 0 for d in dims):
        raise invalid(f"{site.opcode} with a window of {[d.size for d in dims]} positions")
    if any(d.window_reversal for d in dims):
        raise unsupported(f"{site.opcode} with a reversed window")
    return {
        "window": [d.size for d in dims],
        "strides": [d.stride or 1 for d in dims],
        "low": [d.padding_low for d in dims],
        "high": [d.padding_high for d in dims],
        "base_dilation": [d.base_dilation or 1 for d in dims],
        "window_dilation": [d.window_dilation or 1 for d in dims],
    }


def _reduce_window(site: Site) -> Value:
    xs, inits = _inputs(site)
    if len(xs) != 1:
        raise RefusedError(
            "NCC_EVRF019", f"reduce-window with {len(xs)} inputs; it takes one",
            "use one reduce-window per input",
        )  # fmt: skip
    (x,), (init,) = xs, inits
    sizes = _window(site, x.type.rank)
    computation = Scalar.of(site, [x.dtype, init.dtype])
    kinds = computation.known_kinds()
    if kinds is None or (kinds[0] in ("and", "or", "xor") and x.dtype is not DType.PRED):
        result = _window_tree(computation, x, init, sizes)
    else:
        kind = {"and": "min", "or": "max"}.get(kinds[0], kinds[0])
        result = _window_kind(x, init, kind, sizes)
    return (result,) if isinstance(site.type, tuple) else result


def _window_kind(x: Node, init: Node, kind: str, sizes: dict[str, list[int]]) -> Node:
    if not is_neutral(kind, init):
        # Once for every window: what a window has beyond the operand is left out.
        result = _window_kind(x, build.constant(neutral(kind, x.dtype), x.dtype), kind, sizes)
        return combine(kind, build.broadcast_in_dim(init, result.shape, ()), result)
    running = _running(x, sizes)
    if running is not None and kind in ("add", "mul", "min", "max"):
        dim, backwards = running
        x = build.reverse(x, dim) if backwards else x
        result = build.cumulative(x, kind, dim)
        return build.reverse(result, dim) if backwards else result
    return build.reduce_window(x, kind, **sizes)


def _padded(x: Node, init: Node, sizes: dict[str, list[int]]) -> Node:
    """The operand with its edges and the holes between its elements filled in."""
    return build.pad(x, init, sizes["low"], sizes["high"], [n - 1 for n in sizes["base_dilation"]])


def _running(x: Node, sizes: dict[str, list[int]]) -> tuple[int, bool] | None:
    """The dimension along which windows grow from the start (or the end): a running reduction."""
    wide = [d for d, n in enumerate(sizes["window"]) if n != 1]
    others = [d for d in range(x.type.rank) if d not in wide]
    plain = all(sizes["low"][d] == sizes["high"][d] == 0 for d in others)
    steps = [*sizes["strides"], *sizes["base_dilation"], *sizes["window_dilation"]]
    if len(wide) != 1 or not plain or any(n != 1 for n in steps):
        return None
    (dim,) = wide
    extent = x.shape[dim]
    edges = (sizes["low"][dim], sizes["high"][dim])
    if sizes["window"][dim] != extent or edges not in ((extent - 1, 0), (0, extent - 1)):
        return None
    return dim, edges[0] == 0


def _window_tree(computation: Scalar, x: Node, init: Node, sizes: dict[str, list[int]]) -> Node:
    """Any computation: one strided slice per position in the window, combined in pairs.

    Positions beyond the operand, or between its elements, are left out.
    """
    positions = math.prod(sizes["window"])
    if positions > MAX_WINDOW:
        raise unsupported(f"reduce-window of {positions} positions with a computation of its own")
    whole = build.splat(1, TensorType(DType.PRED, x.shape))
    inside = _padded(whole, build.constant(0, DType.PRED), sizes)
    x = _padded(x, init, sizes)
    partly = x.shape != whole.shape or any(n < 0 for n in (*sizes["low"], *sizes["high"]))
    holes = sizes["window_dilation"]
    spans = [(w - 1) * h + 1 for w, h in zip(sizes["window"], holes, strict=True)]
    counts = [
        (n - w) // s + 1 if n >= w else 0
        for n, w, s in zip(x.shape, spans, sizes["strides"], strict=True)
    ]
    parts: list[tuple[Node, Node]] = []
    for steps in itertools.product(*map(range, sizes["window"])):
        position = [i * h for i, h in zip(steps, holes, strict=True)]
        limits = [
            p + (c - 1) * s + 1 if c else p
            for p, c, s in zip(position, counts, sizes["strides"], strict=True)
        ]
        value, there = (build.slice_(y, position, limits, sizes["strides"]) for y in (x, inside))
        parts.append((value, there))

    def joined(a: tuple[Node, Node], b: tuple[Node, Node]) -> tuple[Node, Node]:
        both = computation.lift([a[0], b[0]])[0]
        if not partly:
            return both, a[1]
        one = build.select(a[1], a[0], b[0])
        return build.select(build.and_(a[1], b[1]), both, one), build.or_(a[1], b[1])

    while len(parts) > 1:
        pairs = [parts[i : i + 2] for i in range(0, len(parts), 2)]
        parts = [joined(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
    start = build.broadcast_in_dim(init, parts[0][0].shape, ())
    return joined((start, build.splat(1, parts[0][1].type)), parts[0])[0]


def _select_and_scatter(site: Site) -> Node:
    x, source, init = site.take(3)
    sizes = _window(site, x.type.rank)
    select = Scalar.of(site, [x.dtype, x.dtype])
    scatter = Scalar.of(site, [x.dtype, x.dtype], 1)
    a, b = select.params
    directions = {"GE": "max", "GT": "max", "LE": "min", "LT": "min"}
    root = select.results[0]
    if root.op is not Op.COMPARE or root.srcs != (a, b) or root["direction"] not in directions:
        raise unsupported("select-and-scatter whose selection is no comparison of its operands")
    (kind,) = scatter.kinds()
    result = build.select_and_scatter(
        x,
        source,
        sizes["window"],
        strides=sizes["strides"],
        low=sizes["low"],
        high=sizes["high"],
        select=directions[root["direction"]],
        kind=kind,
    )
    if is_neutral(kind, init):
        return result
    return combine(kind, build.broadcast_in_dim(init, result.shape, ()), result)


def _map(site: Site) -> Value:
    xs = site.tensors
    computation = Scalar.of(site, [x.dtype for x in xs])
    if not xs or any(x.shape != xs[0].shape for x in xs):
        raise invalid("map takes tensors of one shape")
    results = computation.lift(xs)
    shape = xs[0].shape
    full = tuple(r if r.shape == shape else build.broadcast_in_dim(r, shape, ()) for r in results)
    return full if isinstance(site.type, tuple) else full[0]


TABLE: dict[str, Handler] = {
    "reduce": _reduce,
    "reduce-window": _reduce_window,
    "select-and-scatter": _select_and_scatter,
    "map": _map,
}
