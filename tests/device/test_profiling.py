"""torch.profiler with programs, copies, limits and schedules; `torch_neuronx.profiling`."""

import gzip
import json
import math
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from neuron_tools.explorer import session
from neuron_tools.explorer.session import Event
from tests.device.enqueued import regions_soon, until_fused
from torch_neuronx import neuron
from torch_neuronx.profiling import NeuronConfig, NeuronProfiler, ProfileMode, recording
from torch_neuronx.profiling.config import parse_cores

BOTH = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]
DEVICE = torch.device("neuron:1")


def trace(profiler: profile, folder: Path) -> list[dict[str, Any]]:
    profiler.export_chrome_trace(str(folder / "trace.json"))
    return list(json.loads((folder / "trace.json").read_text())["traceEvents"])


@torch.compile(backend="neuron")
def compiled(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).softmax(-1) @ x


def work(times: int = 1) -> None:
    x = torch.ones(64, 64, device=DEVICE)
    for _ in range(times):
        x = x + 1
    torch.neuron.synchronize(DEVICE)  # type: ignore[attr-defined]


def test_a_program_spans_its_steps_and_counts_once(tmp_path: Path) -> None:
    x = torch.ones(64, 64, device=DEVICE)
    compiled(x)
    with profile(activities=BOTH) as profiler:
        compiled(x)
    events = [e for e in trace(profiler, tmp_path) if e.get("ph") == "X"]
    program = next(e for e in events if e["name"].startswith("neuron::program"))
    assert program["cat"] == "gpu_user_annotation"
    steps = [e for e in events if "program" in e.get("args", {})]
    assert steps
    end = program["ts"] + program["dur"]
    for step in steps:
        assert program["ts"] <= step["ts"] <= step["ts"] + step["dur"] <= end + 0.01
        assert program["name"] == f"neuron::program {step['args']['program']}"
    averages = profiler.key_averages()
    total = sum(
        e.self_device_time_total
        for e in averages
        if e.device_type != DeviceType.CPU and not e.is_user_annotation
    )
    assert total == pytest.approx(sum(e["dur"] for e in steps), rel=0.05, abs=2)


@pytest.mark.parametrize("mode", ["strict", "fused"])
def test_a_profile_holds_what_is_enqueued_within_it_on_all_cores(mode: str) -> None:
    """Also where nobody waits for another core than the current one."""
    x = torch.ones(512, 512, device=DEVICE)
    with neuron.eager_mode(mode):
        _ = x @ x
        neuron.synchronize(DEVICE)
        assert neuron.current_device() != DEVICE.index
        _ = x @ x  # belongs to no profile
        with profile(activities=BOTH) as profiler:
            for _ in range(5):
                _ = x @ x
        assert {e.key: e.count for e in profiler.key_averages()}["neuron::mm"] == 5
        _ = x @ x
        recording.start(1000)
        for _ in range(5):
            _ = x @ x
        assert sum(e.name == "neuron::mm" for e in recording.take()[0]) == 5


