"""neuron-ls: what it prints, against what users captured and AWS published."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from neuron_tools import ls
from neuron_tools.registry.layout import LAYOUT
from neuronxcc.targets import TARGETS
from neuronxcc.targets.wiring import neighbours
from tests.neuron_tools.registry_files import Core, Process

pytestmark = pytest.mark.usefixtures("folder")
LINE = "\N{EN DASH}" * 2
USED = {"reserved_bytes": 1 << 20}


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = ls.main(list(words))
    said = capsys.readouterr()
    return code, said.out, said.err


def test_one_trainium(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The JSON that users captured on a trn1.2xlarge, key by key."""
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn1")
    assert run(capsys, "-j") == (
        0,
        """\
[
    {
        "neuron_device": 0,
        "bdf": "0000:00:1e.0",
        "cpu_affinity": "0-7",
        "numa_node": "-1",
        "connected_to": null,
        "nc_count": 2,
        "memory_size": 34359738368,
        "neuroncore_ids": [
            0,
            1
        ],
        "neuron_processes": []
    }
]""",
        "",
    )


def test_the_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_EMULATED_INSTANCE_TYPE", "trn2.48xlarge")
    monkeypatch.setenv("NEURON_EMULATED_INSTANCE_ID", "i-0123")
    code, out, _ = run(capsys)
    lines = out.splitlines()
    assert code == 0
    assert lines[:3] == [
        "instance-type: trn2.48xlarge", "instance-id: i-0123", "logical-neuroncore-config: 2",
    ]  # fmt: skip
    rule = "+".join(["", *("-" * n for n in (8, 8, 10, 8, 15, 14, 15, 6)), ""])
    assert lines[3] == lines[6] == lines[-1] == rule
    assert [line.split("|")[1:-1] for line in lines[4:6]] == [
        [" NEURON ", " NEURON ", "  NEURON  ", " NEURON ", "   CONNECTED   ", "     PCI      ",
         "      CPU      ", " NUMA "],
        [" DEVICE ", " CORES  ", " CORE IDS ", " MEMORY ", "    DEVICES    ", "     BDF      ",
         "   AFFINITY    ", " NODE "],
    ]  # fmt: skip
    assert [cell.strip() for cell in lines[7].split("|")[1:-1]] == [
        "0", "4", "0-3", "96 GB", "12, 3, 4, 1", "0000:cc:00.0", "48-95,144-191", "1",
    ]  # fmt: skip
    assert "| 15     | 4      | 60-63    | 96 GB  | 11, 14, 3, 12 | 0000:f7:00.0 |" in out


