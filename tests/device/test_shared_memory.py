"""HBM in a memory file, which peers of a process group can map. The scenarios are next door."""

import platform
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = str(Path(__file__).parent)


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("name", "variables"),
    [
        ("content", {"NEURON_PLATFORM_TARGET_OVERRIDE": "trn2", "NEURON_RT_NUM_CORES": "64"}),
        ("peer", {}),
        ("returned", {}),
        ("unnoticed", {}),
        ("forked", {}),
        ("threads", {}),
        ("file_limit", {}),
        pytest.param(
            "failing_midway",
            {},
            marks=pytest.mark.skipif(
                platform.machine() != "x86_64", reason="the filter knows one system call table"
            ),
        ),
    ],
)
def test_shared_memory(
    run_python: Callable[..., str], name: str, variables: dict[str, str]
) -> None:
    code = f"import sys; sys.path.insert(0, {HERE!r}); from shared_scenarios import SCENARIOS"
    run_python(f"{code}; SCENARIOS[{name!r}]()", **variables)
