"""Calls, loops and branches."""

from __future__ import annotations

from collections.abc import Sequence

from neuronxcc.frontends.hlo.errors import invalid
from neuronxcc.frontends.hlo.site import Handler, Site, Value, flatten, type_of_value, unflatten
from neuronxcc.frontends.hlo.types import Type, leaves, text_of
from neuronxcc.ir import build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import Graph, parameter
from neuronxcc.ir.node import Node, TensorType

_SELECTORS = (TensorType(DType.PRED), TensorType(DType.S32))


def _call(site: Site) -> Value:
    """Inlined: the tensor IR has no functions that stay."""
    return site.run(site.callee(), site.operands)


def _graph(site: Site, number: int, types: Sequence[TensorType], place: int, of: Type) -> Graph:
    """A computation as a graph of its own.

    Args:
        site: The instruction that calls it.
        number: Which of its computations.
        types: Of all parameters of the graph.
        place: Number of the first one that the computation takes.
        of: Type of the value that the computation takes.
    """
    params = [parameter(i, t) for i, t in enumerate(types)]
    value = unflatten(of, params[place : place + len(leaves(of))])
    results = flatten(site.run(site.callee(number), (value,)))
    return Graph(f"{site.proto.name}.{number}", tuple(params), tuple(results))


def _while(site: Site) -> Value:
    if len(site.operands) != 1 or len(site.called) != 2:
        raise invalid("while takes one value, a condition and a body")
    state = flatten(site.operands[0])
    types, of = [node.type for node in state], type_of_value(site.operands[0])
    # XLA lists the body first.
    body, cond = (_graph(site, number, types, 0, of) for number in (0, 1))
    if [r.type for r in cond.results] != [TensorType(DType.PRED)]:
        raise invalid("the condition of a while returns one pred[]")
    if not state:
        raise invalid("while without a state would never end")
    return unflatten(of, build.results(build.while_(cond, body, state)))


def _conditional(site: Site) -> Value:
    if len(site.operands) != len(site.called) + 1 or not site.called:
        raise invalid("conditional takes one value per branch, after the selector")
    selector, *values = site.operands
    choice = selector
    if not isinstance(choice, Node) or choice.type not in _SELECTORS:
        raise invalid("the selector of a conditional is pred[] or s32[]")
    operands = flatten(tuple(values))
    types = [node.type for node in operands]
    branches, place = [], 0
    for number, value in enumerate(values):
        of = type_of_value(value)
        branches.append(_graph(site, number, types, place, of))
        place += len(leaves(of))
    given = [[r.type for r in branch.results] for branch in branches]
    if any(types_ != leaves(site.type) for types_ in given):
        raise invalid(f"a branch returns something else than {text_of(site.type)}")
    if not given[0]:
        return unflatten(site.type, ())
    return unflatten(site.type, build.results(build.conditional(choice, branches, operands)))


TABLE: dict[str, Handler] = {
    "call": _call,
    "fusion": _call,
    "while": _while,
    "conditional": _conditional,
}
