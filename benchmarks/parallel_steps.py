"""Training steps on two ranks, neuron against CPU with gloo, in the same processes, in turn.

    python -m benchmarks.parallel_steps [--only REGEX] [--list]

A step is forward, loss, backward and AdamW of the 6-layer transformer of benchmarks/models.py on
8x256 tokens a rank, wrapped in DDP or FSDP2; on 1x256 tokens, too, where there is less to compute
for the same exchange. "Prefetched" asks for the next block's parameters early, on both devices;
"compiled" is torch.compile here and eager mode on the CPU. One thread a rank. Exit code: 0 when all
targets are met, 1 when one is missed, 2 when the machine was too busy to measure.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, cast

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from benchmarks import models, quiet, ranks, suite, workloads
from benchmarks.collectives import BACKENDS, Spans, Step, milliseconds, take

if TYPE_CHECKING:
    import argparse

TOKENS = 256

Wrap = Callable[[models.Transformer, torch.device, int], nn.Module]


def ddp(model: models.Transformer, device: torch.device, world: int) -> nn.Module:
    del device, world
    return DistributedDataParallel(model)


def fsdp2(model: models.Transformer, device: torch.device, world: int) -> nn.Module:
    mesh = init_device_mesh(device.type, (world,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def fsdp2_prefetched(model: models.Transformer, device: torch.device, world: int) -> nn.Module:
    """Each block asks for the next one's parameters before it computes."""
    fsdp2(model, device, world)
    blocks = cast("list[FSDPModule]", list(model.blocks))
    for block, following in pairwise(blocks):
        block.set_modules_to_forward_prefetch([following])
    return model


def ddp_compiled(model: models.Transformer, device: torch.device, world: int) -> nn.Module:
    """Eager on cpu, compiled on neuron."""
    if device.type == "neuron":
        model.compile(backend="neuron")
    return ddp(model, device, world)


def fsdp2_compiled(model: models.Transformer, device: torch.device, world: int) -> nn.Module:
    """Eager on cpu; on neuron each block is compiled."""
    if device.type == "neuron":
        for block in model.blocks:
            block.compile(backend="neuron")
    return fsdp2_prefetched(model, device, world)


def alone(model: models.Transformer, device: torch.device, world: int) -> nn.Module:
    """Nothing is exchanged: what parallelism costs is the difference to this."""
    del device, world
    return model


@dataclass(frozen=True)
class Case:
    """A way to train on `world` ranks."""

    wrap: Wrap
    batch: int  # sequences of TOKENS a rank
    world: int = 2
    target: float | None = None  # time on CPU with gloo over ours, at least

    @property
    def name(self) -> str:
        return f"{self.wrap.__name__} {self.batch}x{TOKENS}, {self.world} ranks"


def table() -> list[Case]:
    """All rows in the order of the report."""
    return [
        Case(alone, 8),
        Case(ddp, 8, target=1.5),
        Case(fsdp2, 8, target=1.5),
        Case(fsdp2_prefetched, 8),
        Case(ddp_compiled, 8),
        Case(fsdp2_compiled, 8),
        Case(alone, 1),
        Case(ddp, 1),
        Case(fsdp2, 1),
        Case(fsdp2_prefetched, 1),
        Case(ddp_compiled, 1),
        Case(fsdp2_compiled, 1),
    ]


def make(case: Case, name: str) -> Step:
    """A training step on one rank."""
    device = torch.device(name)
    if name == "neuron":
        device = torch.device(name, torch.accelerator.current_device_index())
    model = case.wrap(workloads.built(device, models.Transformer), device, case.world)
    return workloads.training(model, device, case.batch)


def observe(case: Case, repeats: int) -> list[Spans]:
    """Samples of one rank on both backends."""
    steps = [make(case, name) for name in BACKENDS]
    for step in steps:
        take(step, 2)
    spans = [Spans([], [], 1) for _ in steps]
    for _ in range(repeats):
        for step, span in zip(steps, spans, strict=True):
            begin, end = take(step, 1)
            span.begin.append(begin)
            span.end.append(end)
    return spans


@dataclass(frozen=True)
class Row:
    """Milliseconds of a step: fastest and median sample."""

    name: str
    cpu_ms: float
    cpu_median_ms: float
    neuron_ms: float
    neuron_median_ms: float
    ratio: float
    target: str
    met: bool


def measure(case: Case, repeats: int) -> Row:
    results = ranks.run(case.world, observe, case, repeats)
    cpu, neuron = (milliseconds([spans[i] for spans in results]) for i in range(2))
    ratio = min(cpu) / min(neuron)
    return Row(
        case.name,
        min(cpu),
        statistics.median(cpu),
        min(neuron),
        statistics.median(neuron),
        ratio,
        "" if case.target is None else f">= {case.target:g}x",
        case.target is None or ratio >= case.target,
    )


HEADER = f"{'':34} {'cpu ms':>8} {'median':>8} {'neuron ms':>10} {'median':>8} {'ratio':>6} target"


def line(row: Row) -> str:
    return (
        f"{row.name:34} {row.cpu_ms:8.1f} {row.cpu_median_ms:8.1f} {row.neuron_ms:10.1f}"
        f" {row.neuron_median_ms:8.1f} {row.ratio:6.2f} {row.target}"
    )


def run(cases: Sequence[Case], options: argparse.Namespace, watch: quiet.Watch) -> int:
    rows = (measure(case, options.repeats) for case in cases)
    return suite.tell(HEADER, rows, line, options, watch)


def main() -> int:
    return suite.main(quiet.parser(__doc__, repeats=9), table(), run)


if __name__ == "__main__":
    sys.exit(main())
