"""The ranks of nccom-test: `python -m torch_neuronx.tools.nccom` reads what is to be done.

The task is a JSON object on standard input (`neuron_tools.nccom.command` writes it). The process
imports PyTorch once and forks the ranks, before any of them uses the device. Rank 0 prints a JSON
object in a line for each size: how many elements, and the seconds of each operation, which are
those of the slowest rank.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

_TIMEOUT = timedelta(seconds=120)
_TYPES: Final = {
    "uint8": torch.uint8, "int8": torch.int8, "uint16": torch.uint16, "int16": torch.int16,
    "fp16": torch.float16, "bf16": torch.bfloat16, "uint32": torch.uint32, "int32": torch.int32,
    "fp32": torch.float32, "fp8": torch.float8_e4m3fn,
}  # fmt: skip
# Sums of so many small numbers are exact in every type of more than eight bits, of all ranks.
_LARGEST_RANDOM = 2
Task = dict[str, Any]


class WrongResultError(AssertionError):
    """An operation gave something else than the slow computation."""


class Ranks:
    """A rank's part in the operation.

    Args:
        task: What is to be done.
        rank: Which rank this is.
    """

    def __init__(self, task: Task, rank: int) -> None:
        self.task, self.rank = task, rank
        groups = [(members, dist.new_group(members)) for members in task["groups"]]
        self.members, self.group = next((m, g) for m, g in groups if rank in m)
        self.place, self.size = self.members.index(rank), len(self.members)
        self.dtype: torch.dtype = _TYPES[task["dtype"]]
        core = rank % torch.accelerator.device_count()
        self.device = torch.device("neuron", core)
        torch.accelerator.set_device_index(core)
        self.sends: dict[int, int] = dict(task["pairs"])
        self.receives = {target: source for source, target in task["pairs"]}
        self.table: list[dict[str, list[int]]] | None = task["metadata"]

    def given(self, rank: int, count: int) -> torch.Tensor:
        """What a rank puts in, on the host: ones, zeros, or random numbers of its own."""
        check = self.task["check"]
        if check is None:
            return torch.zeros(count, dtype=self.dtype)
        if check == "all_ones":
            return torch.ones(count, dtype=torch.float32).to(self.dtype)
        made = torch.Generator().manual_seed(self.task["seed"] * 1000 + rank)
        low = 0 if not self.dtype.is_floating_point and not self.dtype.is_signed else -1
        numbers = torch.randint(low, _LARGEST_RANDOM, (count,), generator=made)
        return numbers.to(torch.float32).to(self.dtype)

    def input_count(self, place: int, count: int) -> int:
        """How many elements the rank at a place of the group puts in, of so many in all."""
        name = self.task["operation"]
        if self.table is not None:
            of = self.table[place]
            return max(of["send_displs"][i] + n for i, n in enumerate(of["send_counts"]))
        return count // self.size if name in {"all_gather", "all_gatherv"} else count

    def output_count(self, place: int, count: int) -> int:
        """How many elements it gets."""
        if self.table is not None:
            of = self.table[place]
            return max(of["recv_displs"][i] + n for i, n in enumerate(of["recv_counts"]))
        return count // self.size if self.task["operation"] == "reduce_scatter" else count

    def counts(self, place: int, count: int, way: str) -> tuple[list[int], list[int]]:
        """How many elements go to, or come from, each rank of the group, and where they lie."""
        if self.table is not None:
            return self.table[place][f"{way}_counts"], self.table[place][f"{way}_displs"]
        part = count // self.size
        return [part] * self.size, [part * i for i in range(self.size)]

    def start(self, source: torch.Tensor, target: torch.Tensor, count: int) -> list[dist.Work]:
        """Issue the operation: from `source` to `target`, which is `source` if it is reduced."""
        name, group = self.task["operation"], self.group
        works: list[dist.Work | None] = []
        if name == "all_reduce":
            works.append(dist.all_reduce(source, group=group, async_op=True))
        elif name == "all_gather" or (name == "all_gatherv" and self.table is None):
            works.append(dist.all_gather_into_tensor(target, source, group=group, async_op=True))
        elif name == "reduce_scatter":
            works.append(dist.reduce_scatter_tensor(target, source, group=group, async_op=True))
        elif name in {"sendrecv", "permute"}:
            if self.rank in self.receives:
                works.append(dist.irecv(target, self.receives[self.rank]))
            if self.rank in self.sends:
                works.append(dist.isend(source, self.sends[self.rank]))
        else:
            outputs = _parts(target, *self.counts(self.place, count, "recv"))
            inputs = _parts(source, *self.counts(self.place, count, "send"))
            works.append(dist.all_to_all(outputs, inputs, group=group, async_op=True))
        return [work for work in works if work is not None]

    def expected(self, count: int) -> torch.Tensor:
        """The result by the definition of the operation, on the host, slowly."""
        name = self.task["operation"]
        if name in {"sendrecv", "permute"}:
            zeros = torch.zeros(count, dtype=self.dtype)
            source = self.receives.get(self.rank)
            return zeros if source is None else self.given(source, count)
        inputs = [
            self.given(rank, self.input_count(place, count))
            for place, rank in enumerate(self.members)
        ]
        if name in {"all_reduce", "reduce_scatter"}:
            total = torch.zeros(count, dtype=torch.float64)
            for values in inputs:
                total += values.to(torch.float64)
            whole = total.to(self.dtype)
            part = count // self.size
            start = self.place * part
            return whole if name == "all_reduce" else whole[start : start + part]
        result = torch.zeros(self.output_count(self.place, count), dtype=self.dtype)
        gathers = name == "all_gather" or (name == "all_gatherv" and self.table is None)
        received, places = self.counts(self.place, count, "recv")
        for other, values in enumerate(inputs):
            sent, starts = self.counts(other, count, "send")
            start = 0 if gathers else starts[self.place]
            length = received[other]
            assert gathers or sent[self.place] == length
            result[places[other] : places[other] + length] = values[start : start + length]
        return result

    def run(self, count: int) -> dict[str, Any]:
        """Time the operation; returns what rank 0 prints."""
        pieces = _shares(count, self.task["ratios"], self.size)
        warm, timed = self.task["iterations"]
        before, within = self.task["operations"]
        copies = before + within if self.task["unique"] else 1
        buffers = [[self.buffers(piece) for piece in pieces] for _ in range(copies)]
        seconds = []
        for iteration in range(warm + timed):
            dist.barrier()
            for operation in range(before):
                self.once(buffers[operation % copies], pieces)
            start = time.perf_counter()
            for operation in range(before, before + within):
                self.once(buffers[operation % copies], pieces)
            passed = (time.perf_counter() - start) / within
            if iteration >= warm:
                seconds.append(passed)
        if self.task["check"] is not None:
            self.compare(pieces)
        slowest = torch.tensor(seconds, dtype=torch.float64, device=self.device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        itemsize = self.dtype.itemsize
        return {
            "count": count,
            "seconds": slowest.tolist(),
            "input": sum(self.input_count(p, count) for p in range(self.size)) * itemsize,
            "output": sum(self.output_count(p, count) for p in range(self.size)) * itemsize,
        }

    def buffers(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What the operation reads and writes, on the core."""
        source = self.given(self.rank, self.input_count(self.place, count)).to(self.device)
        if self.task["operation"] == "all_reduce":
            return source, source
        size = self.output_count(self.place, count)
        return source, torch.zeros(size, dtype=self.dtype, device=self.device)

    def once(
        self, buffers: Sequence[tuple[torch.Tensor, torch.Tensor]], pieces: Sequence[int]
    ) -> None:
        """One operation, or several that are issued together; returns when it is done."""
        works = [
            work
            for (source, target), count in zip(buffers, pieces, strict=True)
            for work in self.start(source, target, count)
        ]
        for work in works:
            work.wait()
        torch.accelerator.synchronize(self.device)

    def compare(self, pieces: Sequence[int]) -> None:
        """Run the operation once more on fresh data and compare the results.

        Raises:
            WrongResultError: One is wrong.
        """
        buffers = [self.buffers(count) for count in pieces]
        self.once(buffers, pieces)
        for (_, target), count in zip(buffers, pieces, strict=True):
            got, wanted = target.cpu().to(torch.float64), self.expected(count).to(torch.float64)
            wrong = (got != wanted).nonzero()
            if wrong.numel():
                at = int(wrong[0])
                raise WrongResultError(
                    f"{self.task['operation']} of {count} elements: rank {self.rank} has {got[at]} "
                    f"at {at} instead of {wanted[at]}; {wrong.numel()} elements are wrong"
                )


