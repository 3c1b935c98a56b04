"""The reference executor: evaluates a graph node by node with the meanings in `ir/operators`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from neuronxcc.ir.arithmetic import Array
from neuronxcc.ir.dtypes import from_numpy
from neuronxcc.ir.graph import Graph
from neuronxcc.ir.node import Node, TensorType, topological
from neuronxcc.ir.op import Op
from neuronxcc.ir.operators.collectives import alone
from neuronxcc.ir.operators.definition import Exchange, Groups, Meaning
from neuronxcc.ir.table import TABLE, info

# Runs a CUSTOM_CALL or HOST_CALL: the node, its operands -> its results.
Caller = Callable[[Node, Sequence[Array]], Sequence[Array]]
R = TypeVar("R")


def evaluate(
    graph: Graph,
    args: Sequence[np.ndarray],
    call: Caller | None = None,
    exchange: Exchange = alone,
) -> list[np.ndarray]:
    """Return the results of a graph.

    Args:
        graph: A valid graph.
        args: One array per parameter, of its type.
        call: Runs custom and host calls.
        exchange: How this rank meets the others in collectives; groups of one rank need none.

    Raises:
        TypeError: an argument is not of its parameter's type.
        NotImplementedError: there is a custom or host call and no `call` to run it, or a collective
            of several ranks and no `exchange`.
    """
    return _Rank(call, exchange).run(graph, args)


def evaluate_ranks(
    graph: Graph, args: Sequence[Sequence[np.ndarray]], call: Caller | None = None
) -> list[list[np.ndarray]]:
    """Run a graph with collectives on several ranks: arguments and results per rank."""
    return on_ranks(len(args), lambda rank, exchange: evaluate(graph, args[rank], call, exchange))


def on_ranks(count: int, work: Callable[[int, Exchange], R]) -> list[R]:
    """Let threads be the ranks: call `work(rank, exchange)` on each; returns what they return."""
    world = _World(count)
    results: dict[int, R] = {}
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = work(rank, partial(world.exchange, rank))
        except threading.BrokenBarrierError:
            return  # another rank failed, and says why
        except BaseException as error:  # noqa: BLE001 - carried to the caller's thread
            errors.append(error)
            world.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[rank] for rank in range(count)]


def meaning(op: Op) -> Meaning:
    """The NumPy reference of one operator: node, operands -> result or results.

    Raises:
        KeyError: the operator has none of its own (parameters, control flow, calls, collectives).
    """
    found = TABLE[op].meaning
    if found is None:
        raise KeyError(op)
    return found


def apply(node: Node, operands: Sequence[Array]) -> tuple[Array, ...]:
    """The results of one node without attributes that hold graphs, by its meaning.

    Raises:
        KeyError: as `meaning`.
    """
    with np.errstate(all="ignore"):
        value = meaning(node.op)(node, *operands)
    return _checked(node, value if isinstance(value, tuple) else (value,))


def evaluate_node(
    node: Node, operands: Sequence[Array], call: Caller | None = None, exchange: Exchange = alone
) -> tuple[Array, ...]:
    """The results of one node, also of one whose attributes hold graphs, or of a call.

    Args:
        node: No parameter.
        operands: The values of its operands.
        call: Runs custom and host calls.
        exchange: How this rank meets the others in collectives.

    Raises:
        NotImplementedError: as `evaluate`.
    """
    evaluate_ = info(node).evaluate
    if evaluate_ is None:
        return apply(node, operands)
    with np.errstate(all="ignore"):
        return _checked(node, evaluate_(_Rank(call, exchange), node, list(operands)))


def _checked(node: Node, values: Sequence[Any]) -> tuple[Array, ...]:
    arrays = tuple(np.asarray(value) for value in values)
    found = tuple(TensorType(from_numpy(a.dtype), a.shape) for a in arrays)
    if found != node.types:
        raise AssertionError(f"the reference of {node!r} gave {', '.join(map(str, found))}")
    return arrays


class _World:
    """Where ranks meet: each leaves its tensor, then reads those of the others."""

    def __init__(self, ranks: int) -> None:
        self.barrier = threading.Barrier(ranks, timeout=60)
        self.slots: list[Any] = [None] * ranks

    def exchange(
        self, rank: int, _name: str, groups: Groups, value: Array
    ) -> tuple[int, Sequence[Array]]:
        self.slots[rank] = value
        self.barrier.wait()
        everyone = list(self.slots)
        self.barrier.wait()
        if not groups:
            return rank, everyone
        group = next(ranks for ranks in groups if rank in ranks)
        return group.index(rank), [everyone[member] for member in group]


@dataclass
class _Rank:
    call: Caller | None = None
    exchange: Exchange = alone

    def run(self, graph: Graph, args: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The results of a graph."""
        if len(args) != len(graph.params):
            raise TypeError(f"{graph.name!r} takes {len(graph.params)} arguments, got {len(args)}")
        values: dict[Node, tuple[Array, ...]] = {}
        for param, arg in zip(graph.params, args, strict=True):
            array = np.asarray(arg)
            found = TensorType(from_numpy(array.dtype), array.shape)
            if found != param.type:
                raise TypeError(f"argument {param['index']} is {found}; it must be {param.type}")
            values[param] = (array,)
        effects = [node for node in graph.nodes() if node.get("sequence") is not None]
        effects.sort(key=lambda node: int(node["sequence"]))
        for node in topological((*effects, *graph.results)):
            if node not in values:
                if node.op is Op.PARAMETER:
                    raise ValueError(f"{node!r} is no parameter of {graph.name!r}")
                values[node] = self._node(node, values)
        return [values[result][0] for result in graph.results]

    def _node(self, node: Node, values: dict[Node, tuple[Array, ...]]) -> tuple[Array, ...]:
        if node.op is Op.GET:
            return (values[node.srcs[0]][node["index"]],)
        operands = [values[src][0] for src in node.srcs]
        return evaluate_node(node, operands, self.call, self.exchange)

    def external(self, node: Node, operands: list[Array]) -> Sequence[Array]:
        """The results of a custom or host call."""
        if self.call is None:
            raise NotImplementedError(f"{node!r} calls {node['target']}; pass `call` to run it")
        return self.call(node, operands)
