"""Who allocated what: PyTorch's own snapshots and viewers, and the error of a core that is full."""

import gc
import io
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.cuda import _memory_viz

from torch_neuronx import neuron
from torch_neuronx.neuron import memory

MIB = 1 << 20
DEVICE = torch.device("neuron:2")
HERE = Path(__file__).name


@pytest.fixture(autouse=True)
def _recording_ends() -> Iterator[None]:
    gc.collect()
    yield
    memory._record_memory_history(None)
    neuron.set_per_process_memory_fraction(1.0, DEVICE)


def make(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device=DEVICE)


def events() -> list[dict[str, Any]]:
    traces: list[list[dict[str, Any]]] = memory._snapshot()["device_traces"]
    return traces[2]


def lines(entry: dict[str, Any]) -> list[tuple[str, str]]:
    return [(Path(f["filename"]).name, f["name"]) for f in entry["frames"]]


def test_events_have_sizes_addresses_and_lines() -> None:
    memory._record_memory_history(stacks="python")
    x = make(3 * MIB)
    address = x.data_ptr()
    del x
    mine = [
        e for e in events() if e.get("addr") == address and not e["action"].startswith("segment")
    ]
    assert [e["action"] for e in mine] == ["alloc", "free_requested", "free_completed"]
    assert all(3 * MIB <= e["size"] <= 3 * MIB * 1.1 for e in mine)
    assert all(e["stream"] == 0 for e in mine)
    assert lines(mine[0])[:2] == [
        (HERE, "make"), (HERE, "test_events_have_sizes_addresses_and_lines"),
    ]  # fmt: skip
    assert lines(mine[1])[0] == (HERE, "test_events_have_sizes_addresses_and_lines")
    times = [e["time_us"] for e in events()]
    assert times == sorted(times)


def test_blocks_in_use_know_their_lines_and_sizes() -> None:
    memory._record_memory_history("state", stacks="python")
    x, y = make(5 * MIB), make(100)
    found = memory._snapshot()
    assert found["device_traces"][2] == []
    blocks = {
        block["address"]: block
        for segment in found["segments"]
        if segment["device"] == 2
        for block in segment["blocks"]
    }
    for tensor, size in ((x, 5 * MIB), (y, 100)):
        block = blocks[tensor.data_ptr()]
        assert (block["state"], block["requested_size"]) == ("active_allocated", size)
        assert lines(block)[0] == (HERE, "make")


def test_segments_come_and_go_in_the_events() -> None:
    torch.accelerator.empty_cache()
    reserved = neuron.memory_reserved(DEVICE)
    memory._record_memory_history(context=None)
    x = make(64 * MIB)
    del x
    torch.accelerator.empty_cache()
    found = events()
    mapped = sum(e["size"] for e in found if e["action"] == "segment_map")
    gone = sum(e["size"] for e in found if e["action"] == "segment_unmap")
    assert mapped >= 64 * MIB
    assert neuron.memory_reserved(DEVICE) == reserved + mapped - gone
    assert all(e["frames"] == [] for e in found)


def test_the_events_of_a_random_program_give_the_statistics() -> None:
    """Events are in the arena's order: what they sum to at every moment is what was in use."""
    chance = torch.Generator().manual_seed(3)
    neuron.reset_peak_memory_stats(DEVICE)
    before = neuron.memory_allocated(DEVICE)
    memory._record_memory_history(context=None)
    kept: list[torch.Tensor] = []
    for _ in range(300):
        if kept and torch.rand((), generator=chance) < 0.5:
            kept.pop(int(torch.randint(len(kept), (), generator=chance)))
        else:
            kept.append(make(int(torch.randint(1, 300_000, (), generator=chance))))
    now = peak = before
    live: dict[int, int] = {}
    for event in events():
        if event["action"] == "alloc":
            assert event["addr"] not in live
            live[event["addr"]] = event["size"]
            now += event["size"]
            peak = max(peak, now)
        elif event["action"] == "free_completed":
            assert live.pop(event["addr"]) == event["size"]
            now -= event["size"]
    assert now == neuron.memory_allocated(DEVICE)
    assert peak == neuron.max_memory_allocated(DEVICE)
    assert live.keys() == {x.data_ptr() for x in kept}


def test_the_latest_events_are_kept() -> None:
    memory._record_memory_history(max_entries=4, context=None)
    for _ in range(10):
        make(1000)
    last = make(2000)
    found = events()
    assert len(found) == 4
    assert (found[-1]["action"], found[-1]["addr"]) == ("alloc", last.data_ptr())
    memory._record_memory_history(clear_history=True, context=None)
    assert events() == []


def test_kinds_of_events_can_be_left_out() -> None:
    memory._record_memory_history(context=None, skip_actions=["free_requested", "alloc"])
    make(1000)
    assert {e["action"] for e in events()} == {"free_completed"}


def test_pytorchs_viewers_read_a_dumped_file(tmp_path: Path) -> None:
    memory._record_memory_history(stacks="python")
    kept = [make(MIB) for _ in range(3)]
    make(7 * MIB)
    file = tmp_path / "snapshot.pickle"
    memory._dump_snapshot(str(file))
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    data = pickle.loads(file.read_bytes())  # noqa: S301 - our own
    assert "Device 2" in _memory_viz.trace(data)
    summary = _memory_viz.segsum(data)
    assert "total_allocated" in summary
    # What segments(), memory() and compare() give to a script from the net, which draws it.
    folded = io.StringIO()
    for segment in data["segments"]:
        _memory_viz._write_blocks(folded, "neuron", segment["blocks"])
    assert HERE in folded.getvalue()
    assert "snapshot" in _memory_viz.trace_plot(data)
    assert "snapshot" in _memory_viz.segment_plot(data)
    assert len(kept) == 3


