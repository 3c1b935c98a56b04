"""Operators that hold graphs: branches, loops, regions, and ordered effects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._higher_order_ops.map import map_impl
from torch._higher_order_ops.scan import scan_op

from neuronxcc.ir import build as b
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import Graph, parameter
from neuronxcc.ir.node import Node
from torch_neuronx.dynamo import emit as e
from torch_neuronx.dynamo.checks import demand, demand_factored
from torch_neuronx.dynamo.registry import Body, Context, find, flat, lowers

higher_order = torch.ops.higher_order
aten = torch.ops.aten
Module = torch.fx.GraphModule


@lowers(aten._assert_async.msg)
def assert_async(cx: Context, x: Node, text: str) -> None:
    holds = e.not_zero(x)
    if x.type.size != 1:  # refused by all calls, in the words of eager mode
        many = "more than one value" if x.type.size else "no values"
        text = f"Boolean value of Tensor with {many} is ambiguous"
        holds = e.number(value=False, dtype=DType.PRED)
    demand(cx, holds, text)


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
        return _returned(cx, _inlined(cx, body, _operands(body, operands)))
    selector = b.reshape(e.not_zero(pred), ())
    checks = any(body.checks for body in bodies)
    graphs = [_with_number(body) if checks else body.graph for body in bodies]
    results = b.results(b.conditional(selector, graphs, _operands(bodies[0], operands)))
    if checks:
        cx.effects.append(results[-1])
    return _returned(cx, results)


def _inlined(cx: Context, body: Body, operands: Sequence[Node]) -> list[Node]:
    results = body.graph.apply(operands)
    if body.checks:
        cx.effects.append(results.pop())
    return results


def _with_number(body: Body) -> Graph:
    """The branch with the number that its checks give, which is 0 if it has none."""
    graph = body.graph
    return (
        graph if body.checks else replace(graph, results=(*graph.results, e.number(0, DType.S64)))
    )


@lowers(higher_order.while_loop)
def while_loop(
    cx: Context, condition: Module, step: Module, carried: Sequence[Any], extra: Sequence[Any] = ()
) -> Any:
    state = [*carried, *extra]
    if not all(isinstance(v, Node) for v in carried):
        raise NotImplementedError("a while_loop that carries numbers instead of tensors")
    test, body = (cx.import_body(gm, state, n) for gm, n in ((condition, "cond"), (step, "body")))
    if test.checks:
        raise NotImplementedError("a check on which no result depends in the condition of a loop")
    # Operands that stay the same are part of the state too: the body hands them on.
    kept = body.graph.params[len(carried) :]
    params, initial = body.graph.params, _operands(body, state)
    results = (*body.graph.results[: len(carried)], *kept)
    if body.checks:
        checked = parameter(len(params), body.graph.results[-1].type)
        results = (*results, b.add(checked, body.graph.results[-1]))
        params = (*params, checked)
        initial.append(e.number(0, checked.dtype))
    loop = Graph(body.graph.name, params, results)
    tested = Graph(test.graph.name, params, (b.reshape(e.not_zero(test.graph.results[0]), ()),))
    done = b.results(b.while_(tested, loop, initial))
    if body.checks:
        cx.effects.append(done[-1])
    return _returned(cx, done[: len(carried)])


def _loop(
    cx: Context,
    body: Body,
    init: Sequence[Node],
    xs: Sequence[Node],
    extra: Sequence[Any],
    count: int,
    name: str,
) -> list[Node]:
    """Run `body` on (carry, a slice of each xs, extra) `count` times; (carry, stacked results).

    Numbers among `extra`, which are sizes where these were symbols, are known to the body.
    """
    tensors = [v for v in extra if isinstance(v, Node)]
    returned = len(body.graph.results) - body.checks
    stacked_types = [r.type for r in body.graph.results[len(init) : returned]]
    buffers = [e.number(0, t.dtype, (count, *t.shape)) for t in stacked_types]
    state = [
        e.number(0, DType.S64),
        *init,
        *buffers,
        *xs,
        *tensors,
        *[e.number(0, DType.S64)] * body.checks,
    ]
    params = [parameter(i, node.type) for i, node in enumerate(state)]
    cuts = [len(init), len(buffers), len(xs), len(tensors), int(body.checks)]
    groups, start = [], 1
    for size in cuts:
        groups.append(params[start : start + size])
        start += size
    carry, written, sources, rest, checked = groups
    position = params[0]
    rows = [
        b.reshape(
            b.dynamic_slice(x, (position, *(0,) * (x.type.rank - 1)), (1, *x.shape[1:])),
            x.shape[1:],
        )
        for x in sources
    ]
    results = body.graph.apply([*carry, *rows, *rest])
    updated = [
        b.dynamic_update_slice(w, b.reshape(r, (1, *r.shape)), (position, *(0,) * r.type.rank))
        for w, r in zip(written, results[len(init) : returned], strict=True)
    ]
    numbers = [b.add(before, results[-1]) for before in checked]
    following = b.add(position, e.like(position, 1))
    loop = b.graph(
        f"{name}.body",
        params,
        [following, *results[: len(init)], *updated, *sources, *rest, *numbers],
    )
    test = b.graph(f"{name}.cond", params, [b.less(position, e.like(position, count))])
    done = b.results(b.while_(test, loop, state))
    if body.checks:
        cx.effects.append(done[-1])
    return list(done[1 : 1 + len(init) + len(buffers)])


@lowers(scan_op)
def scan(
    cx: Context,
    combine: Module,
    init: Sequence[Node],
    xs: Sequence[Node],
    extra: Sequence[Any] = (),
) -> Any:
    slices = [None] * len(xs)
    body = cx.import_body(combine, [*init, *slices, *extra], "scan")
    return _returned(cx, _loop(cx, body, init, xs, extra, xs[0].shape[0], body.graph.name))


@lowers(map_impl)
def map_(cx: Context, function: Module, xs: Sequence[Node], extra: Sequence[Any] = ()) -> Any:
    body = cx.import_body(function, [*(None for _ in xs), *extra], "map")
    return _returned(cx, _loop(cx, body, (), xs, extra, xs[0].shape[0], body.graph.name))


@lowers(higher_order.invoke_subgraph)
def invoke_subgraph(cx: Context, gm: Module, _name: str, *operands: Any) -> Any:
    body = cx.import_body(gm, operands, "region")
    return _returned(cx, body.graph.apply(_operands(body, operands)))


@lowers(higher_order.with_effects)
def with_effects(cx: Context, token: Node, target: Any, *args: Any, **kwargs: Any) -> Any:
    """An operator with an order; calls keep theirs by number, so the token has nothing to do."""
    value = cx.value[1:]
    if target is torch.ops.aten._linalg_check_errors.default:
        demand_factored(cx, *args, **kwargs)
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
