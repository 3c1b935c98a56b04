"""The profiler sees device operators."""

import json
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule


def test_activity_is_offered() -> None:
    activities = torch.profiler.supported_activities()
    assert ProfilerActivity.CPU in activities
    assert ProfilerActivity.PrivateUse1 == ProfilerActivity.NEURON  # type: ignore[attr-defined]


def work() -> None:
    x = torch.ones(64, 64, device="neuron")
    with record_function("my region"):
        (x @ x).relu().sum().item()


def test_operators_are_named_with_their_shapes(tmp_path: Path) -> None:
    work()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        work()
    averages = profiler.key_averages()
    names = {event.key for event in averages}
    assert {"aten::mm", "aten::relu", "aten::sum", "my region"} <= names
    mm = next(e for e in profiler.events() if e.name == "aten::mm")
    assert mm.input_shapes[:2] == [[64, 64], [64, 64]]
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert any(event.get("name") == "aten::mm" for event in events)


def test_device_activity_has_device_time() -> None:
    work()
    activities = [ProfilerActivity.CPU, ProfilerActivity.NEURON]  # type: ignore[attr-defined]
    with profile(activities=activities) as profiler:
        work()
    averages = {event.key: event for event in profiler.key_averages()}
    assert averages["aten::mm"].count == 1
    assert averages["aten::mm"].device_time_total > 0


def test_legacy_profiler_with_the_device() -> None:
    with torch.autograd.profiler.profile(use_device="neuron", use_kineto=False) as profiler:
        work()
    mm = [e for e in profiler.function_events if e.name == "aten::mm"]
    assert len(mm) == 1
    assert mm[0].device_time_total > 0


def test_memory_of_operators_is_attributed() -> None:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        x = torch.ones(1024, 1024, device="neuron")
        y = x + 1
        del y
    averages = {event.key: event for event in profiler.key_averages()}
    assert averages["aten::add"].self_device_memory_usage == pytest.approx(4 << 20, rel=0.01)


def test_schedule_and_repeated_use() -> None:
    ready: list[int] = []
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=2),
        on_trace_ready=lambda p: ready.append(len(p.events())),
    ) as profiler:
        for _ in range(4):
            work()
            profiler.step()
    assert len(ready) == 1
    assert ready[0] > 0
