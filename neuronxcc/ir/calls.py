"""Builders of what is called: control flow, custom calls.

`build` has them all: front ends import that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from neuronxcc.ir.graph import Graph
from neuronxcc.ir.make import make
from neuronxcc.ir.node import Node, TensorType
from neuronxcc.ir.op import Op
from neuronxcc.ir.operators.checks import ShapeError

# Checks that all elements are between two numbers, and gives 0 of their type: (values, low, high,
# text of the error, whether that is an IndexError). `torch_neuronx/csrc/program/check_values.cpp`.
CHECK = "neuron::check_values.default"
# The same after a loop that compared the values: a number that is not 0 if one may be outside, then
# the arguments of CHECK. It returns nothing.
NOTED = "neuron::check_noted_values.default"
# Checks what LAPACK said of each matrix: (infos, name of the function, whether it is one matrix).
# It gives 0, as CHECK does.
FACTORED = "neuron::check_factorization.default"
#: They compare numbers, and do nothing else: a program from a file may name them.
CHECKS = frozenset({CHECK, NOTED, FACTORED})

__all__ = [
    "CHECK",
    "CHECKS",
    "FACTORED",
    "NOTED",
    "call",
    "conditional",
    "custom_call",
    "get",
    "graph",
    "host_call",
    "results",
    "while_",
]


def get(node: Node, index: int) -> Node:
    """Result number `index` of a node; the node itself if it has one result."""
    if not 0 <= index < len(node.types):
        raise ShapeError(Op.GET, f"index {index} of {len(node.types)} result(s)")
    if len(node.types) == 1:
        return node
    return Node.make(Op.GET, node.types[index], (node,), {"index": index})


def results(node: Node) -> tuple[Node, ...]:
    """All results of a node."""
    return tuple(get(node, i) for i in range(len(node.types)))


def call(body: Graph, operands: Sequence[Node]) -> Node:
    """The results of a graph on operands."""
    return make(Op.CALL, operands, body=body)


def while_(cond: Graph, body: Graph, state: Sequence[Node]) -> Node:
    """Apply `body` to the state as long as `cond` gives true; results: the final state."""
    return make(Op.WHILE, state, cond=cond, body=body)


def conditional(selector: Node, branches: Sequence[Graph], operands: Sequence[Node]) -> Node:
    """The results of one branch: a pred takes branch 0 if true, else 1; an s32 is the number.

    A number outside the branches takes the last one, as in XLA.
    """
    return make(Op.CONDITIONAL, (selector, *operands), branches=tuple(branches))


def _called(
    op: Op,
    target: str,
    types: Sequence[TensorType],
    operands: Sequence[Node],
    **attrs: Any,
) -> Node:
    if attrs["sequence"] is None:
        del attrs["sequence"]
    attrs["kwargs"] = tuple(sorted((attrs["kwargs"] or {}).items()))
    return Node.make(op, tuple(types), operands, {"target": target, **attrs})


def custom_call(
    target: str,
    types: Sequence[TensorType],
    operands: Sequence[Node],
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    device: bool = False,
    sequence: int | None = None,
) -> Node:
    """An operator of ATen by which we execute what a NeuronCore has.

    Args:
        target: Qualified name with overload, "aten::sort.stable".
        types: Of the results; take them with `get`.
        operands: The tensors.
        args: As in the operator's schema; `Operand(i)` stands for tensor number i.
        kwargs: Likewise.
        device: Run the `neuron` operator, not ATen's CPU kernel (random numbers).
        sequence: Set for operators with effects: unique in the graph, in the order of execution.
    """
    return _called(
        Op.CUSTOM_CALL,
        target,
        types,
        operands,
        args=tuple(args),
        kwargs=kwargs,
        device=device,
        sequence=sequence,
    )


def host_call(
    target: str,
    types: Sequence[TensorType],
    operands: Sequence[Node],
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    sequence: int | None = None,
) -> Node:
    """An operator without a lowering, run by the host; arguments as for `custom_call`."""
    return _called(
        Op.HOST_CALL,
        target,
        types,
        operands,
        args=tuple(args),
        kwargs=kwargs,
        device=False,
        sequence=sequence,
    )


def graph(
    name: str,
    params: Sequence[Node],
    outputs: Sequence[Node],
    aliases: Mapping[int, int] | None = None,
) -> Graph:
    """A graph of parameters (made by `parameter`, in order) and results."""
    return Graph(name, tuple(params), tuple(outputs), dict(aliases or {}))
