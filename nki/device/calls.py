"""Calls of ATen's operators as the tensor IR that they mean, for the device.

The host path runs some operators by kernels of its own, so that graphs have calls of them. Here
they are taken apart: attention becomes products and a softmax, which are fused like any others.
What is checked on the host before a program runs is no work of the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from neuronxcc.ir import build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import Graph, Loc
from neuronxcc.ir.node import Node, Operand, TensorType
from neuronxcc.ir.op import Op
from nki.device.called_functions import FUNCTION_CALLS
from nki.device.called_pooling import POOLING_CALLS

__all__ = ["CALLS", "is_draw", "without_calls"]

#: The results of ATen's operator, None for what is not used.
Meaning = Callable[..., Sequence[Node | None] | None]


# --- attention -----------------------------------------------------------------------------------


def _grouped(query: Node, key: Node) -> tuple[int, ...]:
    """Return the query's shape with its heads divided by those of the key."""
    batch, heads, rows, width = query.shape
    return batch, key.shape[1], heads // key.shape[1], rows, width


def _scores(query: Node, key: Node, bias: Node | None, scale: float, *, causal: bool) -> Node:
    """Return float32 scores: [batch, key heads, queries' heads for each, queries, keys]."""
    grouped = build.reshape(query, _grouped(query, key))
    scores = build.dot_general(
        grouped, key, lhs_batch=(0, 1), rhs_batch=(0, 1), lhs_contract=(4,), rhs_contract=(3,),
        dtype=DType.F32,
    )  # fmt: skip
    scores = build.binary(Op.MULTIPLY, scores, scale)
    if causal:
        shape = scores.shape
        row = build.iota(DType.S32, shape[-2:], 0)
        column = build.iota(DType.S32, shape[-2:], 1)
        seen = build.compare(column, row, "LE")
        plane = TensorType(DType.F32, seen.shape)
        mask = build.select(seen, build.splat(0.0, plane), build.splat(-1e30, plane))
        scores = build.binary(Op.ADD, scores, build.broadcast_in_dim(mask, shape, (3, 4)))
    if bias is not None and bias.type.size:
        scores = build.binary(Op.ADD, scores, _spread(build.convert(bias, DType.F32), scores.shape))
    return scores


def _spread(bias: Node, shape: tuple[int, ...]) -> Node:
    """Return a bias that broadcasts to [batch, heads, queries, keys] in the scores' shape."""
    sizes = (1,) * (4 - bias.type.rank) + bias.shape
    batch, heads, rows, columns = sizes
    divided = shape[1:3] if heads > 1 else (1, 1)
    wide = build.reshape(bias, (batch, *divided, rows, columns))
    return build.broadcast_in_dim(wide, shape, (0, 1, 2, 3, 4))


def _attention(
    query: Node,
    key: Node,
    value: Node,
    bias: Node | None = None,
    dropout: float = 0.0,
    causal: bool = False,
    debug: bool = False,
    *,
    scale: float | None = None,
) -> list[Node | None] | None:
    del debug
    if dropout or query.type.rank != 4:
        return None
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = _scores(query, key, bias, factor, causal=causal)
    top = build.reduce(scores, "max", (4,), keep=True)
    powers = build.unary(
        Op.EXP, build.binary(Op.SUBTRACT, scores, build.broadcast_to(top, scores.shape))
    )
    total = build.reduce(powers, "add", (4,), keep=True)
    shares = build.binary(Op.DIVIDE, powers, build.broadcast_to(total, powers.shape))
    out = build.dot_general(
        build.convert(shares, value.dtype), value, lhs_batch=(0, 1), rhs_batch=(0, 1),
        lhs_contract=(4,), rhs_contract=(2,), dtype=value.dtype,
    )  # fmt: skip
    batch, heads, rows, _ = query.shape
    lse = build.binary(Op.ADD, top, build.unary(Op.LOG, total))
    return [
        build.reshape(out, (batch, heads, rows, value.shape[-1])),
        build.reshape(lse, (batch, heads, rows)),
    ]


def _efficient(
    query: Node,
    key: Node,
    value: Node,
    bias: Node | None,
    with_lse: bool,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    scale: float | None = None,
) -> list[Node | None] | None:
    del with_lse
    return _attention(query, key, value, bias, dropout, causal, scale=scale)


def _backward(
    grad: Node,
    query: Node,
    key: Node,
    value: Node,
    bias: Node | None,
    out: Node,
    lse: Node,
    *,
    causal: bool,
    scale: float | None,
) -> list[Node | None]:
    """Return the gradients of query, key and value."""
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    grouped = _grouped(query, key)
    of_out = (*grouped[:4], value.shape[-1])
    scores = _scores(query, key, bias, factor, causal=causal)
    lse = build.reshape(lse, (*grouped[:4], 1))
    shares = build.unary(
        Op.EXP, build.binary(Op.SUBTRACT, scores, build.broadcast_to(lse, scores.shape))
    )
    grad = build.reshape(grad, of_out)
    batches = {"lhs_batch": (0, 1), "rhs_batch": (0, 1)}
    dv = build.dot_general(
        build.convert(shares, value.dtype), grad, **batches, lhs_contract=(2, 3),
        rhs_contract=(2, 3), dtype=value.dtype,
    )  # fmt: skip
    dp = build.dot_general(
        grad, value, **batches, lhs_contract=(4,), rhs_contract=(3,), dtype=DType.F32
    )
    both = build.binary(
        Op.MULTIPLY,
        build.convert(grad, DType.F32),
        build.convert(build.reshape(out, of_out), DType.F32),
    )
    delta = build.reduce(both, "add", (4,), keep=True)
    ds = build.binary(Op.SUBTRACT, dp, build.broadcast_to(delta, dp.shape))
    ds = build.binary(Op.MULTIPLY, build.binary(Op.MULTIPLY, shares, ds), factor)
    ds = build.convert(ds, query.dtype)
    dq = build.dot_general(
        ds, key, **batches, lhs_contract=(4,), rhs_contract=(2,), dtype=query.dtype
    )
    dk = build.dot_general(
        ds, build.reshape(query, grouped), **batches, lhs_contract=(2, 3), rhs_contract=(2, 3),
        dtype=key.dtype,
    )  # fmt: skip
    return [build.reshape(dq, query.shape), dk, dv]


