"""A process by the model's clock that says what its operators counted: for `test_operator_times`.

Each stage is a line of JSON: what the process' file counted more than before it, by name, and what
`torch_neuronx.estimate` says of the same calls in nanoseconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

import torch_neuronx
from neuron_tools.registry import reader
from tests.device.enqueued import everything_enqueued, regions_soon, until_fused
from torch_neuronx import _C
from torch_neuronx.program import operator_time

TIMES = 7


def counted() -> dict[str, int]:
    """What has been counted on core 0 so far, here and by the model."""
    torch_neuronx.neuron.synchronize()
    operator_time.settle()
    path = Path(_C.registry_path())
    found = reader.read(path)
    assert found.predicted is not None
    (times, *_), (core, *_) = found.predicted, found.cores
    return {
        "ns": times.ns,
        "predicted": times.executions,
        "unpredicted": times.unpredicted,
        "latencies": sum(times.latencies),
        "executions": sum(core.series["at_call"]) + sum(core.series["enqueued_running"]),
        "collectives": core["collectives"],
    }


def stage(name: str, work: Callable[[], Any], ns: int) -> None:
    """Do something, and print what it has counted."""
    before = counted()
    work()
    after = counted()
    more = {key: after[key] - before[key] for key in after}
    sys.stdout.write(json.dumps({"stage": name, "estimate": ns, **more}) + "\n")
    sys.stdout.flush()


def estimated(program: Callable[..., Any], *inputs: Any) -> int:
    """Nanoseconds of a call, by the public function."""
    found = torch_neuronx.estimate(program, *inputs, mode="eager", target="trn2", lnc=2)
    return round(1000 * found.device_us)


def operators() -> None:
    """Operators in the modes of eager execution."""
    x, w = torch.ones(64, 32, device="neuron"), torch.ones(32, 16, device="neuron")
    host = torch.ones(64, 32)
    add = estimated(torch.add, x, x)
    product = estimated(torch.mm, x, w)
    number = estimated(lambda x: x * 2, x)

    def repeated(call: Callable[[], Any]) -> Callable[[], list[Any]]:
        return lambda: [call() for _ in range(TIMES)]

    stage("add", repeated(lambda: torch.add(x, x)), TIMES * add)
    stage("product", repeated(lambda: torch.mm(x, w)), TIMES * product)
    stage("number", lambda: [x * n for n in range(2, 2 + TIMES)], TIMES * number)
    stage("in place", repeated(lambda: x.add_(1)), TIMES * estimated(lambda x: x.add_(1), x))
    other = torch.ones(64, 32, device="neuron")
    moves: dict[str, Callable[[torch.Tensor], Any]] = {
        "clone": torch.clone, "fill": lambda x: x.fill_(2), "zero": torch.zero_,
        "copy": lambda x: x.copy_(other), "conversion": lambda x: x.to(torch.bfloat16),
        "contiguous": lambda x: x.t().contiguous(), "cat": lambda x: torch.cat([x, x]),
        "zeros": torch.zeros_like,
    }  # fmt: skip
    for name, move in moves.items():
        stage(name, repeated(partial(move, x)), TIMES * estimated(move, x))
    stage("views", repeated(lambda: x.t()[3]), 0)
    stage("to the host", repeated(x.cpu), 0)
    stage("to the core", lambda: [host.to("neuron") for _ in range(TIMES)], 0)
    stage("refused", lambda: refused(x), 0)
    wide = torch.ones(16, 32, device="neuron")
    linear = estimated(torch.nn.functional.linear, x, wide)
    stage("composite", repeated(lambda: torch.nn.functional.linear(x, wide)), TIMES * linear)
    stage("by value", lambda: torch.nonzero(x), -1)
    lists = [torch.ones(8, device="neuron"), torch.ones(9, device="neuron")]
    stage("lists", lambda: torch._foreach_add_(lists, 1.0), -1)
    with everything_enqueued("strict"):
        stage("strict", repeated(lambda: torch.add(x, x)), TIMES * add)
    with everything_enqueued("fused"), regions_soon():
        large = torch.ones(256, 512, device="neuron")
        sum_, twice = estimated(torch.add, large, large), estimated(lambda x: x * 2, large)
        steps = 0

        def step() -> Any:
            nonlocal steps
            steps += 1
            return torch.add(large * 2, large) * 2

        before = counted()
        until_fused(step)
        step()
        after = counted()
        more = {key: after[key] - before[key] for key in after}
        ns = steps * (sum_ + 2 * twice)
        sys.stdout.write(json.dumps({"stage": "fused", "estimate": ns, **more}) + "\n")
    stage("sparse", lambda: torch.ones(3, 3, device="neuron").to_sparse() * 2, -1)
    odd = torch.ones(3, 5, device="neuron")
    counted()  # what made it
    kill_children()
    stage("killed", lambda: torch.add(odd, odd), -1)
    stage("after it", lambda: torch.mul(odd, odd), estimated(torch.mul, odd, odd))


def kill_children() -> None:
    """End the process that answers, as somebody short of memory would."""
    me = str(os.getpid())
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if stat.read_text().rpartition(")")[2].split()[1] == me:
                os.kill(int(stat.parent.name), signal.SIGKILL)


def refused(x: torch.Tensor) -> None:
    """A call that fails."""
    try:
        torch.mm(x, x)
    except RuntimeError:
        return
    raise AssertionError("nothing was wrong")


def collective(rank: str, folder: str) -> None:
    """One of two ranks that reduce, in the main thread and behind it."""
    store = FileStore(f"{folder}/store", 2)
    dist.init_process_group("neuron", store=store, rank=int(rank), world_size=2)
    x = torch.ones(1024, device="neuron")

    def reduced(mode: str) -> None:
        with torch_neuronx.neuron.eager_mode(mode):
            for _ in range(TIMES):
                dist.all_reduce(x)

    stage("all_reduce", lambda: reduced("debug"), -1)
    stage("all_reduce behind", lambda: reduced("strict"), -1)
    gathered = torch.empty(2048, device="neuron")
    stage("all_gather", lambda: dist.all_gather_into_tensor(gathered, x), -1)
    # Nothing but the messages: one way, then back.
    stage("send", lambda: dist.send(x, 1) if rank == "0" else dist.recv(x, 0), -1)
    dist.destroy_process_group()
    if rank == "0":
        for program in (script, script_of_gather):
            found = torch_neuronx.estimate(program, mode="eager", target="trn2", world_size=2)
            sys.stdout.write(json.dumps({"cc": round(1000 * found.busy_us["cc"])}) + "\n")


def script() -> None:
    """The reductions, as `estimate` runs a rank."""
    dist.init_process_group("neuron")
    dist.all_reduce(torch.ones(1024, device="neuron"))


def script_of_gather() -> None:
    """The same of what gathers."""
    dist.init_process_group("neuron")
    x = torch.ones(1024, device="neuron")
    dist.all_gather_into_tensor(torch.empty(2048, device="neuron"), x)


def main() -> None:
    word, *rest = sys.argv[1:]
    if word == "operators":
        operators()
    else:
        collective(*rest)


if __name__ == "__main__":
    main()
