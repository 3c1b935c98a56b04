"""The driver's tree of counters."""

import re
from pathlib import Path

import pytest

from neuron_tools import statuses
from neuron_tools.machine import ToolError, machine
from neuron_tools.sysfs import command
from neuron_tools.sysfs.tree import Tree
from tests.neuron_tools.registry_files import Core, Process

USED = {"reserved_bytes": 100, "allocated_bytes": 60, "scratchpad_bytes": 10}


def process(executions: int, tensors: int = 50) -> Process:
    values = USED | {
        "allocated_bytes": tensors + 10, "reserved_bytes": tensors + 50, "flops": 2000,
        "busy_ticks": 5 * 10**6, "program_loads": 3,
    }  # fmt: skip
    return Process(cores=[Core(1, values, {5: 2, 1003: 1}, [1000] * executions)])


def test_the_tree(folder: Path, tmp_path: Path) -> None:
    process(10).write(folder)
    root = tmp_path / "sys"
    tree = Tree(root)
    tree.update(machine())

    def text(name: str) -> str:
        return (root / "neuron0" / name).read_text().strip()

    assert text("core_count") == "4"
    assert text("connected_devices") == ""
    assert text("info/architecture/arch_type") == "NDv3"
    assert text("info/architecture/instance_type") == "Trn2"
    assert text("info/architecture/device_name") == "Trainium2"
    assert re.fullmatch("[0-9a-f]{16}", text("info/serial_number"))
    assert text("stats/hardware/mem_ecc_uncorrected") == "0"
    assert re.fullmatch(
        r"POWER_STATUS_NO_DATA,\d+,0\.00,0\.00,0\.00", text("stats/power/utilization")
    )
    assert text("neuron_core0/info/architecture/arch_type") == "NCv3"
    core = "neuron_core1/stats"
    assert text(f"{core}/status/success/total") == "9"  # one was found to be wrong
    assert text(f"{core}/status/timeout/present") == "2"
    assert text(f"{core}/status/execute_completed_with_num_error/total") == "1"
    assert text(f"{core}/status/infer_completed_with_num_err/total") == "1"
    assert text(f"{core}/other_info/flop_count/total") == "1000"
    assert text(f"{core}/other_info/inference_count/total") == "12"
    assert text(f"{core}/other_info/model_load_count/total") == "3"
    assert text(f"{core}/other_info/nc_time_in_use/total") == "5000"
    assert text(f"{core}/memory_usage/device_mem/tensors/present") == "50"
    for kind in ("total", "present", "peak"):
        assert text(f"{core}/memory_usage/host_mem/tensors/{kind}") == "0"
    assert text("neuron_core0/stats/status/success/total") == "0"
    names = {path.name for path in (root / f"neuron0/{core}/status").iterdir()}
    assert names >= set(statuses.SYSFS)


def test_what_ended_stays_in_totals(folder: Path, tmp_path: Path) -> None:
    tree = Tree(tmp_path / "sys")
    core = tmp_path / "sys/neuron0/neuron_core1/stats"
    path = process(10, tensors=50).write(folder)
    tree.update(machine())
    process(20, tensors=80).write(folder)
    tree.update(machine())
    path.unlink()
    tree.update(machine())
    assert (core / "status/success/present").read_text() == "0\n"
    assert (core / "status/success/total").read_text() == "19\n"
    memory = core / "memory_usage/device_mem/tensors"
    assert [(memory / name).read_text() for name in ("present", "total", "peak")] == [
        "0\n", "80\n", "80\n",
    ]  # fmt: skip


def test_writing_clears_a_counter(folder: Path, tmp_path: Path) -> None:
    process(10).write(folder)
    tree = Tree(tmp_path / "sys")
    tree.update(machine())
    total = tmp_path / "sys/neuron0/neuron_core1/stats/status/success/total"
    total.write_text("anything")
    tree.update(machine())
    assert total.read_text() == "0\n"
    process(15).write(folder)
    tree.update(machine())
    assert total.read_text() == "5\n"
    assert total.with_name("present").read_text() == "14\n"


def test_every_target_has_a_tree(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not folder.exists()
    for name, cores in (("trn1", 2), ("inf2", 2), ("trn3", 4)):
        monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", name)
        Tree(tmp_path / name).update(machine())
        assert len(list((tmp_path / name / "neuron0").glob("neuron_core*"))) == cores


def test_the_command(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process(1).write(folder)
    assert command.main(["--root", str(tmp_path / "a")]) == 0
    assert (tmp_path / "a/neuron0/core_count").read_text() == "4\n"
    monkeypatch.setenv("NEURON_SYSFS_ROOT", str(tmp_path / "b"))
    assert command.main([]) == 0
    assert (tmp_path / "b/neuron0/core_count").exists()
    assert not list((tmp_path / "a").rglob(".*"))


def test_a_root_that_cannot_be_written(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not folder.exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(ToolError, match="cannot be written"):
        Tree(tmp_path / "file").update(machine())
    assert command.main(["--root", str(tmp_path / "file")]) == 1
    assert capsys.readouterr().err.startswith("neuron-sysfs: the tree below ")
