"""Which of PyTorch's operators become instructions of a NeuronCore, by PyTorch's own samples.

A sample is an operator's of a NeuronCore if the operator table gives one all that eager mode calls
for it, with the types of its tensors. It has instructions if the graph that is compiled for it has
no section without; then these are run and compared with eager PyTorch on the CPU.

    python -m tests.compiler.device_opinfo --names add,sum
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode

from neuronxcc.options import Options
from nki.device import lower
from tests.shallow import shallow
from torch_neuronx.dynamo.importer import Imported
from torch_neuronx.dynamo.reference import ReferenceExecutable, call_node
from torch_neuronx.ops.entry import base_name
from torch_neuronx.ops.lookup import verdict
from torch_neuronx.ops.table import Policy

from .opinfo import Report, as_function, compare, first_samples, full_name, run

TARGET = "trn2"
SAMPLES = 3  # of each type that are tried until one has instructions


@dataclass
class Found:
    """What is known of an operator.

    Attributes:
        name: name and variant.
        given: the table gives a sample of it to a NeuronCore.
        reason: why it has no instructions, "" if it has.
        wrong: how what they give differs from eager, "" if it doesn't.
    """

    name: str
    given: bool = False
    reason: str = ""
    wrong: str = ""


class _Called(TorchDispatchMode):
    """Takes note of operators and of the types of their tensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: set[tuple[str, str]] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves((args, kwargs, made)):
            if isinstance(leaf, torch.Tensor):
                self.calls.add((func.name(), str(leaf.dtype).removeprefix("torch.")))
        return made


def given_to_a_core(forward: Any, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether a NeuronCore has all that eager mode calls, in these types."""
    with _Called() as called:
        try:
            run(forward, list(tensors), backward=False)
        except Exception:  # noqa: BLE001 - eager PyTorch refuses the sample
            return False
    policy = Policy(TARGET)
    return bool(called.calls) and all(
        verdict(base_name(name), dtype, policy).on_neuron_core for name, dtype in called.calls
    )


def on_device(info: Any, forward: Any, tensors: list[torch.Tensor]) -> tuple[str, str]:
    """Why a sample has no instructions, and how what they give differs from eager."""
    reasons: list[str] = []

    def executor(imported: Imported, options: Mapping[str, Any]) -> ReferenceExecutable:
        del options
        program = lower(imported.graph, options=Options(target=TARGET, lnc=1))
        for section in program.missing:
            calls = [node["target"] for node in section.nodes if "target" in node.attrs]
            reasons.append(" ".join([section.reason, *calls]))
        if program.missing:
            raise ValueError(reasons[0])
        return ReferenceExecutable(imported, lambda arrays: program.run(arrays, call_node))

    report = Report(full_name(info))
    compare(info, forward, tensors, report, executor=executor)
    if reasons:
        return reasons[0], ""
    if report.status in {"error", "dynamic"}:
        return report.detail, ""
    return "", report.detail if report.status == "wrong" else ""


@shallow
def judge(info: Any) -> Found:
    """Try samples of an operator until one has instructions; integers if it has no floats."""
    found = Found(full_name(info))
    floats = [d for d in (torch.float32, torch.bfloat16) if info.supports_dtype(d, "cpu")]
    for dtype in floats or [torch.int32]:
        if not info.supports_dtype(dtype, "cpu"):
            continue
        samples = first_samples(info, dtype, SAMPLES, Report(found.name), backward=False)
        for sample in samples:
            forward, tensors = as_function(info, sample, backward=False)
            if not given_to_a_core(forward, tensors):
                continue
            found.given = True
            found.reason, found.wrong = on_device(info, forward, tensors)
            if not found.reason:
                return found
    return found


def main() -> None:
    """Print a line for every operator that has no instructions or wrong ones, then how many."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", default="", help="of OpInfos, with commas; default all")
    names = set(filter(None, parser.parse_args().names.split(",")))
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    results = [judge(info) for info in op_db if not names or info.name in names]
    given = [found for found in results if found.given]
    for found in given:
        for what, text in (("missing", found.reason), ("wrong", found.wrong)):
            if text:
                sys.stdout.write(f"{what:8} {found.name:40} {text[:300]}\n")
    having = sum(not found.reason for found in given)
    sys.stdout.write(f"{having} of {len(given)} have instructions\n")


if __name__ == "__main__":
    main()
