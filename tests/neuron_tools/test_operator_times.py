"""TORCH_NEURONX_CLOCK=model: operators and collectives count as `estimate` has them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.neuron_tools.operator_times import TIMES

MOVES = ("clone", "fill", "zero", "copy", "conversion", "contiguous", "cat", "zeros")
ROOT = Path(__file__).parents[2]


def started(*words: str, folder: Path) -> subprocess.Popen[str]:
    environ = {
        "OMP_NUM_THREADS": "1", "TORCH_NEURONX_CLOCK": "model",
        "TORCH_NEURONX_REGISTRY_DIR": str(folder), "NEURON_RT_NUM_CORES": "1",
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-W", "always", "-m", "tests.neuron_tools.operator_times", *words],
        cwd=ROOT, env={**os.environ, **environ}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def finished(running: subprocess.Popen[str]) -> tuple[list[dict[str, Any]], str]:
    out, err = running.communicate(timeout=240)
    assert running.returncode == 0, err
    return [json.loads(line) for line in out.splitlines()], err


@pytest.fixture(scope="module")
def operators(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, dict[str, Any]], str]:
    """What each stage of a process counted, and what the process said."""
    folder = tmp_path_factory.mktemp("registry") / "files"
    stages, said = finished(started("operators", folder=folder))
    return {one["stage"]: one for one in stages}, said


@pytest.mark.every(7, "slow")
@pytest.mark.parametrize(
    "name", ["add", "product", "number", "in place", "composite", "strict", "fused", *MOVES]
)
def test_calls_count_as_often_as_estimate_says(
    name: str, operators: tuple[dict[str, dict[str, Any]], str]
) -> None:
    found = operators[0][name]
    assert found["ns"] == found["estimate"] > 0
    # In the file, too: a region that runs as one program is one execution, there and here.
    assert found["predicted"] == found["executions"] > 0
    assert found["unpredicted"] == 0
    if name != "fused":
        assert found["latencies"] == TIMES


def test_a_region_is_one_execution_of_many_calls(
    operators: tuple[dict[str, dict[str, Any]], str],
) -> None:
    found = operators[0]["fused"]
    assert found["latencies"] > found["executions"]


@pytest.mark.parametrize("name", ["views", "to the host", "to the core"])
def test_what_runs_on_no_core_takes_no_time(
    name: str, operators: tuple[dict[str, dict[str, Any]], str]
) -> None:
    found = operators[0][name]
    assert (found["ns"], found["latencies"], found["unpredicted"]) == (0, 0, 0)
    assert found["predicted"] == found["executions"] == (0 if name == "views" else TIMES)


def test_what_fails_is_not_counted(operators: tuple[dict[str, dict[str, Any]], str]) -> None:
    found = operators[0]["refused"]
    assert (found["ns"], found["predicted"], found["unpredicted"]) == (0, 0, 0)


@pytest.mark.parametrize("name", ["by value", "lists"])
def test_calls_of_which_no_graph_is_made_count_by_their_bytes(
    name: str, operators: tuple[dict[str, dict[str, Any]], str]
) -> None:
    found = operators[0][name]
    assert found["ns"] > 0
    assert found["unpredicted"] == 0


def test_an_operator_without_prediction_is_said(
    operators: tuple[dict[str, dict[str, Any]], str],
) -> None:
    stages, said = operators
    assert stages["sparse"]["unpredicted"] > 0
    assert "has no predicted time (an argument is not a plain tensor)" in said


def test_the_process_that_predicts_is_started_again(
    operators: tuple[dict[str, dict[str, Any]], str],
) -> None:
    stages, said = operators
    assert (stages["killed"]["unpredicted"], stages["killed"]["ns"]) == (1, 0)
    assert "(the process that predicts has ended)" in said
    assert stages["after it"]["ns"] == stages["after it"]["estimate"] > 0
    # Nothing is left to say at the end: no pipe, no thread, no process.
    assert "ResourceWarning" not in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_collectives_count_as_estimate_says(tmp_path: Path) -> None:
    running = [
        started("collective", str(rank), str(tmp_path), folder=tmp_path / "files")
        for rank in range(2)
    ]
    (stages, _), (others, _) = (finished(one) for one in running)
    reduced, behind, gathered, sent, one_reduction, one_gather = stages
    assert reduced["ns"] == behind["ns"] == TIMES * one_reduction["cc"] > 0
    assert gathered["ns"] == one_gather["cc"] > 0
    assert sent["ns"] > 0
    assert [one["ns"] for one in others] == [one["ns"] for one in (reduced, behind, gathered, sent)]
    for one in (reduced, behind):
        # It is not among the executions, in the process' own file neither.
        assert (one["collectives"], one["predicted"], one["latencies"]) == (TIMES, 0, 0)
