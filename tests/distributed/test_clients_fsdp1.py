"""FullyShardedDataParallel, the older one. It refuses cpu, so it is only checked on the device."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffload,
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel,
    MixedPrecision,
    ShardedStateDictConfig,
    ShardingStrategy,
    StateDictType,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from tests.distributed.clients import (
    Block,
    Env,
    Transformer,
    batch,
    close,
    loss_of,
    reference,
    run_checks,
    sgd,
    train,
    transformer,
)

STEPS = 3


def wrap(env: Env, model: nn.Module, **options: Any) -> FullyShardedDataParallel:
    options = {"use_orig_params": True} | options
    return FullyShardedDataParallel(
        model, auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=env.device, **options
    )


def whole_state(model: FullyShardedDataParallel) -> dict[str, Any]:
    """The state dict of the unsharded model, on every rank."""
    kind = StateDictType.FULL_STATE_DICT
    config = FullStateDictConfig(rank0_only=False)
    with FullyShardedDataParallel.state_dict_type(model, kind, config):
        return model.state_dict()


def same_state(model: FullyShardedDataParallel, alone: nn.Module, **bounds: Any) -> None:
    got, want = whole_state(model), alone.state_dict()
    assert got.keys() == want.keys()
    for name, value in want.items():
        close(got[name].to(value.device), value, **bounds)


def trains_alike(
    env: Env, dtype: torch.dtype = torch.float32, **options: Any
) -> FullyShardedDataParallel:
    alone = transformer(env.device)
    model = wrap(env, transformer(env.device), **options)
    losses = train(env, model, sgd(model.parameters()), STEPS)
    close(losses, reference(env, alone, sgd(alone.parameters()), STEPS), dtype=dtype)
    same_state(model, alone, dtype=dtype)
    return model


def strategies(env: Env) -> None:
    for strategy in (
        ShardingStrategy.FULL_SHARD,
        ShardingStrategy.SHARD_GRAD_OP,
        ShardingStrategy.NO_SHARD,
    ):
        for original in (True, False):
            trains_alike(env, sharding_strategy=strategy, use_orig_params=original)
    if env.world < 4:  # sharded over one rank it would not reduce gradients, on any device
        return
    mesh = init_device_mesh(env.device.type, (2, env.world // 2), mesh_dim_names=("a", "b"))
    trains_alike(env, sharding_strategy=ShardingStrategy.HYBRID_SHARD, device_mesh=mesh)


def mixed_precision(env: Env) -> None:
    low = torch.bfloat16
    policy = MixedPrecision(param_dtype=low, reduce_dtype=torch.float32, buffer_dtype=low)
    model = trains_alike(env, dtype=low, mixed_precision=policy)
    assert all(p.dtype == torch.float32 for p in model.parameters())
    trains_alike(env, dtype=low, mixed_precision=MixedPrecision(param_dtype=low, reduce_dtype=low))


def offload(env: Env) -> None:
    model = trains_alike(env, cpu_offload=CPUOffload(offload_params=True))
    assert all(p.device.type == "cpu" for p in model.parameters())


def recomputed(env: Env) -> None:
    alone = transformer(env.device)
    model = wrap(env, transformer(env.device))
    apply_activation_checkpointing(model, check_fn=lambda m: isinstance(m, Block))
    losses = train(env, model, sgd(model.parameters()), STEPS)
    close(losses, reference(env, alone, sgd(alone.parameters()), STEPS))


def clip_and_no_sync(env: Env) -> None:
    alone, model = transformer(env.device), wrap(env, transformer(env.device))
    ours, theirs = sgd(model.parameters()), sgd(alone.parameters())
    for step in range(STEPS):
        data = batch(step, env.device, rows=4 * env.world)
        tokens, targets = (env.rows(t).chunk(2) for t in (data.tokens, data.targets))
        with model.no_sync():
            (loss_of(model(tokens[0]), targets[0]) / 2).backward()
        (loss_of(model(tokens[1]), targets[1]) / 2).backward()
        loss_of(alone(data.tokens), data.targets).backward()
        close(
            model.clip_grad_norm_(0.1),
            nn.utils.clip_grad_norm_(alone.parameters(), 0.1),
        )
        for optimizer in (ours, theirs):
            optimizer.step()
            optimizer.zero_grad()
    same_state(model, alone)


def state_dicts(env: Env) -> None:
    """Full and sharded, of model and optimizer, into a fresh model that then trains on alike."""
    alone, model = transformer(env.device), wrap(env, transformer(env.device))
    make = functools.partial(torch.optim.AdamW, lr=0.01, eps=1e-3)
    ours, theirs = make(model.parameters()), make(alone.parameters())
    train(env, model, ours, STEPS)
    reference(env, alone, theirs, STEPS)
    for kind, config, optimizer_config in (
        (
            StateDictType.FULL_STATE_DICT,
            FullStateDictConfig(rank0_only=False),
            FullOptimStateDictConfig(rank0_only=False),
        ),
        (StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig(), None),
    ):
        with FullyShardedDataParallel.state_dict_type(model, kind, config, optimizer_config):
            state = model.state_dict()
            moments = FullyShardedDataParallel.optim_state_dict(model, ours)
        other = wrap(env, Transformer().to(env.device))
        optimizer = make(other.parameters())
        with FullyShardedDataParallel.state_dict_type(other, kind, config, optimizer_config):
            other.load_state_dict(state)
            optimizer.load_state_dict(
                FullyShardedDataParallel.optim_state_dict_to_load(other, optimizer, moments)
            )
        same_state(other, alone)
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            assert torch.equal(p, q)
        moment = [s["exp_avg"] for s in ours.state.values()]
        for a, b in zip(moment, (s["exp_avg"] for s in optimizer.state.values()), strict=True):
            assert torch.equal(a, b)
    with FullyShardedDataParallel.summon_full_params(model, writeback=False):
        for p, q in zip(model.parameters(), alone.parameters(), strict=True):
            close(p.detach(), q.detach())
    dist.barrier()


CHECKS = (strategies, mixed_precision, offload, recomputed, clip_and_no_sync, state_dicts)


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.exhaustive)])
def test_fsdp1(world: int) -> None:
    run_checks(world, CHECKS)
