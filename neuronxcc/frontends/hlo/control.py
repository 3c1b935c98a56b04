"""Calls, loops and branches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neuronxcc.frontends.hlo.errors import invalid
from neuronxcc.frontends.hlo.site import (
    Handler,
    Scope,
    Site,
    Value,
    flatten,
    type_of_value,
    unflatten,
)
from neuronxcc.frontends.hlo.types import Type, leaves, text_of
from neuronxcc.ir import build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import Graph, parameter
from neuronxcc.ir.node import Node, TensorType

_SELECTORS = (TensorType(DType.PRED), TensorType(DType.S32))


def _call(site: Site) -> Value:
    """Inlined: the tensor IR has no functions that stay."""
    return site.run(site.callee(), site.operands)


@dataclass
class _Nested:
    """Graphs of loops and branches, which may ask for the number of the device.

    If one of an instruction's graphs does, all have it as a last parameter.
    """

    site: Site
    types: Sequence[TensorType]

    def __post_init__(self) -> None:
        rank = parameter(len(self.types), TensorType(DType.S32), "rank")
        self.scope = Scope(rank)

    def results(self, number: int, place: int, of: Type) -> list[Node]:
        """The result of a computation for parameters from `place` on, of the type `of`."""
        params = [parameter(i, t) for i, t in enumerate(self.types)]
        value = unflatten(of, params[place : place + len(leaves(of))])
        with self.site.within(self.scope):
            return flatten(self.site.run(self.site.callee(number), (value,)))

    def graph(self, number: int, results: Sequence[Node]) -> Graph:
        """The graph of computation `number`; made after all have given their results."""
        params = [parameter(i, t) for i, t in enumerate(self.types)]
        if self.scope.used:
            params.append(self.scope.rank)
        return Graph(f"{self.site.proto.name}.{number}", tuple(params), tuple(results))

    def further(self) -> list[Node]:
        """Operands beyond the instruction's own."""
        return [self.site.rank()] if self.scope.used else []


def _while(site: Site) -> Value:
    if len(site.operands) != 1 or len(site.called) != 2:
        raise invalid("while takes one value, a condition and a body")
    state = flatten(site.operands[0])
    of = type_of_value(site.operands[0])
    nested = _Nested(site, [node.type for node in state])
    # XLA lists the body first.
    after, condition = (nested.results(number, 0, of) for number in (0, 1))
    if [r.type for r in condition] != [TensorType(DType.PRED)]:
        raise invalid("the condition of a while returns one pred[]")
    if not state:
        raise invalid("while without a state would never end")
    if nested.scope.used:
        after.append(nested.scope.rank)
    body, cond = nested.graph(0, after), nested.graph(1, condition)
    final = build.results(build.while_(cond, body, [*state, *nested.further()]))
    return unflatten(of, final[: len(state)])


def _conditional(site: Site) -> Value:
    if len(site.operands) != len(site.called) + 1 or not site.called:
        raise invalid("conditional takes one value per branch, after the selector")
    selector, *values = site.operands
    choice = selector
    if not isinstance(choice, Node) or choice.type not in _SELECTORS:
        raise invalid("the selector of a conditional is pred[] or s32[]")
    operands = flatten(tuple(values))
    nested = _Nested(site, [node.type for node in operands])
    found, place = [], 0
    for number, value in enumerate(values):
        of = type_of_value(value)
        found.append(nested.results(number, place, of))
        place += len(leaves(of))
    if any([r.type for r in results] != leaves(site.type) for results in found):
        raise invalid(f"a branch returns something else than {text_of(site.type)}")
    if not found[0]:
        return unflatten(site.type, ())
    branches = [nested.graph(number, results) for number, results in enumerate(found)]
    chosen = build.conditional(choice, branches, [*operands, *nested.further()])
    return unflatten(site.type, build.results(chosen))


TABLE: dict[str, Handler] = {
    "call": _call,
    "fusion": _call,
    "while": _while,
    "conditional": _conditional,
}