def _parts(whole: torch.Tensor, counts: Sequence[int], places: Sequence[int]) -> list[torch.Tensor]:
    return [whole[start : start + count] for start, count in zip(places, counts, strict=True)]


def _shares(count: int, ratios: Sequence[int], ranks: int) -> list[int]:
    """Divide elements by ratios, so that each share is of whole elements for each rank."""
    if len(ratios) == 1:
        return [count]
    return [max(ranks, count * ratio // sum(ratios) // ranks * ranks) for ratio in ratios]


def _say(said: dict[str, Any]) -> None:
    sys.stdout.write(f"{json.dumps(said)}\n")
    sys.stdout.flush()


def _rank(task: Task, rank: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "neuron",
        store=FileStore(store, task["ranks"]),
        rank=rank,
        world_size=task["ranks"],
        timeout=_TIMEOUT,
    )
    ranks = Ranks(task, rank)
    for count in task["counts"]:
        if rank == 0:
            _say({"starting": count})
        said = ranks.run(count)
        if rank == 0:
            _say(said)
    dist.destroy_process_group()


def _in_child(body: Callable[[], None]) -> int:
    """Fork a process that runs `body`; returns its number."""
    child = os.fork()
    if child:
        return child
    try:
        body()
    except BaseException:  # noqa: BLE001 - it is told to the parent, which ends all
        error = traceback.format_exc()
        sys.stderr.write(error)
        _say({"error": error.strip().splitlines()[-1]})
        os._exit(1)
    os._exit(0)


def main() -> int:
    """Run the task; returns the exit code."""
    task: Task = json.load(sys.stdin)
    children: set[int] = set()

    def stop(*_: object) -> None:
        for child in children:
            os.kill(child, signal.SIGTERM)

    failed = False
    with tempfile.TemporaryDirectory(prefix="nccom-") as folder:
        store = str(Path(folder) / "store")
        for rank in range(task["ranks"]):
            children.add(_in_child(partial(_rank, task, rank, store)))
        signal.signal(signal.SIGTERM, stop)
        while children:
            child, status = os.wait()
            children.discard(child)
            if status and not failed:
                failed = True
                stop()  # what one rank lacks, the others would wait for until the timeout
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
