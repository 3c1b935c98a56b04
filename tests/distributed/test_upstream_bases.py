"""Tests that derive from PyTorch's bases for FSDP and DTensor, on the neuron backend.

The bases start their ranks themselves and read what device to use from variables of their modules,
so each module of tests runs by unittest in a process of its own.
"""

from __future__ import annotations

import re
import sys

import pytest

from tests.distributed.launch import run

#: Module -> its tests that every run makes. The others are exhaustive.
FEW = {
    "fsdp1": ("TestProcesses.test_nested", "TestParity.test_models_and_strategies"),
    "fsdp2": ("TestSharding", "TestThreads"),
    "dtensor": ("TestModels", "TestThreads"),
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


@pytest.mark.parametrize("module", FEW)
def test_few(module: str) -> None:
    unittests(module, *FEW[module], timeout=300)


@pytest.mark.exhaustive
@pytest.mark.parametrize("module", FEW)
def test_all(module: str) -> None:
    unittests(module, timeout=600)
