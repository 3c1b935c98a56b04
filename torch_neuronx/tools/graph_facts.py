"""Facts about every graph of a script, for `neuron_parallel_compile --command analyze`."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

from neuronxcc.environment.compilation import TORCH_NEURONX_GRAPH_FACTS
from neuronxcc.files import write_whole
from neuronxcc.frontends.hlo.exporter import export_hlo
from neuronxcc.frontends.hlo.module import decode
from neuronxcc.frontends.hlo.types import text_of
from torch_neuronx._version import __version__
from torch_neuronx.dynamo.backend import CompiledGraph
from torch_neuronx.inference.operators import failure_of, operator_of
from torch_neuronx.ops.entry import base_name

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_NO_OPERATORS = frozenset({"parameter", "constant", "tuple"})
_numbers = itertools.count()


def write_facts(compiled: CompiledGraph) -> None:
    """Leave a file about a graph in the folder that the command named; an observer of `backend`."""
    supported: Counter[str] = Counter()
    unsupported: list[dict[str, str]] = []
    for node in compiled.gm.graph.nodes:
        name = operator_of(node)
        if not name:
            continue
        failure, _text = failure_of(node)
        if failure:
            call = _call(str(node.meta.get("stack_trace") or ""))
            unsupported.append({"kind": name, "failureAt": failure, "call": call})
        else:
            supported[name] += 1
    facts = {
        "torch_neuronx_version": __version__,
        "supported": supported,
        "unsupported": unsupported,
        "instructions": _instructions(compiled, {entry["kind"] for entry in unsupported}),
    }
    folder = TORCH_NEURONX_GRAPH_FACTS.get()
    assert folder is not None
    path = folder / f"{os.getpid()}-{next(_numbers):05}.json"
    write_whole(path, json.dumps(facts).encode())


def _call(trace: str) -> str:
    """As documented, "train.py 24": the user's line that is nearest to the operator."""
    frames = _FRAME.findall(trace)
    return f"{Path(frames[-1][0]).name} {frames[-1][1]}" if frames else ""


def _instructions(compiled: CompiledGraph, lacking: set[str]) -> list[tuple[str, str, bool]]:
    """HLO instructions of a graph, the operator of each, and whether NeuronCores have that."""
    module = decode(export_hlo(compiled.imported.graph))
    body = module.computations[module.entry].instructions
    found: list[tuple[str, str, bool]] = []
    for instruction in body:
        if instruction.opcode in _NO_OPERATORS:
            continue
        operands = ", ".join(text_of(body[n].type) for n in instruction.operands)
        text = f"{text_of(instruction.type)} {instruction.opcode}({operands})"
        operator = _operator(instruction.proto)
        found.append((text, operator, operator not in lacking))
    return found


def _operator(proto: Any) -> str:
    """The operator of an instruction, "aten::add" for "aten.add.Tensor"; "" if nobody knows."""
    name = str(proto.metadata.op_name or proto.metadata.op_type)
    if not name.startswith("aten."):
        return ""
    return f"aten::{base_name(name.removeprefix('aten.'))}"