def _overrideable_backward(*args: Any, scale: float | None = None) -> list[Node | None] | None:
    grad, query, key, value, bias, _, out, lse, *rest = args
    if rest[4] or query.type.rank != 4:
        return None
    return _backward(grad, query, key, value, bias, out, lse, causal=rest[5], scale=scale)


def _efficient_backward(*args: Any, scale: float | None = None) -> list[Node | None] | None:
    grad, query, key, value, bias, out, lse, _, _, dropout, *rest = args
    causal = rest[1] if len(rest) > 1 else False
    if dropout or query.type.rank != 4 or not lse.type.size:
        return None
    return _backward(grad, query, key, value, bias, out, lse, causal=causal, scale=scale)


_SDPA: Final = "aten::_scaled_dot_product"
CALLS: Final[Mapping[str, Meaning]] = {
    f"{_SDPA}_fused_attention_overrideable.default": _attention,
    f"{_SDPA}_fused_attention_overrideable_backward.default": _overrideable_backward,
    f"{_SDPA}_efficient_attention.default": _efficient,
    f"{_SDPA}_efficient_attention_backward.default": _efficient_backward,
    **FUNCTION_CALLS,
    **POOLING_CALLS,
}
#: Of what the host looks at before the program runs.
_CHECKS: Final = ("neuron::check_", "neuron::check")


# --- random numbers ------------------------------------------------------------------------------

_DROPOUT: Final = "aten::native_dropout.default"


def is_draw(node: Node) -> bool:
    """Return whether a node is a call that draws random numbers: these have a place in an order."""
    return node.op is Op.CUSTOM_CALL and "sequence" in node.attrs


def _dropped(call: Node) -> Node:
    """Return what dropout leaves of its operand: the mask alone is drawn by the call.

    So what is left is computed with its neighbours, and only the mask, which backward needs as
    well, goes through memory.
    """
    x, p = call.srcs[0], call["args"][1]
    mask = build.convert(build.results(call)[1], DType.F32)
    scaled = build.binary(Op.MULTIPLY, build.convert(x, DType.F32), 1.0 / (1.0 - p))
    return build.convert(build.binary(Op.MULTIPLY, scaled, mask), x.dtype)


# --- in graphs -----------------------------------------------------------------------------------


def without_calls(graph: Graph) -> Graph:
    """Return a graph in which calls that have a meaning in the tensor IR are that."""
    known: dict[Node, tuple[Node, ...] | None] = {}
    locs: dict[Node, Loc] = {}

    def meaning(node: Node) -> tuple[Node, ...] | None:
        if node not in known:
            known[node] = _meaning(node)
        return known[node]

    def rule(node: Node) -> Node | None:
        call = node.srcs[0] if node.op is Op.GET else node
        if call.op not in (Op.CUSTOM_CALL, Op.HOST_CALL):
            return None
        if call["target"] == _DROPOUT and node.op is Op.GET and node["index"] == 0:
            return _dropped(call)
        found = meaning(call)
        if found is None or (node is call and len(found) != 1):
            return None
        return found[node["index"] if node.op is Op.GET else 0]

    made = graph.rewrite(rule)
    before = set(graph.nodes())
    for node in made.nodes():
        if node in made.locs or node in before:
            continue
        # What a call became is where the call was: at its user that is known.
        locs.setdefault(node, _loc_of(node, made))
    made.locs.update({node: loc for node, loc in locs.items() if loc is not _NOWHERE})
    return made


_NOWHERE: Final = Loc("", 0)


def _loc_of(node: Node, graph: Graph) -> Loc:
    return next((graph.locs[src] for src in node.srcs if src in graph.locs), _NOWHERE)


def _meaning(call: Node) -> tuple[Node, ...] | None:
    """Return the results of a call, None if it stays a call."""
    target: str = call["target"]
    if target.startswith(_CHECKS) and all(t.dtype.is_integer for t in call.types):
        return tuple(build.splat(0, t) for t in call.types)
    function = CALLS.get(target)
    if function is None:
        return None

    def filled(value: Any) -> Any:
        if isinstance(value, Operand):
            return call.srcs[value.index]
        return tuple(map(filled, value)) if isinstance(value, tuple) else value

    kwargs = {name: filled(value) for name, value in call["kwargs"]}
    results = function(*filled(call["args"]), **kwargs)
    if results is None:
        return None
    places = call.get("outs", tuple(range(len(call.types))))
    found: list[Node | None] = [None] * len(call.types)
    for place, result in zip(places, results, strict=False):
        if place is not None:
            found[place] = result
    if any(node is None or node.types[0] != t for node, t in zip(found, call.types, strict=True)):
        return None
    return tuple(node for node in found if node is not None)
