"""The reference executor: evaluates a graph node by node with the meanings in `ir/meaning`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from neuronxcc.ir.dtypes import from_numpy
from neuronxcc.ir.graph import Graph
from neuronxcc.ir.meaning import contraction, elementwise, movement, reduction
from neuronxcc.ir.meaning.collectives import Exchange, Groups, alone, collective
from neuronxcc.ir.meaning.elementwise import Array
from neuronxcc.ir.node import Node, TensorType, topological
from neuronxcc.ir.op import Group, Op

# Runs a CUSTOM_CALL or HOST_CALL: the node, its operands -> its results.
Caller = Callable[[Node, Sequence[Array]], Sequence[Array]]
Meaning = Callable[..., Any]
R = TypeVar("R")

MEANINGS: dict[Op, Meaning] = {
    Op.CONSTANT: lambda node: node["literal"].array,
    Op.IOTA: movement.iota,
    **dict.fromkeys(Group.UNARY, elementwise.unary),
    **dict.fromkeys(Group.BINARY, elementwise.binary),
    Op.IS_FINITE: elementwise.predicate,
    Op.IS_NAN: elementwise.predicate,
    Op.REAL: elementwise.part,
    Op.IMAG: elementwise.part,
    Op.CONVERT: elementwise.convert,
    Op.BITCAST_CONVERT: elementwise.bitcast,
    Op.REDUCE_PRECISION: elementwise.reduce_precision,
    Op.COMPLEX: elementwise.complex_,
    Op.COMPARE: elementwise.compare,
    Op.SELECT: elementwise.select,
    Op.CLAMP: elementwise.clamp,
    Op.BROADCAST_IN_DIM: movement.broadcast,
    Op.RESHAPE: movement.reshape,
    Op.TRANSPOSE: movement.transpose,
    Op.SLICE: movement.slice_,
    Op.PAD: movement.pad,
    Op.CONCATENATE: movement.concatenate,
    Op.REVERSE: movement.reverse,
    Op.DYNAMIC_SLICE: movement.dynamic_slice,
    Op.DYNAMIC_UPDATE_SLICE: movement.dynamic_update_slice,
    Op.GATHER: movement.gather,
    Op.SCATTER: movement.scatter,
    Op.DOT_GENERAL: contraction.dot,
    Op.CONVOLUTION: contraction.convolution,
    Op.REDUCE: reduction.reduce,
    Op.ARG_REDUCE: reduction.arg_reduce,
    Op.REDUCE_WINDOW: reduction.reduce_window,
    Op.SELECT_AND_SCATTER: reduction.select_and_scatter,
    Op.CUMULATIVE: reduction.cumulative,
    Op.SORT: reduction.sort,
    Op.TOPK: reduction.topk,
}


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


def apply(node: Node, operands: Sequence[Array]) -> tuple[Array, ...]:
    """The results of one node without attributes that hold graphs, by its meaning.

    Raises:
        KeyError: the operator has no meaning of its own (parameters, calls, collectives).
    """
    with np.errstate(all="ignore"):
        value = MEANINGS[node.op](node, *operands)
    return _checked(node, value if isinstance(value, tuple) else (value,))


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
        if node.op in Group.COLLECTIVE:
            with np.errstate(all="ignore"):
                value = collective(node.op, node.attrs, operands[0], self.exchange)
                return _checked(node, (value,))
        if node.op in _CONTROL:
            return _checked(node, _CONTROL[node.op](self, node, operands))
        return apply(node, operands)

    def _call(self, node: Node, operands: list[Array]) -> Sequence[Array]:
        return self.run(node["body"], operands)

    def _while(self, node: Node, state: list[Array]) -> Sequence[Array]:
        while self.run(node["cond"], state)[0]:
            state = self.run(node["body"], state)
        return state

    def _conditional(self, node: Node, operands: list[Array]) -> Sequence[Array]:
        selector, *rest = operands
        branches = node["branches"]
        number = int(not selector) if selector.dtype == np.bool_ else int(selector)
        inside = 0 <= number < len(branches)
        return self.run(branches[number if inside else len(branches) - 1], rest)

    def _external(self, node: Node, operands: list[Array]) -> Sequence[Array]:
        if self.call is None:
            raise NotImplementedError(f"{node!r} calls {node['target']}; pass `call` to run it")
        return self.call(node, operands)


_CONTROL: dict[Op, Callable[[_Rank, Node, list[Array]], Sequence[Array]]] = {
    Op.CALL: _Rank._call,  # noqa: SLF001 - a table of its own methods
    Op.WHILE: _Rank._while,  # noqa: SLF001
    Op.CONDITIONAL: _Rank._conditional,  # noqa: SLF001
    Op.CUSTOM_CALL: _Rank._external,  # noqa: SLF001
    Op.HOST_CALL: _Rank._external,  # noqa: SLF001
}
