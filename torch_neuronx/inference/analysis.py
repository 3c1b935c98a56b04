"""`analyze`: which operators of a function NeuronCores have."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import neuronxcc
from neuronxcc.files import write_whole
from torch_neuronx._version import __version__
from torch_neuronx.inference.capture import export
from torch_neuronx.inference.operators import failure_of, operator_of
from torch_neuronx.inference.trace import examples_of


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


def _leave(folder: Path, unsupported: list[dict[str, str]], *, cleanup: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for i, entry in enumerate(unsupported):
        name = f"{i:03}.{entry['kind'].removeprefix('aten::')}.txt"
        write_whole(folder / name, entry["opGraph"].encode())
    if cleanup:
        shutil.rmtree(folder)
