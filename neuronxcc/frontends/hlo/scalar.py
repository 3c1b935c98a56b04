"""The small computations that reductions, scatters and sorts are given.

XLA lets them be any program on scalars. Most are one of a few operators, which the tensor IR has as
a kind; the others are applied to whole tensors, element by element (`lift`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from neuronxcc.frontends.hlo.errors import invalid, unsupported
from neuronxcc.frontends.hlo.site import Site, flatten
from neuronxcc.ir import build
from neuronxcc.ir.arithmetic import neutral
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import parameter
from neuronxcc.ir.make import make
from neuronxcc.ir.node import Literal, Node, TensorType, topological
from neuronxcc.ir.op import Op
from neuronxcc.ir.operators.checks import COMBINERS
from neuronxcc.ir.table import Group

SET: Final = "set"  # the second operand as it is


@dataclass(frozen=True, slots=True)
class Scalar:
    """A computation on scalars.

    Attributes:
        params: One node per parameter.
        results: The nodes of its results.
    """

    params: tuple[Node, ...]
    results: tuple[Node, ...]

    @classmethod
    def of(cls, site: Site, dtypes: Sequence[DType], number: int = 0) -> Scalar:
        """The computation that an instruction calls.

        Args:
            site: The instruction.
            dtypes: Of the parameters.
            number: Which of its computations.

        Raises:
            RefusedError: It takes other scalars, or returns something else than scalars.
        """
        params = tuple(parameter(i, TensorType(dtype)) for i, dtype in enumerate(dtypes))
        results = tuple(flatten(site.run(site.callee(number), params)))
        if any(result.shape for result in results):
            raise invalid(f"the computation of {site.opcode} must return scalars")
        return cls(params, results)

    def kinds(self, *others: str) -> list[str]:
        """The kind of every result as a function of two of 2n parameters, i and n + i.

        Args:
            others: What is allowed besides the kinds of reductions: SET.

        Raises:
            RefusedError: Some result is none of them.
        """
        found = self.known_kinds(*others)
        if found is None:
            raise unsupported(
                "a computation that is none of add, multiply, minimum, maximum, and, or, xor",
                "use one of these, or reduce with operators of the framework",
            )
        return found

    def known_kinds(self, *others: str) -> list[str] | None:
        """As `kinds`; None if some result is none of them."""
        half = len(self.params) // 2
        found = []
        for i, result in enumerate(self.results):
            lhs, rhs = self.params[i], self.params[half + i]
            if SET in others and result is rhs:
                found.append(SET)
                continue
            kind = next((k for k, op in COMBINERS.items() if _is(op, result, lhs, rhs)), None)
            if kind is None:
                return None
            found.append(kind)
        return found

    def lift(self, tensors: Sequence[Node]) -> tuple[Node, ...]:
        """The results for every element of tensors of one shape, given for the parameters."""
        return lift(self.results, dict(zip(self.params, tensors, strict=True)))


def _is(op: Op, node: Node, lhs: Node, rhs: Node) -> bool:
    return node.op is op and node.srcs in ((lhs, rhs), (rhs, lhs))


def lift(results: Iterable[Node], given: Mapping[Node, Node]) -> tuple[Node, ...]:
    """Apply scalar nodes to tensors.

    Args:
        results: Scalars made of the keys of `given` and of constants by elementwise operators.
        given: Parameters and the tensors, all of one shape, that stand for them.

    Raises:
        RefusedError: There is something else than elementwise operators.
    """
    shape = next(iter(given.values())).shape
    roots = tuple(results)
    new: dict[Node, Node] = {}
    for node in topological(roots):
        if node in given:
            new[node] = given[node]
        elif node.op is Op.CONSTANT:
            new[node] = build.broadcast_in_dim(node, shape, ()) if shape else node
        elif node.op in Group.ELEMENTWISE:
            new[node] = make(node.op, [new[src] for src in node.srcs], **node.attrs)
        else:
            raise unsupported(f"{node.op.value} inside a computation on scalars")
    return tuple(new[root] for root in roots)


def is_neutral(kind: str, node: Node) -> bool:
    """Return whether a scalar is a constant that changes nothing."""
    if node.op is not Op.CONSTANT:
        return False
    literal = node["literal"]
    expected = np.asarray(neutral(kind, node.dtype), node.dtype.numpy)
    if kind == "add" and node.dtype.is_float:
        return bool(literal.array == 0)  # -0.0 as well
    return bool(literal == Literal(expected))


def combine(kind: str, lhs: Node, rhs: Node) -> Node:
    """Two tensors, combined by the operator of a kind."""
    return make(COMBINERS[kind], (lhs, rhs))
