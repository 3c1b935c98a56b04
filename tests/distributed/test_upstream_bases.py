"""Tests that derive from PyTorch's bases for FSDP and DTensor, on the neuron backend.

The bases start their ranks themselves and read what device to use from variables of their modules,
so each module of tests runs by unittest in a process of its own.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path

import pytest
from torch.testing._internal import distributed

from tests.distributed.bases_ops_exclusions import EXCLUDED, HERE_ONLY
from tests.distributed.launch import run
from tests.distributed.upstream_modules import MODULES

#: Module -> its tests that every run makes. The others are exhaustive.
FEW = {
    "fsdp1": ("TestProcesses.test_nested",),
    "fsdp2": ("TestSharding", "TestThreads"),
    "dtensor": ("TestThreads",),
    "checkpoint": ("TestStateDicts",),
}


def unittests(module: str, *names: str, timeout: float) -> None:
    """Run tests of a module by their names in it, or all; none may be skipped."""
    path = f"tests.distributed.bases_{module}"
    which = [f"{path}.{name}" for name in names] or [path]
    output = run([sys.executable, "-m", "unittest", *which], timeout=timeout)
    ran = re.search(r"^Ran (\d+) tests? in", output, re.MULTILINE)
    assert ran is not None, output[-4000:]
    assert int(ran[1]) >= max(1, len(names)), output[-4000:]
    assert "skipped=" not in output.splitlines()[-1], output[-4000:]


@pytest.mark.slow
@pytest.mark.parametrize("module", FEW)
def test_few(module: str) -> None:
    unittests(module, *FEW[module], timeout=300)


@pytest.mark.exhaustive
@pytest.mark.parametrize("module", FEW)
def test_all(module: str) -> None:
    unittests(module, timeout=600)


def operators(*options: str, control: bool = False, timeout: float = 600) -> dict[str, str]:
    """Operator -> outcome of bases_ops, with the reason where it failed."""
    output = run(
        [sys.executable, "-m", "tests.distributed.bases_ops", *options],
        environment={"TEST_BASES_CONTROL": str(int(control))},
        timeout=timeout,
    )
    lines = [json.loads(line) for line in output.splitlines() if line.startswith('{"op": ')]
    print(Counter(line["outcome"] for line in lines))  # noqa: T201
    return {
        line["op"]: line["outcome"] + (": " + line["why"]) * (line["outcome"] == "failed")
        for line in lines
    }


def all_pass(outcomes: dict[str, str], at_least: int) -> None:
    """None fails, and not so few are supported that something else must be wrong."""
    failed = {op: why for op, why in outcomes.items() if why.startswith("failed")}
    assert not failed, "\n".join(f"{op}: {why}" for op, why in failed.items())
    assert sum(why == "passed" for why in outcomes.values()) >= at_least


@pytest.mark.slow
def test_some_operators() -> None:
    all_pass(operators("--part", "0/10", "--samples", "2", timeout=300), 40)


@pytest.mark.exhaustive
def test_operators() -> None:
    all_pass(operators("--ranks", "4", "--samples", "2", "--placements", "3"), 500)


@pytest.mark.exhaustive
def test_excluded_operators() -> None:
    """They fail without us too."""
    names = set(EXCLUDED) - HERE_ONLY
    outcomes = operators(*sorted(names), control=True)
    passed = {op for op in names if not outcomes[op].startswith("failed")}
    assert not passed, f"pass by now: {passed}"


def test_every_module_of_pytorch_has_an_entry() -> None:
    root = Path(next(iter(distributed.__path__)))
    names = set()
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        names.add(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    assert names - {""} == set(MODULES)
