"""Loops whose turns can be counted before they run, because constants decide how many there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from neuronxcc.ir.graph import Graph
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.ir.operators.definition import Kind
from neuronxcc.ir.reference import evaluate
from neuronxcc.ir.table import TABLE

__all__ = ["turns_of"]

Array = npt.NDArray[Any]

_ELSEWHERE: Final = frozenset({Kind.COLLECTIVE, Kind.CALL, Kind.CONTROL})
_COUNTED: Final = 16  # elements of what counts


def turns_of(call: Node, body: Graph, most: int) -> list[dict[int, Array]] | None:
    """Return what the parts of a loop's state that are counted are after each turn.

    These are parts that begin with constants and depend on each other alone; the condition has to
    depend on them alone, too.

    Args:
        call: the loop.
        body: its body, or what that was rewritten to.
        most: turns that are counted.

    Returns:
        For each turn the parts by their number; None if nobody knows how many turns there are, or
        if there are more.
    """
    cond: Graph = call["cond"]
    needs = [_needs(result, body) for result in body.results]
    known = {
        at: np.asarray(node["literal"].array)
        for at, node in enumerate(call.srcs)
        if node.op is Op.CONSTANT and node.type.size <= _COUNTED
    }
    while lost := {at for at in known if not needs[at] <= known.keys()}:
        for at in lost:
            del known[at]
    if not _needs(cond.results[0], cond) <= known.keys():
        return None
    counts = Graph("counts", body.params, tuple(body.results[at] for at in known))
    if any(TABLE[node.op].kind in _ELSEWHERE for g in (cond, counts) for node in g.nodes()):
        return None
    found: list[dict[int, Array]] = []
    while evaluate(cond, _filled(cond, known))[0]:
        if len(found) == most:
            return None
        known = dict(zip(known, evaluate(counts, _filled(counts, known)), strict=True))
        found.append(known)
    return found


def _needs(node: Node, graph: Graph) -> set[int]:
    """Return the numbers of the parameters that a node depends on."""
    numbers = {param: at for at, param in enumerate(graph.params)}
    return {numbers[part] for part in Graph("part", (), (node,)).nodes() if part in numbers}


def _filled(graph: Graph, known: Mapping[int, Array]) -> list[Array]:
    """Return arguments for a graph that looks at what is known alone."""
    return [
        known[at] if at in known else np.broadcast_to(np.zeros((), p.dtype.numpy), p.shape)
        for at, p in enumerate(graph.params)
    ]