@pytest.mark.parametrize("mode", ["debug", "strict", "fused"])
def test_an_optimizers_joined_operators_are_an_activity(mode: str) -> None:
    parameters = [torch.nn.Parameter(torch.randn(100, device=DEVICE)) for _ in range(3)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.SGD(parameters, lr=0.1, weight_decay=0.5)
    with neuron.eager_mode(mode):
        optimizer.step()
        with profile(activities=BOTH) as profiler:
            optimizer.step()
            neuron.synchronize(DEVICE)
    averages = {e.key: e for e in profiler.key_averages()}
    assert averages["neuron::foreach: add, add_"].count == 1
    assert averages["aten::_foreach_add"].device_time_total > 0


def test_a_failure_outlives_the_profile_it_is_in() -> None:
    x = torch.ones(512, 512, device=DEVICE)
    with neuron.eager_mode("strict"):
        index = torch.full((512 * 64,), 1000, device=DEVICE)
        good = torch.zeros_like(index)
        x.index_select(0, good)
        neuron.synchronize(DEVICE)
        with profile(activities=BOTH):
            x.index_select(0, index)
        with pytest.raises(IndexError, match="index_select"):
            neuron.synchronize(DEVICE)


def test_copies_have_bytes_and_a_direction(tmp_path: Path) -> None:
    with profile(activities=BOTH) as profiler:
        x = torch.ones(1000).to(DEVICE)
        x.cpu()
        x.to("neuron:0")
        x.clone()
    copies = {
        e["name"]: e["args"] for e in trace(profiler, tmp_path) if e.get("cat") == "gpu_memcpy"
    }
    assert copies.keys() == {"Memcpy HtoD", "Memcpy DtoH", "Memcpy DtoD"}
    assert {args["bytes"] for args in copies.values()} == {"4000"}


def test_enqueued_work_is_linked_to_its_call(tmp_path: Path) -> None:
    x = torch.ones(256, 256, device=DEVICE)
    with neuron.eager_mode("strict"):
        _ = x + 1
        torch.neuron.synchronize(DEVICE)  # type: ignore[attr-defined]
        with profile(activities=BOTH) as profiler:
            _ = x + 1
            torch.neuron.synchronize(DEVICE)  # type: ignore[attr-defined]
    issued = [e for e in trace(profiler, tmp_path) if e.get("name") == "nrt_execute"]
    assert issued
    assert issued[0]["cat"] == "privateuse1_runtime"
    averages = {e.key: e for e in profiler.key_averages()}
    assert averages["aten::add"].device_time_total > 0


def test_fused_regions_name_their_operators(tmp_path: Path) -> None:
    x = torch.ones(512, 512, device=DEVICE)

    def step() -> None:
        y = x
        for _ in range(8):
            y = (y * 1.5).exp().neg()
        torch.neuron.synchronize(DEVICE)  # type: ignore[attr-defined]

    with regions_soon(), neuron.eager_mode("fused"), profile(activities=BOTH) as profiler:
        until_fused(step)
    begin = "neuron::region: "
    names = {str(e["name"]) for e in trace(profiler, tmp_path) if "name" in e}
    regions = [name.removeprefix(begin) for name in names if name.startswith(begin)]
    assert regions
    for operators in regions:
        assert set(operators.split(", ")) <= {"mul", "exp", "neg"}


def test_of_each_core_the_latest_are_kept(tmp_path: Path) -> None:
    config = NeuronConfig(max_events_per_nc=10)
    with profile(activities=BOTH, experimental_config=config) as profiler:
        work(50)
    kernels = [e for e in trace(profiler, tmp_path) if e.get("cat") == "kernel"]
    assert len(kernels) == 10
    document = json.loads((tmp_path / "trace.json").read_text())
    assert int(document["neuron_dropped_events"]) >= 40


def test_only_the_chosen_cores(tmp_path: Path) -> None:
    config = NeuronConfig(capture_enabled_for_nc="0")
    with profile(activities=BOTH, experimental_config=config) as profiler:
        work()
        torch.ones(3, device="neuron:0").add(1)
    kernels = [e for e in trace(profiler, tmp_path) if e.get("cat") == "kernel"]
    assert kernels
    assert {e["pid"] for e in kernels} == {0}


def test_schedules_flops_shapes_and_memory(tmp_path: Path) -> None:
    ready: list[dict[str, Any]] = []

    def keep(profiler: profile) -> None:
        averages = {e.key: e for e in profiler.key_averages()}
        ready.append(averages)

    x = torch.ones(32, 64, device=DEVICE)
    with profile(
        activities=BOTH, schedule=schedule(wait=1, warmup=1, active=2, repeat=2), acc_events=True,
        on_trace_ready=keep, record_shapes=True, with_flops=True, profile_memory=True,
        with_stack=True,
    ) as profiler:  # fmt: skip
        for _ in range(8):
            with record_function("step"):
                _ = x @ x.T
            profiler.step()
    assert [averages["aten::mm"].count for averages in ready] == [2, 4]  # they accumulate
    assert ready[0]["aten::mm"].flops == 2 * 2 * 32 * 64 * 32
    assert ready[0]["aten::mm"].device_memory_usage == 2 * 32 * 32 * 4
    with pytest.warns(FutureWarning, match="deprecated"):
        profiler.export_memory_timeline(str(tmp_path / "memory.json"), device="neuron:1")
    times, sizes = json.loads((tmp_path / "memory.json").read_text())
    assert len(times) == len(sizes) > 0


def test_a_trace_is_valid_json_whatever_a_name_has(tmp_path: Path) -> None:
    with profile(activities=BOTH) as profiler:
        work()
    profiler.add_metadata("quote", 'a "b" \\ c')
    profiler.export_chrome_trace(str(tmp_path / "trace.json.gz"))
    with gzip.open(tmp_path / "trace.json.gz") as file:
        assert json.load(file)["traceEvents"]


def test_the_documented_exporter(tmp_path: Path) -> None:
    modes = list(ProfileMode)
    config = NeuronConfig(modes=modes, profile_output_dir=tmp_path)
    exporter = NeuronProfiler(config)
    with profile(activities=BOTH, experimental_config=config, on_trace_ready=exporter.export_trace):
        x = torch.ones(64, 64).to(DEVICE)
        compiled(x)
        torch.linalg.inv(torch.eye(300, device=DEVICE))
    exporter.close()
    assert exporter.folder is not None
    assert {path.name for path in exporter.folder.iterdir()} >= {
        "trace.json", "ntrace.pb", "trace_info.pb", "profile_nc_1_session_0.ntff", "host_mem.pb",
    }  # fmt: skip
    found = session.read(session.profiles(tmp_path)[0])
    kinds = {event.kind for event in found.events}
    assert {"kernel", "copy", "program", "operator"} <= kinds
    operators = {e.facts.get("id"): e.name for e in found.events if e.kind == "operator"}
    copy = next(e for e in found.events if e.kind == "copy")
    assert operators[copy.facts["operator"]] in {"aten::copy_", "aten::_to_copy"}
    assert {sample.of for sample in found.memory} == {"used_bytes", "used_percent"}
    assert found.info["target"] == "trn2"


def test_modes_choose_the_files(tmp_path: Path) -> None:
    config = NeuronConfig(modes=[ProfileMode.RUNTIME], profile_output_dir=tmp_path)
    exporter = NeuronProfiler(config)
    with profile(activities=BOTH, experimental_config=config, on_trace_ready=exporter.export_trace):
        work()
    assert exporter.folder is not None
    names = {path.name for path in exporter.folder.iterdir()}
    assert names == {"trace.json", "ntrace.pb", "trace_info.pb"}


def test_the_older_form(tmp_path: Path) -> None:
    x = torch.ones(64, 64, device=DEVICE)
    compiled(x)
    with NeuronProfiler(
        pytorch_activities=BOTH, record_shapes=True, pytorch_trace_file="mine.json",
        neuron_output_dir=str(tmp_path), event_filters={"nc": [1], "types": ["kernel"]},
    ) as profiler:  # fmt: skip
        compiled(x)
    assert profiler.folder is not None
    assert (profiler.folder / "mine.json").exists()
    mapping = json.loads(next(profiler.folder.glob("framework_mapping_*.json")).read_text())
    assert mapping["programs"][0]["operators"]
    assert {e.kind for e in session.read(profiler.folder).events} == {"kernel"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"neff_cache_dir": "neffs"}, "no NEFF is written beside a profile"),
        ({"max_events_per_nc": 0}, "must be positive"),
        ({"capture_enabled_for_nc": "a"}, "'a' in 'a' is no core"),
        ({"capture_enabled_for_nc": "0-9"}, "has the cores 0 to 3"),
        ({"capture_enabled_for_nc": "2-1"}, "has the cores 0 to 3"),
    ],
)
def test_bad_configurations(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        NeuronConfig(**options)
    with pytest.raises(ValueError, match="event_filters has"):
        NeuronProfiler(event_filters={"cores": [1]})


def test_lists_of_cores() -> None:
    assert parse_cores("0,2-3") == (0, 2, 3)
    assert parse_cores(" 1 , 1-2 ") == (1, 2)
    assert parse_cores("") == ()


def test_the_runtimes_own_recording() -> None:
    recording.start(1000, (1,))
    with profile(activities=BOTH) as profiler:
        work(5)
    work(5)
    events, dropped = recording.take()
    kernels = [e for e in events if e.name.startswith("neuron::add")]
    assert (len(kernels), dropped) == (10, 0)
    assert {e.core for e in events} == {1}
    assert sum(e.count for e in profiler.key_averages() if e.key == "aten::add") == 5
    assert recording.take() == ([], 0)


def test_a_process_that_is_inspected(tmp_path: Path, run_python: Callable[..., str]) -> None:
    run_python(
        """
import torch
x = torch.ones(100).to("neuron:2")
for _ in range(7):
    x = x + 1
""",
        NEURON_RT_INSPECT_ENABLE="1",
        NEURON_RT_INSPECT_OUTPUT_DIR=str(tmp_path),
        NEURON_RT_INSPECT_CPU_UTIL="1",
    )
    found = session.read(session.profiles(tmp_path)[0])
    assert sum(e.name.startswith("neuron::add") for e in found.events) == 7
    copies = [e for e in found.events if e.kind == "copy"]
    assert [e.facts["bytes"] for e in copies] == [400]
    assert found.info["dropped_events"] == 0


def test_what_a_hundred_thousand_events_take() -> None:
    """40 bytes each, as docs/profiling.md says; a deque's blocks and growth are in the margin."""
    x = torch.ones(1, device=DEVICE)
    count = 100_000
    _ = x + 1
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    neuron.reset_eager_stats()
    recording.start(count)
    for _ in range(count + 1000):
        x.add_(1)
    neuron.synchronize(DEVICE)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    events, dropped = recording.take()
    assert len(events) == count
    # A call that is enqueued is an event when it is issued, too.
    assert dropped == 1000 + neuron.eager_stats()["enqueued"]
    assert (after - before) * 1024 <= count * 40 * 1.5 + (4 << 20)
    assert all(math.isfinite(e.end) and e.end >= e.start for e in events)
    assert isinstance(events[0], Event)
