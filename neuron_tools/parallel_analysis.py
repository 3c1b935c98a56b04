"""`neuron_parallel_compile --command analyze`: a report of what NeuronCores have of a script."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from neuron_tools.parallel_messages import Speaker
from neuronxcc import __version__
from neuronxcc.cache.local import MOST_TEXT_BYTES
from neuronxcc.environment.compilation import TORCH_NEURONX_GRAPH_FACTS
from neuronxcc.files import read_regular, write_whole

#: Where a trial run leaves a file for each of its graphs (torch_neuronx/tools/graph_facts.py).
REPORT_NAME = "result.json"


def analyze(options: argparse.Namespace, say: Speaker, run: Callable[[dict[str, str]], int]) -> int:
    """Run the script without computing anything, and write `result.json`.

    Args:
        options: `analyze_output`, `analyze_verbosity`.
        say: For messages.
        run: Runs the script with these variables added to the environment.

    Returns:
        The exit code: 0, or the script's if it failed, when the report is of the graphs before.
    """
    with tempfile.TemporaryDirectory(prefix="neuron-analysis-") as folder:
        code = run({TORCH_NEURONX_GRAPH_FACTS.name: folder})
        facts = [
            json.loads(read_regular(path, MOST_TEXT_BYTES))
            for path in sorted(Path(folder).glob("*.json"))
        ]
    path = options.analyze_output / REPORT_NAME
    if path.exists():
        say.analysis(f"Removing existing report {path.absolute()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    result = report(facts, instructions=options.analyze_verbosity == 1)
    write_whole(path, f"{json.dumps(result, indent=4)}\n".encode())
    say.analysis(f"Model analysis completed. Report - {path.absolute()}")
    return code


def report(facts: Sequence[Mapping[str, Any]], *, instructions: bool) -> dict[str, Any]:
    """The documented form of a report.

    Args:
        facts: Of each graph: "torch_neuronx_version", "supported" (name: how often), "unsupported"
            (a list of "kind", "failureAt", "call"), "instructions" (lists of an HLO instruction,
            the operator that it comes from, and whether that is supported).
        instructions: Add the HLO instructions.
    """
    supported: Counter[str] = Counter()
    unsupported: dict[str, dict[str, str]] = {}
    lowered: list[tuple[str, str, bool]] = []
    for graph in facts:
        supported.update(graph["supported"])
        for entry in graph["unsupported"]:
            unsupported.setdefault(json.dumps(entry, sort_keys=True), entry)
        lowered += [(str(text), str(op), bool(good)) for text, op, good in graph["instructions"]]
    good, bad = {"aten": dict(sorted(supported.items()))}, {"aten": list(unsupported.values())}
    result: dict[str, Any] = {
        "torch_neuronx_version": facts[0]["torch_neuronx_version"] if facts else "",
        "neuronx_cc_version": __version__,
        "support_percentage": f"{_percentage(lowered):.2f}%",
        "supported_operators": good,
        "unsupported_operators": bad,
    }
    if instructions:
        named = dict.fromkeys(lowered)
        result["supported_operators"] = {**good, "xla": [t for t, _, fine in named if fine]}
        result["unsupported_operators"] = {
            **bad,
            "xla": [{"hlo_instruction": t, "aten_op": op} for t, op, fine in named if not fine],
        }
    return result


def _percentage(lowered: Sequence[tuple[str, str, bool]]) -> float:
    """As documented, of the HLO instructions and not of PyTorch's operators."""
    return 100 * sum(fine for *_, fine in lowered) / len(lowered) if lowered else 100
