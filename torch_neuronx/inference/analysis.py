"""`analyze`: which operators of a function NeuronCores have."""

from __future__ import annotations

import operator
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node

import neuronxcc
from neuronxcc.files import write_whole
from torch_neuronx.dynamo.importer import import_graph
from torch_neuronx.dynamo.portability import dtype_of
from torch_neuronx.inference.capture import export, functional_graph
from torch_neuronx.inference.trace import examples_of
from torch_neuronx.ops.entry import base_name
from torch_neuronx.ops.lookup import verdict
from torch_neuronx.ops.modes import current_policy


def analyze(
    func: Callable[..., Any],
    example_inputs: Any,
    compiler_workdir: str | Path | None = None,
    additional_ignored_ops: Collection[str] = frozenset(),
    max_workers: int = 4,
    is_hf_transformers: bool = False,
    cleanup: bool = False,
) -> dict[str, Any]:
    """Check every operator of a function against what NeuronCores have.

    Args:
        func: A module or function.
        example_inputs: As for `trace`.
        compiler_workdir: Directory to leave the graph of every unsupported operator in.
        additional_ignored_ops: Operators ("aten::sort") that are not looked at.
        max_workers: Accepted for programs that pass it; there is nothing to wait for here.
        is_hf_transformers: Accepted likewise.
        cleanup: Remove `compiler_workdir` at the end.

    Returns:
        "torch_neuronx_version", "neuronx_cc_version", "support_percentage" ("100.00%"),
        "supported_operators" (name: how often), and "unsupported_operators", a list of "kind",
        "failureAt" ("neuronx-cc": no NeuronCore has it; "Lowering to HLO": the compiler cannot
        translate it), "call" (the user's lines) and "opGraph".
    """
    from torch_neuronx import __version__  # noqa: PLC0415

    del max_workers, is_hf_transformers
    args, kwargs = examples_of(func, example_inputs)
    graph = export(func, args, kwargs).graph
    ignored = frozenset(additional_ignored_ops)
    supported: Counter[str] = Counter()
    unsupported: list[dict[str, str]] = []
    for node in graph.nodes:
        name = operator_of(node)
        if not name or name in ignored:
            continue
        failure, text = failure_of(node)
        if not failure:
            supported[name] += 1
            continue
        call = str(node.meta.get("stack_trace") or "")
        unsupported.append({"kind": name, "failureAt": failure, "call": call, "opGraph": text})
    if compiler_workdir is not None:
        _leave(Path(compiler_workdir), unsupported, cleanup=cleanup)
    count = supported.total() + len(unsupported)
    share = 100 * supported.total() / count if count else 100
    return {
        "torch_neuronx_version": __version__,
        "neuronx_cc_version": neuronxcc.__version__,
        "support_percentage": f"{share:.2f}%",
        "supported_operators": dict(sorted(supported.items())),
        "unsupported_operators": unsupported,
    }


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
    return "", ""


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


def _leave(folder: Path, unsupported: list[dict[str, str]], *, cleanup: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for i, entry in enumerate(unsupported):
        name = f"{i:03}.{entry['kind'].removeprefix('aten::')}.txt"
        write_whole(folder / name, entry["opGraph"].encode())
    if cleanup:
        shutil.rmtree(folder)