def test_results_of_operators_and_of_the_backward_pass_are_recorded() -> None:
    memory._record_memory_history(stacks="python")
    x = torch.ones(1 << 18, device=DEVICE, requires_grad=True)
    y = (x * 2).exp()
    y.sum().backward()
    allocated = [e for e in events() if e["action"] == "alloc"]
    here = "test_results_of_operators_and_of_the_backward_pass_are_recorded"
    mine = [e for e in allocated if (HERE, here) in lines(e)]
    assert len(mine) >= 3
    assert x.grad is not None
    assert any(e["addr"] == x.grad.untyped_storage().data_ptr() for e in allocated)


def test_threads_record_beside_each_other() -> None:
    memory._record_memory_history(stacks="python")

    def work() -> None:
        for _ in range(200):
            make(1 << 14)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = events()
    assert sum(e["action"] == "alloc" for e in found) == 800
    assert all((HERE, "work") in lines(e) for e in found if e["action"] == "alloc")


def test_stopping_forgets() -> None:
    memory._record_memory_history()
    make(1000)
    memory._record_memory_history(enabled=False)
    assert events() == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"enabled": "some"}, "enabled is 'some'"),
        ({"context": "none"}, "context is 'none'"),
        ({"stacks": "native"}, "stacks is 'native'"),
        ({"skip_actions": ["allocate"]}, "skip_actions is 'allocate'"),
        ({"max_entries": -1}, "max_entries is -1"),
        ({"compile_context": True}, "compile_context is True; on neuron it can be False"),
    ],
)
def test_bad_arguments(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        memory._record_memory_history(**options)


def test_a_full_core_names_the_lines_that_hold_most() -> None:
    memory._record_memory_history(stacks="python")
    kept = [make(30 * MIB) for _ in range(2)]
    kept.append(torch.ones(2 * MIB, device=DEVICE))
    with pytest.raises(torch.OutOfMemoryError) as caught:
        make(1 << 40)
    text = str(caught.value)
    table = text[text.index("Lines that allocated what is in use on neuron:2") :].splitlines()
    assert "0.05" in table[1]
    assert "in     2 blocks at" in table[1]
    assert HERE in table[1]
    assert "torch.empty(size" in table[1]
    assert "0.008 GiB in     1 block at" in table[2]
    oom = [e for e in events() if e["action"] == "oom"]
    assert oom[0]["size"] == 1 << 40
    assert oom[0]["device_free"] > 0
    assert "addr" not in oom[0]
    assert len(kept) == 3


def test_without_a_recording_the_error_is_as_before() -> None:
    with pytest.raises(torch.OutOfMemoryError) as caught:
        make(1 << 40)
    assert "Lines that" not in str(caught.value)


def test_a_fraction_of_the_memory() -> None:
    assert neuron.get_per_process_memory_fraction(DEVICE) == 1.0
    torch.accelerator.empty_cache()
    free, total = neuron.mem_get_info(DEVICE)
    neuron.set_per_process_memory_fraction(0.25, DEVICE)
    assert neuron.get_per_process_memory_fraction(DEVICE) == 0.25
    assert neuron.mem_get_info(DEVICE) == (free, total)
    with pytest.raises(torch.OutOfMemoryError, match=r"allows this process 6\.000 GiB"):
        make(total // 4 + 1)
    neuron.set_per_process_memory_fraction(0.01, DEVICE)
    x = make(total // 200)
    with pytest.raises(torch.OutOfMemoryError):
        make(total // 100)
    del x
    assert neuron.get_per_process_memory_fraction("neuron:1") == 1.0


@pytest.mark.parametrize("wrong", [-0.1, 1.1, float("nan")])
def test_no_fraction(wrong: float) -> None:
    with pytest.raises(ValueError, match="Invalid fraction value"):
        neuron.set_per_process_memory_fraction(wrong, DEVICE)
    with pytest.raises(TypeError, match="must be `float`"):
        neuron.set_per_process_memory_fraction(1, DEVICE)


def test_statistics_by_pool_add_up() -> None:
    torch.accelerator.empty_cache()
    kept = [make(1000) for _ in range(5)] + [make(5 * MIB)]
    stats = neuron.memory_stats(DEVICE)
    for what in ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes",
                 "allocation", "active", "segment"):  # fmt: skip
        parts = [stats[f"{what}.{pool}.current"] for pool in ("small_pool", "large_pool")]
        assert sum(parts) == stats[f"{what}.all.current"], what
        assert min(parts) > 0, what
    assert len(kept) == 6


def test_memory_that_cannot_be_given_back() -> None:
    key = "inactive_split_bytes.all.current"
    torch.accelerator.empty_cache()
    x = make(MIB + 100_000)  # of one unit of 2 MiB, or two
    before = neuron.memory_stats(DEVICE)
    torch.accelerator.empty_cache()
    held = neuron.memory_reserved(DEVICE) - neuron.memory_allocated(DEVICE)
    assert before[key] == held > 0
    y = make(64 * MIB)
    del y  # could be given back, all but its ends
    assert neuron.memory_stats(DEVICE)[key] <= held + 4 * MIB
    assert x.numel() == MIB + 100_000


def test_reasons_of_what_is_missing() -> None:
    for name in ("MemPool", "use_mem_pool", "CUDAPluggableAllocator"):
        with pytest.raises(AttributeError, match="one allocator and one pool"):
            getattr(neuron, name)


def test_a_program_that_ends_while_it_is_recorded(run_python: Callable[..., str]) -> None:
    run_python("""
import torch
torch.neuron.memory._record_memory_history(stacks="all")
kept = torch.ones(1000, device="neuron", requires_grad=True)
(kept * 2).sum().backward()
""")
