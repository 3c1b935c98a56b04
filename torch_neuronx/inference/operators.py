"""The support of the operators of an exported graph on NeuronCores, one by one."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node

from neuronxcc.ir.limits import limits
from neuronxcc.targets import get_target
from torch_neuronx.dynamo.importer import import_graph
from torch_neuronx.dynamo.portability import dtype_of
from torch_neuronx.inference.capture import functional_graph
from torch_neuronx.ops.entry import base_name
from torch_neuronx.ops.lookup import verdict
from torch_neuronx.ops.modes import current_policy


def operator_of(node: Node) -> str:
    """The name of the operator that a node calls, without its overload; "" for other nodes."""
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return ""
    if node.target.namespace != "aten":
        return ""
    return f"aten::{base_name(node.target._name).removeprefix('aten::')}"  # noqa: SLF001


def failure_of(node: Node) -> tuple[str, str]:
    """Where an operator of an exported graph fails, and its graph; empty texts if it doesn't."""
    single = _alone(node)
    text = str(single.graph)
    try:
        gm = functional_graph(single)
        imported = import_graph(gm, "operator", ())
    except Exception as error:  # noqa: BLE001 - whatever it is, this operator can't be compiled
        return "Lowering to HLO", f"{text}\n{type(error).__name__}: {error}"
    if imported.host_calls:
        return "Lowering to HLO", text
    policy = current_policy()
    for part in gm.graph.nodes:
        target = part.target
        if not isinstance(target, OpOverload) or target.namespace != "aten":
            continue
        if not verdict(base_name(target._name), dtype_of(part), policy).on_neuron_core:  # noqa: SLF001
            return "neuronx-cc", text
    met = limits(imported.graph, get_target(policy.target))
    refused = any(not gap.typed and gap.accept not in policy.accepted for _, gap in met)
    return ("neuronx-cc", text) if refused else ("", "")


def _alone(node: Node) -> GraphModule:
    """A graph of one operator with its tensors as arguments."""
    graph = Graph()
    places: dict[Node, Node] = {}

    def place(argument: Node) -> Any:
        value = argument.meta.get("val")
        if not isinstance(value, torch.Tensor):
            return value
        if argument not in places:
            places[argument] = graph.placeholder(argument.name)
            places[argument].meta["val"] = value
        return places[argument]

    arguments: Mapping[str, Any] = {"args": node.args, "kwargs": node.kwargs}
    mapped = torch.fx.map_arg(dict(arguments), place)
    # Arguments come first in a graph; they were made while the call was put together.
    call = graph.call_function(node.target, mapped["args"], mapped["kwargs"])  # type: ignore[arg-type]
    call.meta = dict(node.meta)
    value = node.meta.get("val")
    results: list[Node] = [call]
    if isinstance(value, tuple | list):
        results = []
        for i, item in enumerate(value):
            if isinstance(item, torch.Tensor):
                part = graph.call_function(operator.getitem, (call, i))
                part.meta["val"] = item
                results.append(part)
    elif not isinstance(value, torch.Tensor):
        results = []
    graph.output(tuple(results))
    return GraphModule(torch.nn.Module(), graph)
