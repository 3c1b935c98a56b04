"""Processes that use the device, seen from outside: counters, forks, and sudden ends."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from neuron_tools import latency, memory, statuses
from neuron_tools.machine import clock_of
from neuron_tools.registry import buckets, reader
from neuron_tools.registry.layout import LAYOUT
from neuron_tools.registry.reader import Snapshot
from tests import interpreter
from tests.interpreter import Running, started
from torch_neuronx.testing.table import FAULTS

ROOT = Path(__file__).parents[2]
MODULE = "tests.neuron_tools.live_process"


@contextmanager
def process(*words: str, folder: Path, **environ: str) -> Iterator[Running]:
    """A process that does what the words say, then waits, until the end of the block."""
    env = {**os.environ, "TORCH_NEURONX_REGISTRY_DIR": str(folder), **environ}
    with started(["-m", MODULE, *words, "wait"], env=env) as running:
        assert running.stdout.readline().startswith("ready")
        yield running
        if running.returncode is None:
            running.communicate("\n")


def only(folder: Path) -> Snapshot:
    (found,) = reader.processes({"TORCH_NEURONX_REGISTRY_DIR": str(folder)}).processes
    return found


def test_what_a_process_did(folder: Path) -> None:
    tag, cores = "my_app_1", "2-3"
    with process(
        "work", folder=folder, NEURON_PROCESS_TAG=tag, NEURON_RT_VISIBLE_CORES=cores
    ) as running:
        (path,) = folder.iterdir()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        size = LAYOUT.header.size + 2 * LAYOUT.core.size + 256 * LAYOUT.program.size
        assert path.stat().st_size == size
        found = only(folder)
        assert (found.pid, found.tag) == (running.pid, "my_app_1")
        assert found.header.texts["target"] == "trn2"
        assert (found.header["lnc"], found.header["cores"]) == (2, 2)
        assert [core["number"] for core in found.cores] == [2, 3]
        first = found.cores[0]
        assert first["flops"] == 2 * 64 * 32 * 16
        # 5 additions, a product, and the two fills of `ones`.
        assert statuses.completed(first) == 8
        assert sum(statuses.failures(first).values()) == 0
        assert 0 < first["busy_ticks"] / found.header["clock_rate"] < 10
        assert first["busy_since"] == 0
        assert first["reserved_bytes"] > 0
        held = memory.on_core(first)
        assert sum(held.values()) == first["reserved_bytes"]
        assert not found.cores[1]["reserved_bytes"]
    assert running.returncode == 0
    assert not list(folder.iterdir())


def test_the_clock_is_that_of_the_host(folder: Path) -> None:
    with process("work", folder=folder):
        first = only(folder)
        time.sleep(0.5)
        second = only(folder)
    passed = (second.ticks - first.ticks) / first.header["clock_rate"]
    assert passed == pytest.approx(second.seconds - first.seconds, rel=1e-3)


def test_errors_count_by_status(folder: Path) -> None:
    with process("fail", folder=folder):
        failed = statuses.failures(only(folder).cores[0])
    assert {status: count for status, count in failed.items() if count} == {1002: 1, 4: 1}


def test_faults_on_demand_count_by_their_status(folder: Path) -> None:
    with process("injected", folder=folder):
        failed = statuses.failures(only(folder).cores[0])
    assert {status: count for status, count in failed.items() if count} == {
        FAULTS["hbm_error"].status: 1
    }


def test_programs(folder: Path) -> None:
    with process("compiled", folder=folder):
        found = only(folder)
    core = found.cores[0]
    assert core["programs_loaded"] == len(found.programs) == 1
    assert core["program_loads"] == 1
    assert core["flops"] == 3 * 2 * 16**3
    assert statuses.completed(core) == 3 + 1  # and the fill of `ones`
    assert found.programs[0].texts["name"]


def test_collectives(folder: Path) -> None:
    with process("collectives", folder=folder):
        core = only(folder).cores[0]
    assert (core["collectives"], core["collective_bytes"]) == (3, 3 * 1024)
    assert core["collective_ns"] > 0
    assert statuses.completed(core) == 1  # the fill: a collective is no execution of the engines


@pytest.mark.parametrize("mode", ["strict", "fused"])
def test_enqueued_executions_have_two_latencies(folder: Path, mode: str) -> None:
    with process("enqueue", "work", "sleep", folder=folder, TORCH_NEURONX_EAGER_MODE=mode):
        core = only(folder).cores[0]
    running, total = core.series["enqueued_running"], core.series["enqueued_total"]
    assert sum(running) == sum(total)
    assert sum(running) + sum(core.series["at_call"]) > 0


def test_a_forked_child_leaves_its_parents_file_alone(folder: Path) -> None:
    with process("fork", folder=folder) as running:
        assert only(folder).pid == running.pid
        assert statuses.completed(only(folder).cores[0]) == 8


def test_a_child_may_use_the_device_first(folder: Path) -> None:
    with process("forked_first", folder=folder) as running:
        found = only(folder)
        assert found.pid != running.pid
        assert statuses.completed(found.cores[0]) == 8


def test_a_killed_process_leaves_nothing_that_misleads(folder: Path) -> None:
    environ = {**os.environ, "TORCH_NEURONX_REGISTRY_DIR": str(folder)}
    done = interpreter.run(["-m", MODULE, "work", "die"], env=environ)
    assert done.returncode == -9
    (left,) = folder.iterdir()
    assert reader.processes({"TORCH_NEURONX_REGISTRY_DIR": str(folder)}).processes == ()
    with process("work", folder=folder) as running:
        assert not left.exists()
        assert only(folder).pid == running.pid


@pytest.mark.slow
def test_a_directory_of_somebody_else_is_not_used(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    done = subprocess.run(
        [sys.executable, "-W", "always", "-m", MODULE, "work"],
        cwd=ROOT, env={**os.environ, "TORCH_NEURONX_REGISTRY_DIR": str(folder)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert not list(folder.iterdir())
    assert "neuron-monitor and the other tools will not see this process: " in done.stderr
    assert "must be a directory of this user that nobody else can enter" in done.stderr


def test_no_file_where_none_is_wanted(folder: Path) -> None:
    with process("work", folder=folder, TORCH_NEURONX_REGISTRY_DIR="off"):
        assert not folder.exists()


def test_the_tools_see_a_process(folder: Path) -> None:
    environ = {**os.environ, "TORCH_NEURONX_REGISTRY_DIR": str(folder)}
    with process("work", folder=folder) as running:
        listed = subprocess.run(  # imports no PyTorch
            [sys.executable, "-m", "neuron_tools.ls", "-j"], cwd=ROOT, env=environ,
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        ((user,),) = [device["neuron_processes"] for device in json.loads(listed.stdout)]
        assert user["pid"] == running.pid
        words = Path(f"/proc/{running.pid}/cmdline").read_text().split("\0")
        assert user["command"] == " ".join(words[:-1])


def test_a_report_of_a_defect() -> None:
    done = interpreter.run(["-m", "torch_neuronx.collect_env"])
    assert done.returncode == 0, done.stderr
    for part in ("PyTorch version: ", "target: trn2", "a small product: right", "== Packages ==",
                 "instance-type: ", "== Environment variables =="):  # fmt: skip
        assert part in done.stdout
    assert "FAILED" not in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("word", ["compiled", "neff", "kernel", "traced"])
def test_a_process_keeps_what_its_programs_are_predicted_to_take(word: str, folder: Path) -> None:
    with process(word, "settle", folder=folder, TORCH_NEURONX_CLOCK="model"):
        process_, found = only(folder), only(folder).predicted
        assert found is not None
        # What the program is given comes from the host, which takes no time of a core.
        assert found[0].executions == sum(latency.running(process_.cores[0])) >= 3
        assert found[0].unpredicted == 0
        assert found[0].ns > 0
        # The same program each time.
        assert found[0].ns % 3 == 0
        assert found[0].latencies[buckets.bucket(found[0].ns // 3)] == 3
        assert clock_of(process_, "model") == "model"
    assert list(folder.iterdir()) == []


def test_a_program_without_a_prediction_is_counted_and_said_once(folder: Path) -> None:
    words = ["neff_without", "neff_without", "neff"]
    with process(*words, folder=folder, TORCH_NEURONX_CLOCK="model") as running:
        found = only(folder)
        assert found.predicted is not None
        assert found.predicted[0].unpredicted == 6
        assert found.predicted[0].executions >= 3
        assert clock_of(found, "model") == "host"
        _, said = running.communicate("\n")
    assert said.count("the program 'twice' has no predicted time (NoPredictionError: ") == 1
    assert "the tools show this host's time for this process" in said


def test_without_the_variable_nothing_is_predicted(folder: Path) -> None:
    with process("compiled", folder=folder):
        assert only(folder).predicted is None


@pytest.mark.slow
def test_a_killed_process_leaves_nothing_that_stays(folder: Path) -> None:
    environ = {"TORCH_NEURONX_REGISTRY_DIR": str(folder), "TORCH_NEURONX_CLOCK": "model"}
    interpreter.run(["-m", MODULE, "compiled", "die"], env={**os.environ, **environ})
    assert len(list(folder.iterdir())) == 2
    with process("work", folder=folder):
        assert len(list(folder.iterdir())) == 1


def test_profiles_say_what_programs_are_predicted_to_take(tmp_path: Path) -> None:
    environ = {
        "TORCH_NEURONX_CLOCK": "model", "NEURON_RT_INSPECT_ENABLE": "1",
        "NEURON_RT_INSPECT_OUTPUT_DIR": str(tmp_path), "TORCH_NEURONX_REGISTRY_DIR": "off",
    }  # fmt: skip
    done = interpreter.run(["-m", MODULE, "compiled"], env={**os.environ, **environ})
    assert done.returncode == 0, done.stderr
    (file,) = tmp_path.rglob("profile_nc_0*.ntff")
    rows = [json.loads(line) for line in file.read_text().splitlines()[1:]]
    programs = [facts for _, kind, *_, facts in rows if kind == "program"]
    assert len(programs) == 3
    assert all(facts["predicted_us"] > 0 for facts in programs)
