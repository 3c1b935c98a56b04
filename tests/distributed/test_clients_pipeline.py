"""torch.distributed.pipelining: every schedule trains as one process does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
    SplitPoint,
    pipeline,
)

from tests.distributed.clients import (
    ROWS,
    Env,
    Transformer,
    batch,
    close,
    loss_of,
    run_checks,
    same_parameters,
    sgd,
    transformer,
)

STEPS = 2


class Part(nn.Module):
    """Some layers of a transformer; the first part embeds, the last has the head."""

    def __init__(self, whole: Transformer, index: int, count: int) -> None:
        super().__init__()
        each = len(whole.layers) // count
        self.embedding = whole.embedding if index == 0 else None
        self.layers = nn.ModuleList(whole.layers[index * each : (index + 1) * each])
        self.norm = whole.norm if index == count - 1 else None
        self.head = whole.head if index == count - 1 else None

    def forward(self, x: Tensor) -> Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))
        return x


def run(schedule: Any, data: Any, *, first: bool, last: bool) -> list[Tensor]:
    """One step of a schedule: the losses of the micro-batches where the last stage is."""
    losses: list[Tensor] = []
    arguments = (data.tokens,) if first else ()
    if last:
        schedule.step(*arguments, target=data.targets, losses=losses)
    else:
        schedule.step(*arguments)
    return losses


def agree(env: Env, kind: Any, micro: int, per_rank: int, *, v_shaped: bool = False) -> None:
    count = per_rank * env.world
    alone, whole = transformer(env.device, count), transformer(env.device, count)
    mine = [env.rank + i * env.world for i in range(per_rank)]
    if v_shaped:
        mine = [env.rank, count - 1 - env.rank]
    parts = [Part(whole, i, count) for i in mine]
    stages = [
        PipelineStage(part, i, count, env.device) for part, i in zip(parts, mine, strict=True)
    ]
    schedule = kind(stages if per_rank > 1 else stages[0], micro, loss_fn=loss_of)
    ours = sgd([p for part in parts for p in part.parameters()])
    theirs = sgd(alone.parameters())
    for step in range(STEPS):
        data = batch(step, env.device, rows=ROWS)
        losses = run(schedule, data, first=0 in mine, last=count - 1 in mine)
        want = loss_of(alone(data.tokens), data.targets)
        want.backward()
        if count - 1 in mine:
            close(torch.stack(losses).mean().detach(), want.detach())
        for optimizer in (ours, theirs):
            optimizer.step()
            optimizer.zero_grad()
    for i, part in zip(mine, parts, strict=True):
        same_parameters(part, Part(alone, i, count))


def schedules(env: Env) -> None:
    micro = 2 * env.world
    for single in (ScheduleGPipe, Schedule1F1B):
        agree(env, single, micro, 1)
    for multi in (ScheduleInterleaved1F1B, ScheduleLoopedBFS, ScheduleInterleavedZeroBubble):
        agree(env, multi, micro, 2)


def v_schedules(env: Env) -> None:
    for kind in (ScheduleZBVZeroBubble, ScheduleDualPipeV):
        agree(env, kind, 2 * env.world, 2, v_shaped=True)


def from_export(env: Env) -> None:
    """A model that PyTorch itself cuts in two."""
    if env.world != 2:
        return
    alone, whole = transformer(env.device), transformer(env.device)
    data = batch(0, env.device)
    cut = pipeline(
        whole, mb_args=(data.tokens[: ROWS // 4],),
        split_spec={"layers.1": SplitPoint.BEGINNING},
    )  # fmt: skip
    stage = cut.build_stage(env.rank, env.device)
    schedule = ScheduleGPipe(stage, 4, loss_fn=loss_of)
    losses = run(schedule, data, first=env.rank == 0, last=env.rank == 1)
    want = loss_of(alone(data.tokens), data.targets)
    if env.rank == 1:
        close(torch.stack(losses).mean().detach(), want.detach())


def with_fsdp(env: Env) -> None:
    """Two stages, each sharded over two ranks."""
    if env.world < 4:
        return
    mesh = init_device_mesh(env.device.type, (2, 2), mesh_dim_names=("pp", "dp"))
    index, row = mesh["pp"].get_local_rank(), mesh["dp"].get_local_rank()
    alone = transformer(env.device)
    part = Part(transformer(env.device), index, 2)
    fully_shard(part, mesh=mesh["dp"])
    stage = PipelineStage(part, index, 2, env.device, group=mesh["pp"].get_group())
    schedule = ScheduleGPipe(stage, 2, loss_fn=loss_of)
    ours, theirs = sgd(part.parameters()), sgd(alone.parameters())
    here = Env(row, 2, env.device)
    for step in range(STEPS):
        data = batch(step, env.device)
        mine = type(data)(here.rows(data.tokens), here.rows(data.targets))
        run(schedule, mine, first=index == 0, last=index == 1)
        loss_of(alone(data.tokens), data.targets).backward()
        for optimizer in (ours, theirs):
            optimizer.step()
            optimizer.zero_grad()
    same_parameters(part, Part(alone, index, 2))


CHECKS = (schedules, v_schedules, from_export, with_fsdp)


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.exhaustive)])
def test_pipeline(world: int) -> None:
    run_checks(world, CHECKS)
