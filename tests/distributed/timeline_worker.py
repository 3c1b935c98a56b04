"""What every rank of test_timeline.py does."""

import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from examples.ddp_timeline import overlap, picture, rows, run

FACTS = {"Collective name", "Bytes", "dtype", "Process Group Name", "Group size", "Seq"}


def overlaps(rank: int, world_size: int, folder: str) -> None:
    """The picture of a step of FSDP2 shows both rows, and what runs beside what is seen."""
    del world_size
    computed, communicated = run("FSDP2", 128, 3, Path(folder))
    both, busy = overlap(computed, communicated)
    # Whether these gathers of microseconds meet an operator is the scheduler's choice.
    assert 0 <= both <= busy
    assert {name for name, _ in communicated} == {"all_gather", "reduce_scatter"}
    core, group = picture(computed, communicated, 60).splitlines()
    assert core.index("|") == group.index("|")
    assert core.rindex("|") == group.rindex("|")
    assert "#" in core
    assert {"G", "S"} <= set(group)
    facts(rank, Path(folder))
    messages(rank, Path(folder))
    for late in (0, 1):
        asynchronous(rank, late, Path(folder))
        compiled(rank, late, Path(folder))


def wait_for(signal: Path) -> None:
    """Return when another rank has touched `signal`."""
    deadline = time.monotonic() + 30
    while not signal.exists():
        assert time.monotonic() < deadline, f"{signal} never came"
        time.sleep(0.001)


def asynchronous(rank: int, late: int, folder: Path) -> None:
    """A core computes while its collective is open: the other rank joins only after that."""
    x = torch.ones(1000, device="neuron")
    out = torch.empty(2000, device="neuron")
    y = torch.full((256, 256), 1e-3, device="neuron")
    signal = folder / f"computed-beside-{late}"
    if rank == late:
        wait_for(signal)
        dist.all_gather_into_tensor(out, x)
        return
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as p:
        work = dist.all_gather_into_tensor(out, x, async_op=True)
        assert work is not None
        (y @ y)[0, 0].item()  # has run, also where operators are enqueued
        signal.touch()
        while not work.is_completed():
            y = y @ y
        work.wait()
    trace = folder / f"asynchronous{rank}.json"
    p.export_chrome_trace(str(trace))
    computed, communicated = rows(trace)
    assert [name for name, _ in communicated] == ["all_gather"]
    both, busy = overlap(computed, communicated)
    assert 0 < both <= busy


def facts(rank: int, folder: Path) -> None:
    """Each collective once, with what it was, on the row of its group."""
    other = dist.new_group([0, 1], group_desc="second")
    x = torch.ones(1000, dtype=torch.bfloat16, device="neuron")
    out = torch.empty(2000, dtype=torch.bfloat16, device="neuron")
    trace = folder / f"facts{rank}.json"
    dist.all_reduce(x)  # before the profile: not in it, but counted
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as p:
        dist.all_reduce(x)  # inline
        dist.all_reduce(x, async_op=True).wait()  # on the communication thread
        dist.all_gather_into_tensor(out, x, group=other)
        dist.broadcast(x, 0, group=other)
    dist.all_reduce(x)
    p.export_chrome_trace(str(trace))
    events = json.loads(trace.read_text())["traceEvents"]
    seen = [e for e in events if set(e.get("args", {})) >= FACTS]
    seen.sort(key=lambda e: float(e["ts"]))
    assert [(e["name"], e["args"]["Bytes"]) for e in seen] == [
        ("neuron::all_reduce", "2000"),
        ("neuron::all_reduce", "2000"),
        ("neuron::all_gather", "4000"),
        ("neuron::broadcast", "2000"),
    ]
    numbers = [int(e["args"]["Seq"]) for e in seen]
    assert numbers[1] == numbers[0] + 1
    assert numbers[3] == numbers[2] + 1
    groups = [e["args"]["Process Group Name"] for e in seen]
    assert groups[0] == groups[1] != groups[2] == groups[3]
    assert {e["args"]["dtype"] for e in seen} == {"BFloat16"}
    assert {e["args"]["Group size"] for e in seen} == {"2"}
    tracks = [(e["pid"], e["tid"]) for e in seen]
    assert tracks[0] == tracks[1] != tracks[2] == tracks[3]
    assert tracks[0][0] == rank  # the core
    titles = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    for track, group in zip(tracks, groups, strict=True):
        assert titles[track] == f"communication, group {group}"


def events_of(recorded: Any, trace: Path) -> list[dict[str, Any]]:
    """What a profile has about communication, in order of time; `row` is the title of its row."""
    recorded.export_chrome_trace(str(trace))
    events = json.loads(trace.read_text())["traceEvents"]
    titles = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    found = [e for e in events if "Collective name" in e.get("args", {})]
    found.sort(key=lambda e: float(e["ts"]))
    return [{**e, "row": titles[e["pid"], e["tid"]]} for e in found]


def messages(rank: int, folder: Path) -> None:
    """Sends and receives have rows of their own, from their issue until the tensor is there."""
    x = torch.ones(1 << 16, device="neuron")
    y = torch.empty_like(x)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as p:
        work = dist.irecv(y, 1 - rank, tag=3)
        assert work is not None
        dist.send(x, 1 - rank, tag=3)
        work.wait()
    events = events_of(p, folder / f"messages{rank}.json")
    assert [e["name"] for e in events] == ["neuron::receive", "neuron::send"]
    for event, kind in zip(events, ("receive", "send"), strict=True):
        facts = event["args"]
        group = facts["Process Group Name"]
        assert event["row"] == f"communication, group {group}, {kind}"
        assert (facts["Bytes"], facts["dtype"], facts["Group size"]) == ("262144", "Float", "2")
        assert (facts["Peer"], facts["Tag"]) == (str(1 - rank), "3")
        assert float(event["dur"]) > 0


def compiled(rank: int, late: int, folder: Path) -> None:
    """The collectives of a program are on the rows of their groups, beside its steps."""

    world = dist.group.WORLD
    assert world is not None

    @torch.compile(backend="neuron", fullgraph=True)
    def step(x: Tensor, y: Tensor) -> Tensor:
        total: Tensor = fc.all_reduce(x, "sum", world)
        for _ in range(16):
            y = (y @ y).clamp(-1, 1)
        return total + y

    x, y = torch.ones(512, 512, device="neuron"), torch.full((512, 512), 1e-3, device="neuron")
    step(x, y)
    signal = folder / f"program-begins-{late}"
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as p:
        if rank == late:
            wait_for(signal)
            time.sleep(0.2)  # the other rank's products run, its collective stays open
        else:
            signal.touch()
        step(x, y)
    trace = folder / f"compiled{rank}.json"
    (event,) = events_of(p, trace)
    assert event["name"] == "neuron::all_reduce"
    assert set(event["args"]) >= FACTS
    assert event["args"]["Bytes"] == str(4 * 512 * 512)
    assert event["row"] == f"communication, group {event['args']['Process Group Name']}"
    every = json.loads(trace.read_text())["traceEvents"]
    products = [e for e in every if e.get("name", "").startswith("neuron::gemm")]
    assert len(products) == 16
    assert rank == late or any(beside(event, product) for product in products)


def beside(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two intervals have a moment in common."""
    (a, b), (c, d) = ((float(e["ts"]), float(e["ts"]) + float(e["dur"])) for e in (one, other))
    return max(a, c) < min(b, d)
