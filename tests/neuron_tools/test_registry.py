"""The files of processes: what is read of good ones, and that bad ones are refused."""

import os
import re
import stat
import struct
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_tools import latency, proc, statuses
from neuron_tools.registry import layout, place, reader
from neuron_tools.registry.buckets import bounds
from neuron_tools.registry.layout import LAYOUT
from neuron_tools.registry.reader import RegistryError
from tests.neuron_tools.registry_files import Core, Process, bucket

ROOT = Path(__file__).parents[2]
GOOD = Process(
    header={"tag": "job", "pinned_bytes": 7},
    cores=[Core(0, {"reserved_bytes": 4096, "flops": 12}, {5: 2}, [100, 3000]), Core(1)],
    programs=[("step", 0, 64)],
)


def test_a_file_is_read() -> None:
    found = reader.parse(GOOD.content())
    assert (found.pid, found.tag, found.header["pinned_bytes"]) == (os.getpid(), "job", 7)
    assert [core["number"] for core in found.cores] == [0, 1]
    assert [core["number"] for core in found.used_cores] == [0]
    assert (found.cores[0]["flops"], sum(found.cores[0].series["at_call"])) == (12, 2)
    assert statuses.failures(found.cores[0])[5] == 2
    assert [(p.texts["name"], p["constant_bytes"]) for p in found.programs] == [("step", 64)]


def test_a_process_without_a_tag_is_called_by_its_number() -> None:
    assert reader.parse(Process().content()).tag == str(os.getpid())


def test_control_characters_do_not_reach_terminals() -> None:
    assert reader.parse(Process(header={"tag": "a\x1b[2Jb\n"}).content()).tag == "a?[2Jb?"


def changed(offset: int, value: int) -> bytes:
    content = bytearray(GOOD.content())
    struct.pack_into("=Q", content, offset, value)
    return bytes(content)


HEADER = LAYOUT.header.numbers


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it has 0 bytes, fewer than its header"),
        (GOOD.content()[:200], "it has 200 bytes, fewer than its header"),
        (GOOD.content()[:-1], "bytes instead of"),
        (changed(HEADER["magic"], 1), "it is not the file of a process that uses the device"),
        (changed(HEADER["version"], 99), "it is of version 99, this tool reads version 1"),
        (changed(HEADER["core_bytes"], 8), "its parts have other sizes than those of its version"),
        (changed(HEADER["cores"], 1 << 60), "it claims 1152921504606846976 cores"),
        (changed(HEADER["programs"], 1 << 40), "places of programs"),
        (changed(HEADER["clock_rate"], 0), "its clock or its process number is impossible"),
        (changed(HEADER["pid"], 1 << 40), "its clock or its process number is impossible"),
    ],
)
def test_what_is_no_file_is_refused(content: bytes, why: str) -> None:
    with pytest.raises(RegistryError, match=re.escape(why)):
        reader.parse(content)


@given(st.data())
def test_damage_is_refused_or_harmless(data: st.DataObject) -> None:
    content = bytearray(GOOD.content())
    for _ in range(data.draw(st.integers(1, 8))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(0, len(content))) :]
    try:
        found = reader.parse(bytes(content))
    except RegistryError:
        return
    for core in found.used_cores:
        assert found.busy_ticks(core) >= 0
        statuses.summaries(core)
        latency.percentiles(latency.total(core), found.header["clock_rate"])


def test_processes_that_live_are_found(folder: Path) -> None:
    assert reader.processes().processes == ()
    path = GOOD.write(folder)
    (folder / "note").write_text("no file of a process")
    (folder / f".{path.name}").write_bytes(b"in the making")
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    Process(header={"pid": int(dead.stdout), "start_time": 5}).write(folder)
    Process(header={"pid": 1, "start_time": proc.start_time(1) + 1}).write(folder)
    found = reader.processes()
    assert [p.pid for p in found.processes] == [os.getpid()]
    assert not found.damaged


def test_files_that_lie_are_reported(folder: Path) -> None:
    path = GOOD.write(folder)
    path.write_bytes(Process(header={"pid": 1}).content())
    assert reader.processes().damaged == ((path, "it is another process' file"),)
    path.write_bytes(b"x")
    ((_, why),) = reader.processes().damaged
    assert why == "it has 1 bytes, fewer than its header"


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/etc/passwd")])
def test_what_is_no_regular_file_is_not_opened(folder: Path, make: object) -> None:
    path = GOOD.write(folder)
    path.unlink()
    make(path)  # type: ignore[operator]
    ((_, why),) = reader.processes().damaged
    assert why


@pytest.mark.parametrize("said", ["off", "/dev/null", "/nowhere"])
def test_no_directory_is_no_process(said: str) -> None:
    assert reader.processes({"TORCH_NEURONX_REGISTRY_DIR": said}) == reader.Found()


def test_the_directory() -> None:
    default = place.directory({})
    assert default is not None
    assert default.name == f"torchneuron-{os.getuid()}"
    assert place.directory({"TORCH_NEURONX_REGISTRY_DIR": "off"}) is None
    assert place.directory({"TORCH_NEURONX_REGISTRY_DIR": "/a/b"}) == Path("/a/b")


def test_every_status_has_names_and_numbers_of_the_runtime() -> None:
    from neuronxcc.status import Status  # noqa: PLC0415

    text = Path(layout.__file__).with_name("layout.inc").read_text(encoding="utf-8")
    said = {name: int(number) for name, number in re.findall(r"STATUS\((\w+), (\d+)\)", text)}
    assert said == {name: Status[name] for name in said}
    assert set(said.values()) == set(statuses.NAMES) == set(LAYOUT.statuses)
    for names in statuses.NAMES.values():
        assert names.outcome in statuses.OUTCOMES
        assert names.error in statuses.ERRORS
        assert names.sysfs in statuses.SYSFS
    assert len(LAYOUT.statuses) <= LAYOUT.core.series["failures"][1]


@given(st.integers(1, 1 << 45))
def test_buckets_are_an_eighth_wide(ticks: int) -> None:
    low, high = bounds(bucket(ticks))
    assert low <= ticks < high
    assert high - low <= max(1, low / 8)


def test_buckets_have_no_gaps() -> None:
    ends = [bounds(b) for b in range(352)]
    assert ends[0][0] == 0
    assert all(a[1] == b[0] for a, b in pairwise(ends))


def test_percentiles() -> None:
    histogram = [0] * 352
    for ticks in range(1, 101):
        histogram[bucket(ticks * 1000)] += 1
    found = latency.percentiles(histogram, 10**6)
    assert found is not None
    assert list(found) == ["p0", "p1", "p25", "p50", "p75", "p99", "p100"]
    for percentile, seconds in found.items():
        exact = max(1, int(percentile[1:])) / 1000
        assert abs(seconds - exact) <= exact / 8
    assert list(found.values()) == sorted(found.values())
    assert latency.percentiles([0] * 352, 10**6) is None


def test_tools_start_without_pytorch() -> None:
    modules = ("ls", "monitor.command", "top.command", "prometheus", "sysfs.command",
               "nccom.command")  # fmt: skip
    program = "import sys\n" + "".join(f"import neuron_tools.{m}\n" for m in modules)
    program += "print(sorted({'torch', 'numpy', 'nki', 'llvmlite'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_files_of_the_user_alone_are_believed(folder: Path) -> None:
    GOOD.write(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
