"""Calls of compiled graphs with tensors that are more than their memory.

A program reads memory. A tensor that is lazily conjugated or negated has other values than its
memory, so it is written out first. One that belongs to a transformation of `torch.func` (a batch of
`vmap`), or that carries a tangent of forward-mode differentiation, has to meet each operator by
itself: the transformation says what the operator does. Such a call runs the graph's operators one
by one, as eager mode does. So does a call under `FakeTensorMode`, where there is no memory at all:
it says what the results would be, as those do who size up a model before they have one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from operator import attrgetter
from typing import Any

import torch
from torch._C._functorch import is_legacy_batchedtensor, maybe_current_level
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.nn import Module

from neuronxcc.lowering.geometry.layout import span
from torch_neuronx.dynamo.boxes import Boxed, takes_list

aten = torch.ops.aten


def written_out(gm: GraphModule) -> dict[int, bool]:
    """Declare arguments that were traced as lazily conjugated or negated as plain ones.

    Args:
        gm: One of AOTAutograd's graphs. What its arguments are said to be changes.

    Returns:
        The numbers of the arguments that may come with such a bit, and whether the graph writes to
        them. Gradients come with one though they were traced without.
    """
    found: dict[int, bool] = {}
    for number, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            continue
        lazy = value.is_conj() or value.is_neg()
        if lazy:
            node.meta["val"] = value.new_empty_strided(value.shape, value.stride())
        if lazy or value.is_complex():
            found[number] = any(_writes_to(user, node) for user in node.users)
    return found


def _plain(given: torch.Tensor) -> torch.Tensor:
    """Write out a tensor's lazy bits; the result has its strides, which a program is made for.

    ATen's copy of a tensor with gaps has none, so that the gaps are copied, too.
    """
    if given.is_contiguous() or given.numel() == 0:
        return given.resolve_conj().resolve_neg()
    conj, neg = given.is_conj(), given.is_neg()
    memory = given.conj() if conj else given
    memory = memory._neg_view() if neg else memory
    line = memory.as_strided((span(given.shape, given.stride()),), (1,))
    line = line.conj() if conj else line
    line = line._neg_view() if neg else line
    return line.resolve_conj().resolve_neg().as_strided(given.shape, given.stride(), 0)


def _writes_to(user: Node, node: Node) -> bool:
    return user.target is aten.copy_.default and user.args[0] is node


def takes_any_tensor(run: Boxed, gm: GraphModule, lazy: Mapping[int, bool]) -> Boxed:
    """Wrap what runs a graph, for arguments that a program can't read as they are.

    Args:
        run: Runs it, for a list of arguments.
        gm: The graph.
        lazy: From `written_out`.
    """
    plain = _read_plain(run, lazy) if lazy else run
    operators = _bare(gm)
    tangents = _tangents(gm)
    without_memory = fake_call(gm)

    def call(args: list[Any]) -> list[Any]:
        if without_memory(args):
            return list(operators(args, detect_fake_mode(args)))
        transformed = forward_ad._current_level >= 0 or maybe_current_level() is not None
        if transformed or (tangents and any(_is_batched(args[i]) for i in tangents)):
            return list(operators(args, None))
        return plain(args)

    return takes_list(call)


def fake_call(gm: GraphModule) -> Callable[[Sequence[Any]], bool]:
    """Whether a graph is called under `FakeTensorMode`, or with what that made, of its arguments.

    One argument is looked at: PyTorch's operators refuse fake tensors beside others.
    """
    active, fake_key = torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey.FAKE
    arguments = enumerate(gm.graph.find_nodes(op="placeholder"))
    first = next((number for number, node in arguments if _is_tensor(node)), None)
    if first is None:
        return lambda _args: active(fake_key) is not None
    return lambda args: active(fake_key) is not None or type(args[first]) is FakeTensor


def _is_tensor(node: Node) -> bool:
    """A node of a graph of AOTAutograd's, or of Dynamo's."""
    value = node.meta.get("val", node.meta.get("example_value"))
    return isinstance(value, torch.Tensor)


def _tangents(gm: GraphModule) -> tuple[int, ...]:
    """Find the arguments through which `autograd.grad(is_grads_batched=True)` passes its batches.

    It has a `vmap` of its own, of which only its tensors know.
    """
    arguments = enumerate(gm.graph.find_nodes(op="placeholder"))
    return tuple(
        number
        for number, node in arguments
        if node.name.startswith("tangents_") and isinstance(node.meta.get("val"), torch.Tensor)
    )


def _is_batched(tangent: Any) -> bool:
    # Autograd passes None where no gradient comes back to a result.
    return isinstance(tangent, torch.Tensor) and is_legacy_batchedtensor(tangent)


def _read_plain(run: Boxed, lazy: Mapping[int, bool]) -> Boxed:
    def call(args: list[Any]) -> list[Any]:
        changed: list[tuple[torch.Tensor, torch.Tensor]] = []
        for number, written in lazy.items():
            given = args[number]
            if isinstance(given, torch.Tensor) and (given.is_conj() or given.is_neg()):
                args[number] = _plain(given)
                if written:
                    changed.append((given, args[number]))
        results = run(args)
        for given, copy in changed:
            given.copy_(copy)
        return results

    return call


def _bare(gm: GraphModule) -> Callable[[list[Any], FakeTensorMode | None], Any]:
    """Run a copy of a graph, operator by operator; under this mode, if there is one.

    It is kept as long as the program is: without the fake tensors and the lines that were noted
    about its nodes, and with the tensors that it holds itself.
    """
    graph, root = Graph(), Module()
    copies: dict[Node, Node] = {}
    for number, node in enumerate(gm.graph.nodes):
        copies[node] = copy = graph.node_copy(node, copies.__getitem__)
        copy.meta = {}
        if node.op == "get_attr":
            copy.target = f"held{number}"
            setattr(root, copy.target, attrgetter(node.target)(gm))

    def run(args: list[Any], mode: FakeTensorMode | None) -> Any:
        with nullcontext() if mode is None else mode:  # what the graph creates is fake, too
            return OneByOne(root, mode, graph).boxed_run(args)

    return run


class OneByOne(Interpreter):
    """Runs a graph's operators; a tensor that it holds itself is fake where the others are."""

    def __init__(self, root: Module, mode: FakeTensorMode | None, graph: Graph) -> None:
        super().__init__(root, graph=graph)
        self.mode = mode

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Read a tensor that the graph holds."""
        held = super().get_attr(target, args, kwargs)
        if self.mode is None or not isinstance(held, torch.Tensor):
            return held
        return self.mode.from_tensor(held, static_shapes=True)
