"""What every rank of test_timeline.py does."""

import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from examples.ddp_timeline import Row, overlap, picture, run

FACTS = {"Collective name", "Bytes", "dtype", "Process Group Name", "Group size", "Seq"}


def gathers_beside_compute(computed: Row, communicated: Row) -> int:
    """The all-gathers during which an operator ran."""
    gathers = [activity for activity in communicated if activity[0] == "all_gather"]
    assert gathers
    return sum(overlap(computed, [gather])[0] > 0 for gather in gathers)


def overlaps(rank: int, world_size: int, folder: str) -> None:
    """A step of FSDP2 overlaps, and the picture shows both rows."""
    del world_size
    computed, communicated = run("FSDP2", 128, 3, Path(folder))
    # The first all-gathers have nothing to hide behind; the prefetched ones do.
    assert gathers_beside_compute(computed, communicated) >= 1
    both, busy = overlap(computed, communicated)
    assert 0 < both <= busy
    assert {name for name, _ in communicated} == {"all_gather", "reduce_scatter"}
    core, group = picture(computed, communicated, 60).splitlines()
    assert core.index("|") == group.index("|")
    assert core.rindex("|") == group.rindex("|")
    assert "#" in core
    assert {"G", "S"} <= set(group)
    facts(rank, Path(folder))
    messages(rank, Path(folder))
    compiled(rank, Path(folder))


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


def compiled(rank: int, folder: Path) -> None:
    """The collectives of a program are on the rows of their groups, beside its steps."""

    @torch.compile(backend="neuron", fullgraph=True)
    def step(x: Tensor, y: Tensor) -> Tensor:
        total = fc.all_reduce(x, "sum", dist.group.WORLD)
        for _ in range(4):
            y = (y @ y).clamp(-1, 1)
        return total + y

    x, y = torch.ones(512, 512, device="neuron"), torch.full((512, 512), 1e-3, device="neuron")
    step(x, y)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as p:
        step(x, y)
    (event,) = events_of(p, folder / f"compiled{rank}.json")
    assert event["name"] == "neuron::all_reduce"
    assert set(event["args"]) >= FACTS
    assert event["args"]["Bytes"] == str(4 * 512 * 512)
    assert event["row"] == f"communication, group {event['args']['Process Group Name']}"
    trace = json.loads((folder / f"compiled{rank}.json").read_text())["traceEvents"]
    steps = [e for e in trace if e.get("cat") == "kernel" and e["pid"] == event["pid"]]
    begin, end = float(event["ts"]), float(event["ts"]) + float(event["dur"])
    beside = [e for e in steps if e["tid"] != event["tid"] and begin < float(e["ts"]) < end]
    names = sorted({e["name"] for e in steps})
    assert beside, f"nothing ran beside it: {names}"
