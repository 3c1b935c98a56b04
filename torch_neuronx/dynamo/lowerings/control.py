"""Operators that hold graphs: branches, loops, regions, and ordered effects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._higher_order_ops.map import map_impl
from torch._higher_order_ops.scan import scan_op

from neuronxcc.ir import build as b
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import Graph, parameter
from neuronxcc.ir.node import Node
from torch_neuronx.dynamo import emit as e
from torch_neuronx.dynamo.inline import inline
from torch_neuronx.dynamo.registry import Body, Context, find, flat, lowers

higher_order = torch.ops.higher_order
Module = torch.fx.GraphModule


def _operands(body: Body, values: Sequence[Any]) -> list[Node]:
    return [values[i] for i in body.used]


def _returned(cx: Context, results: Sequence[Node]) -> tuple[Node | None, ...]:
    """Results in the places that FX has them; None where it has none."""
    rest = iter(results)
    return tuple(next(rest) if isinstance(v, torch.Tensor) else None for v in flat(cx.value))


@lowers(higher_order.cond)
def cond(cx: Context, pred: Any, true: Module, false: Module, operands: Sequence[Any] = ()) -> Any:
    bodies = [cx.import_body(gm, operands, name) for gm, name in ((true, "true"), (false, "false"))]
    if not isinstance(pred, Node):
        body = bodies[0] if pred else bodies[1]
        return _returned(cx, inline(body.graph, _operands(body, operands)))
    selector = b.reshape(e.not_zero(pred), ())
    node = b.conditional(selector, [body.graph for body in bodies], _operands(bodies[0], operands))
    return _returned(cx, b.results(node))


@lowers(higher_order.while_loop)
def while_loop(
    cx: Context, condition: Module, step: Module, carried: Sequence[Any], extra: Sequence[Any] = ()
) -> Any:
    state = [*carried, *extra]
    if not all(isinstance(v, Node) for v in carried):
        raise NotImplementedError("a while_loop that carries numbers instead of tensors")
    test, body = (cx.import_body(gm, state, n) for gm, n in ((condition, "cond"), (step, "body")))
    # Operands that stay the same are part of the state too: the body hands them on.
    kept = body.graph.params[len(carried) :]
    loop = Graph(body.graph.name, body.graph.params, (*body.graph.results, *kept))
    tested = Graph(
        test.graph.name, body.graph.params, (b.reshape(e.not_zero(test.graph.results[0]), ()),)
    )
    node = b.while_(tested, loop, _operands(body, state))
    return _returned(cx, b.results(node)[: len(carried)])


def _loop(
    cx: Context,
    body: Body,
    init: Sequence[Node],
    xs: Sequence[Node],
    extra: Sequence[Node],
    count: int,
    name: str,
) -> list[Node]:
    """Run `body` on (carry, a slice of each xs, extra) `count` times; (carry, stacked results)."""
    stacked_types = [r.type for r in body.graph.results[len(init) :]]
    buffers = [e.number(0, t.dtype, (count, *t.shape)) for t in stacked_types]
    state = [e.number(0, DType.S64), *init, *buffers, *xs, *extra]
    params = [parameter(i, node.type) for i, node in enumerate(state)]
    cuts = [len(init), len(buffers), len(xs), len(extra)]
    groups, start = [], 1
    for size in cuts:
        groups.append(params[start : start + size])
        start += size
    carry, written, sources, rest = groups
    position = params[0]
    rows = [
        b.reshape(
            b.dynamic_slice(x, (position, *(0,) * (x.type.rank - 1)), (1, *x.shape[1:])),
            x.shape[1:],
        )
        for x in sources
    ]
    results = inline(body.graph, [*carry, *rows, *rest])
    updated = [
        b.dynamic_update_slice(w, b.reshape(r, (1, *r.shape)), (position, *(0,) * r.type.rank))
        for w, r in zip(written, results[len(init) :], strict=True)
    ]
    following = b.add(position, e.like(position, 1))
    loop = b.graph(
        f"{name}.body", params, [following, *results[: len(init)], *updated, *sources, *rest]
    )
    test = b.graph(f"{name}.cond", params, [b.less(position, e.like(position, count))])
    done = b.results(b.while_(test, loop, state))
    return list(done[1 : 1 + len(init) + len(buffers)])


@lowers(scan_op)
def scan(
    cx: Context,
    combine: Module,
    init: Sequence[Node],
    xs: Sequence[Node],
    extra: Sequence[Node] = (),
) -> Any:
    slices = [None] * len(xs)
    body = cx.import_body(combine, [*init, *slices, *extra], "scan")
    return _returned(cx, _loop(cx, body, init, xs, extra, xs[0].shape[0], body.graph.name))


@lowers(map_impl)
def map_(cx: Context, function: Module, xs: Sequence[Node], extra: Sequence[Any] = ()) -> Any:
    numbers = [v for v in extra if not isinstance(v, Node)]
    if numbers:
        raise NotImplementedError("a map whose function takes numbers")
    body = cx.import_body(function, [*(None for _ in xs), *extra], "map")
    return _returned(cx, _loop(cx, body, (), xs, list(extra), xs[0].shape[0], body.graph.name))


@lowers(higher_order.invoke_subgraph)
def invoke_subgraph(cx: Context, gm: Module, _name: str, *operands: Any) -> Any:
    body = cx.import_body(gm, operands, "region")
    return _returned(cx, inline(body.graph, _operands(body, operands)))


@lowers(higher_order.with_effects)
def with_effects(cx: Context, token: Node, target: Any, *args: Any, **kwargs: Any) -> Any:
    """An operator with an order; calls keep theirs by number, so the token has nothing to do."""
    value = cx.value[1:]
    if target is torch.ops.aten._linalg_check_errors.default:
        return (token, *(None for _ in value))
    inner = value[0] if len(value) == 1 else value
    context = cx.part(inner, _called(cx.fx, target))
    if not any(isinstance(v, torch.Tensor) for v in flat(value)):
        raise NotImplementedError(f"{target}, which only has an effect")
    lowering = find(target)
    if lowering is None:
        result = cx.host(context, target, args, kwargs)
    else:
        result = lowering(context, *args, **kwargs)
    return (token, *(result if isinstance(result, list | tuple) else (result,)))


def _called(node: torch.fx.Node, target: Any) -> torch.fx.Node:
    """The node as if it called `target` itself."""
    graph = torch.fx.Graph()
    return graph.create_node("call_function", target, (), {}, name=node.name)