def test_neighbours_are_those_of_the_published_tables() -> None:
    torus = [neighbours("2D torus 4x4", 16, chip) for chip in range(16)]
    assert torus[0] == (12, 3, 4, 1)
    assert torus[6] == (2, 5, 10, 7)
    assert torus[15] == (11, 14, 3, 12)
    ring = [neighbours("ring", 12, chip) for chip in range(12)]
    assert (ring[0], ring[11]) == ((11, 1), (10, 0))
    for topology, chips in (
        ("2D torus 4x4", 16),
        ("ring", 12),
        ("ring", 6),
        ("switched all-to-all", 16),
    ):
        for chip in range(chips):
            for other in neighbours(topology, chips, chip):
                assert chip in neighbours(topology, chips, other)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_every_instance(
    target: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for instance in target.instances:
        monkeypatch.setenv("NEURON_EMULATED_INSTANCE_TYPE", instance.name)
        code, out, err = run(capsys, "-j")
        devices = json.loads(out)
        assert (code, err, len(devices)) == (0, "", instance.chips)
        ids = [core for device in devices for core in device["neuroncore_ids"]]
        assert ids == list(
            range(instance.chips * target.logical_cores_per_chip(target.default_lnc))
        )
        code, out, _ = run(capsys, "-t")
        assert f"instance-type: {instance.name}" in out
        assert "Neuron Device Topology" in out
        assert "Legend:" in out


def test_topology_of_a_torus(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_EMULATED_INSTANCE_TYPE", "trn1.32xlarge")
    _, out, _ = run(capsys, "--topology")
    drawn = out.partition("Neuron Device Topology\n")[2].splitlines()
    assert drawn[3].replace(LINE, "--") == "*--►[ 0 ]◄--►[ 1 ]◄--►[ 2 ]◄--►[ 3 ]◄--*"
    assert drawn[15].replace(LINE, "--") == "*--►[12 ]◄--►[13 ]◄--►[14 ]◄--►[15 ]◄--*"
    assert [line.strip()[0] for line in drawn[:8]] == list("*│▼*▲│▼*")
    assert len({len(line.rstrip()) for line in drawn[3:16:4]}) == 1


def test_processes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Process(header={"runtime_version": "0.1.0"}, cores=[Core(0), Core(1, USED)]).write(folder)
    code, out, _ = run(capsys, "-j")
    ((process,),) = [device["neuron_processes"] for device in json.loads(out)]
    assert code == 0
    assert (process["pid"], process["neuron_runtime_version"]) == (os.getpid(), "0.1.0")
    assert "pytest" in process["command"] or "python" in process["command"]
    assert list(process) == ["pid", "command", "neuron_runtime_version"]
    _, out, _ = run(capsys, "-w")
    row = next(line for line in out.splitlines() if line.startswith("| 0 "))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[-3] == str(os.getpid())
    assert len(cells[-2]) <= 80
    assert cells[-1] == "0.1.0"
    _, out, _ = run(capsys, "--show-all-procs")
    rows = [line for line in out.splitlines() if "neuron-ls" in line]
    assert len(rows) == 1
    assert rows[0].rstrip(" |").endswith("NA")


def test_the_machine_grows_with_what_is_used(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Process(cores=[Core(5, USED)]).write(folder)
    _, out, _ = run(capsys, "-j")
    devices = json.loads(out)
    assert len(devices) == 16
    assert [bool(device["neuron_processes"]) for device in devices] == [False, True] + [False] * 14


def test_what_runs_decides_the_target(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Process(header={"target": "inf2", "lnc": 1}, cores=[Core(0, USED)]).write(folder)
    _, out, _ = run(capsys)
    assert "instance-type: inf2.xlarge" in out
    assert "logical-neuroncore-config" not in out


def test_processes_of_another_machine_are_mentioned(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Process(header={"target": "inf2", "lnc": 1}, cores=[Core(0, USED)]).write(folder)
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    code, out, err = run(capsys, "-j")
    assert (code, json.loads(out)[0]["neuron_processes"]) == (0, [])
    assert err == (
        "neuron-ls: 1 more processes emulate inf2 at LNC=1: NEURON_PLATFORM_TARGET_OVERRIDE and "
        "NEURON_LOGICAL_NC_CONFIG choose what is shown\n"
    )


def test_a_damaged_file_is_mentioned(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Process(cores=[Core(0, USED)]).write(folder)
    path.write_bytes(path.read_bytes()[: LAYOUT.header.size])
    code, _, err = run(capsys)
    assert code == 0
    assert err.startswith(f"neuron-ls: {path} is skipped: it has ")


@pytest.mark.parametrize(
    ("words", "flag"),
    [(["--badflag"], "badflag"), (["-x"], "x"), (["-jx"], "x"), (["word"], "word")],
)
def test_an_unknown_flag(words: list[str], flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As captured: exit code 1, the message on standard output."""
    assert run(capsys, *words) == (1, f"unknown flag `{flag}'\n", "")


def test_no_machine(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As captured: exit code 1, nothing on standard output, one line that is logged."""
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn9")
    code, out, err = run(capsys)
    assert (code, out) == (1, "")
    assert re.fullmatch(
        r'time="[-0-9T:]+Z" level=fatal msg="Failed to load MLA system information" '
        r"error=\"NEURON_PLATFORM_TARGET_OVERRIDE='trn9' is not valid; allowed: .*\"\n",
        err,
    )


def test_an_unknown_instance(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_EMULATED_INSTANCE_TYPE", "p5.48xlarge")
    code, _, err = run(capsys)
    assert code == 1
    assert "NEURON_EMULATED_INSTANCE_TYPE='p5.48xlarge' is not known; allowed: inf2.24xlarge" in err


def test_what_shell_scripts_read(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys)
    assert re.search(r"^instance-type: (\S+)$", out, re.MULTILINE)
    _, out, _ = run(capsys, "-j")
    assert re.search(r'^\s*"nc_count": 4,$', out, re.MULTILINE)  # one key a line
    assert not out.endswith("\n")
