"""Random programs of operators and collectives, which every eager mode is to run alike.

A seed decides the calls; ranks differ in their values alone. All values are small whole numbers, so
every order of a sum gives the same. Tensors are dropped as soon as something else is bound to
their name, which lets their memory go to whoever asks next, while what reads them is enqueued.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as funcol
from torch.distributed import distributed_c10d

from tests.device.enqueued import everything_enqueued
from torch_neuronx import neuron

NAMES = 6
SIZES = (1, 12, 600, 4800, 60_000)  # elements; multiples of the 4 ranks that there may be, or 1
LISTS = (420, 600)  # elements that take the memory of a list of 70 and of 100 tensors
Tensor = torch.Tensor


class Program:
    """The state of a run: named tensors, and what is under way."""

    def __init__(self, seed: int, groups: list[tuple[list[int], Any]]) -> None:
        self.random = random.Random(seed)  # noqa: S311 - no secret
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.groups = groups
        self.under_way: list[Any] = []
        self.kept: list[Tensor] = []  # results of what is under way, and values that were read
        self.tensors = [self.new() for _ in range(NAMES)]

    def new(self, size: int | None = None) -> Tensor:
        size = size or self.random.choice(SIZES)
        start = self.random.randrange(97)
        return (
            (torch.arange(size, device="neuron") * (self.rank + 2) + start).remainder_(97).float()
        )

    def any(self) -> Tensor:
        return self.tensors[self.random.randrange(NAMES)]

    def bind(self, tensor: Tensor) -> None:
        self.tensors[self.random.randrange(NAMES)] = tensor

    def settle(self) -> None:
        """Wait for what is under way: its tensors must not be used before."""
        for work in self.under_way:
            work.wait()
        self.under_way.clear()

    def start(self, work: Any, *results: Tensor) -> None:
        """Take note of a collective, and wait for it now or later."""
        self.kept.extend(results)
        if work is not None:
            self.under_way.append(work)
        if self.random.random() < 0.3:
            self.settle()

    # Calls. Each draws the same numbers in all ranks.

    def pointwise(self) -> None:
        a = self.any()
        self.bind((a * self.random.randrange(1, 9) + 1).remainder(97))

    def in_place(self) -> None:
        self.any().mul_(self.random.randrange(1, 5)).remainder_(97)

    def temporaries(self) -> None:
        for size in (self.random.choice(SIZES), *LISTS):
            for _ in range(self.random.randrange(1, 20)):
                _ = torch.full((size,), 7.0, device="neuron") + 1

    def busy(self) -> None:
        """Keep the core at work, so that the host runs ahead."""
        x = torch.ones(400, 400, device="neuron")
        for _ in range(10):
            x = (x @ x).remainder_(2)
        self.bind(x.flatten()[: self.random.choice((12, 600))].clone())

    def fresh(self) -> None:
        self.bind(self.new())

    def read(self) -> None:
        self.kept.append(torch.tensor(self.any().sum().item()))

    def all_reduce(self) -> None:
        x = self.any().clone()
        self.start(dist.all_reduce(x, async_op=self.random.random() < 0.5), x)

    def all_reduce_in_place(self) -> None:
        x = self.any()
        dist.all_reduce(x)
        x.remainder_(97)

    def many(self) -> None:
        xs = [self.new(12) for _ in range(self.random.choice((2, 70, 100, 100)))]
        with distributed_c10d._coalescing_manager(
            device=torch.device("neuron"), async_ops=True
        ) as manager:
            for x in xs:
                dist.all_reduce(x)
        self.start(manager, *xs[-2:])

    def gather(self) -> None:
        x = self.any()
        out = torch.empty(self.world * x.numel(), device="neuron")
        self.start(dist.all_gather_into_tensor(out, x.clone(), async_op=True), out)

    def scatter(self) -> None:
        x = self.new(self.random.choice(SIZES[1:]))
        out = torch.empty(x.numel() // self.world, device="neuron")
        self.start(
            dist.reduce_scatter_tensor(
                out, x[: out.numel() * self.world], async_op=self.random.random() < 0.5
            ),
            out,
        )

    def broadcast(self) -> None:
        x = self.any().clone()
        root = self.random.randrange(self.world)
        self.start(dist.broadcast(x, root, async_op=self.random.random() < 0.5), x)

    def exchange(self) -> None:
        x = self.new(self.random.choice((12, 60_000)))
        out = torch.empty_like(x)
        self.start(dist.all_to_all_single(out, x, async_op=self.random.random() < 0.5), out)

    def functional(self) -> None:
        world = dist.group.WORLD
        assert world is not None
        y = funcol.all_reduce(self.any(), "sum", world)
        self.bind((y + 1).remainder(97))

    def of_a_group(self) -> None:
        ranks, group = self.random.choice(self.groups)
        x = self.any().clone()
        if self.rank in ranks:
            self.start(dist.all_reduce(x, group=group, async_op=True), x)
        else:
            self.start(None, x)

    def ring(self) -> None:
        x = self.new()
        out = torch.empty_like(x)
        operations = [
            dist.P2POp(dist.isend, x, (self.rank + 1) % self.world),
            dist.P2POp(dist.irecv, out, (self.rank - 1) % self.world),
        ]
        for work in dist.batch_isend_irecv(operations):
            self.under_way.append(work)
        self.start(None, out)

    def barrier(self) -> None:
        dist.barrier()

    def on_a_stream(self) -> None:
        a = self.any()
        stream = torch.Stream("neuron")
        stream.wait_stream(neuron.current_stream())
        with stream:
            y = (a * 2 + 1).remainder(97)
            dist.all_reduce(y)
            y.remainder_(97)
        neuron.current_stream().wait_stream(stream)
        self.bind(y)

    def results(self) -> list[Tensor]:
        self.settle()
        return [t.cpu().clone() for t in (*self.tensors, *self.kept)]


CALLS: dict[Callable[[Program], None], int] = {
    Program.pointwise: 4,
    Program.in_place: 3,
    Program.temporaries: 3,
    Program.busy: 3,
    Program.fresh: 2,
    Program.read: 1,
    Program.all_reduce: 2,
    Program.all_reduce_in_place: 2,
    Program.many: 2,
    Program.gather: 2,
    Program.scatter: 1,
    Program.broadcast: 1,
    Program.exchange: 1,
    Program.functional: 1,
    Program.of_a_group: 2,
    Program.ring: 2,
    Program.barrier: 1,
    Program.on_a_stream: 1,
}


def run(seed: int, mode: str, groups: list[tuple[list[int], Any]], length: int) -> list[Tensor]:
    """All values of the program of a seed."""
    with everything_enqueued(mode):
        program = Program(seed, groups)
        for call in program.random.choices(list(CALLS), list(CALLS.values()), k=length):
            call(program)
        return program.results()


def groups_of(world: int) -> list[tuple[list[int], Any]]:
    """Everybody, each alone, neighbours."""
    lists = [list(range(world)), *([r] for r in range(world)), [0, world - 1]]
    return [(ranks, dist.new_group(ranks, backend="neuron")) for ranks in lists]


def compare(rank: int, world: int, seeds: list[int], length: int) -> list[str]:
    """The seeds and modes whose values differ from those of debug mode, with the first place."""
    groups = groups_of(world)
    wrong = []
    for seed in seeds:
        expected = run(seed, "debug", groups, length)
        for mode in ("strict", "fused"):
            found = run(seed, mode, groups, length)
            same = [torch.equal(a, b) for a, b in zip(expected, found, strict=True)]
            if not all(same):
                wrong.append(f"seed {seed}, {mode}, rank {rank}: value {same.index(False)}")
    return wrong
