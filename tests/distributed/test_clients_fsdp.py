"""FSDP2: `fully_shard` and HSDP, against one process that has everything."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from tests.distributed.clients import (
    Check,
    Env,
    Transformer,
    batch,
    close,
    full,
    loss_of,
    reference,
    run_checks,
    same_parameters,
    sgd,
    shard,
    train,
    transformer,
)

STEPS = 3


def sharded(model: Transformer, **options: Any) -> Transformer:
    """Every layer and the rest are groups of their own."""
    for layer in model.layers:
        fully_shard(layer, **options)
    fully_shard(model, **options)
    return model


def groups(model: nn.Module) -> list[FSDPModule]:
    return [m for m in model.modules() if isinstance(m, FSDPModule)]


def trains_alike(
    env: Env, prepare: Callable[[Transformer], object] = lambda _: None, **options: Any
) -> Transformer:
    alone = transformer(env.device)
    model = sharded(transformer(env.device), **options)
    prepare(model)
    losses = train(env, model, sgd(model.parameters()), STEPS)
    close(losses, reference(env, alone, sgd(alone.parameters()), STEPS))
    same_parameters(model, alone)
    return model


def plain(env: Env) -> None:
    for reshard in (True, False):
        model = trains_alike(env, reshard_after_forward=reshard)
    weight = model.layers[0].get_parameter("query.weight")
    assert isinstance(weight, DTensor)
    assert weight.to_local().shape[0] == weight.shape[0] // env.world
    assert weight.device.type == env.device.type
    if env.world > 2:
        trains_alike(env, reshard_after_forward=2)


def prefetch(env: Env) -> None:
    def explicit(model: Transformer) -> None:
        layers = groups(model)[1:]
        for layer, following in itertools.pairwise(layers):
            layer.set_modules_to_forward_prefetch([following])
            following.set_modules_to_backward_prefetch([layer])

    trains_alike(env, explicit)

    trains_alike(env, lambda m: [g._set_unshard_async_op(async_op=True) for g in groups(m)])


def early_unshard(env: Env) -> None:
    """Parameters are gathered before they are needed; the optimizer has the sharded ones."""
    alone, model = transformer(env.device), sharded(transformer(env.device))
    ours = sgd(model.parameters())
    for group in groups(model):
        handle = group.unshard(async_op=True)
        assert handle is not None
        handle.wait()
    assert not isinstance(model.head.weight, DTensor)
    close(model.head.weight.detach(), alone.head.weight.detach())
    losses = train(env, model, ours, STEPS)
    close(losses, reference(env, alone, sgd(alone.parameters()), STEPS))
    same_parameters(model, alone)


def other_placement(env: Env) -> None:
    """Matrices are split by columns, which needs a copy before each collective."""
    trains_alike(env, shard_placement_fn=lambda p: Shard(p.ndim - 1))


def hybrid(env: Env) -> None:
    """Replicated over the first dimension of the mesh, sharded over the second."""
    shape = (2, env.world // 2)
    mesh = init_device_mesh(env.device.type, shape, mesh_dim_names=("replicate", "shard"))
    model = trains_alike(env, mesh=mesh)
    weight = model.head.weight
    assert isinstance(weight, DTensor)
    assert len(weight.placements) == 2

    def only_sums(model: Transformer) -> None:
        for group in groups(model):
            group.set_force_sum_reduction_for_comms(True)

    sums = trains_alike(env, only_sums, mesh=mesh)
    assert sums is not model


def recomputed(env: Env) -> None:
    """Activation checkpointing inside of each sharded layer."""
    alone, model = transformer(env.device), transformer(env.device)
    for i, layer in enumerate(model.layers):
        wrapped = checkpoint_wrapper(layer)
        fully_shard(wrapped)
        model.layers[i] = wrapped
    fully_shard(model)
    losses = train(env, model, sgd(model.parameters()), STEPS)
    close(losses, reference(env, alone, sgd(alone.parameters()), STEPS))
    same_parameters(model, alone)


def bfloat16_reference(
    env: Env, master: Transformer, steps: int, reduce: torch.dtype
) -> torch.Tensor:
    """Each rank's rows through a bfloat16 copy; gradients are summed in `reduce`."""
    optimizer = sgd(master.parameters())
    losses = []
    for step in range(steps):
        data = batch(step, env.device)
        sums: list[torch.Tensor | float] = [0.0] * len(list(master.parameters()))
        total = torch.zeros((), device=env.device)
        for rank in range(env.world):
            low = copy.deepcopy(master).to(torch.bfloat16)
            tokens, targets = (shard(t, rank, env.world) for t in (data.tokens, data.targets))
            loss = loss_of(low(tokens), targets)
            loss.backward()
            total += loss.detach() / env.world
            grads = [p.grad for p in low.parameters()]
            sums = [s + g.to(reduce) for s, g in zip(sums, grads, strict=True) if g is not None]
        for p, g in zip(master.parameters(), sums, strict=True):
            p.grad = torch.as_tensor(g / env.world).to(p.dtype)
        optimizer.step()
        losses.append(total)
    return torch.stack(losses)


def mixed_precision(env: Env) -> None:
    for reduce in (torch.float32, torch.bfloat16):
        policy = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=reduce)
        alone = transformer(env.device)
        model = sharded(transformer(env.device), mp_policy=policy)
        losses = train(env, model, sgd(model.parameters()), STEPS)
        # A difference of one unit of float32 may turn the rounding of a parameter to bfloat16.
        close(losses, bfloat16_reference(env, alone, STEPS, reduce), dtype=torch.bfloat16, terms=1)
        same_parameters(model, alone, dtype=torch.bfloat16, terms=1)
        assert model.head.weight.dtype == torch.float32
    # Outputs in another dtype, and inputs that are not cast.
    policy = MixedPrecisionPolicy(
        torch.bfloat16, output_dtype=torch.float32, cast_forward_inputs=True
    )
    layer = nn.Linear(4, 4).to(env.device)
    fully_shard(layer, mp_policy=policy)
    assert layer(torch.randn(2, 4, device=env.device)).dtype == torch.float32


def offload(env: Env) -> None:
    """Parameters, gradients and the optimizer live on the host."""
    for pin in () if env.cpu else (True, False):
        alone = transformer(env.device)
        model = sharded(transformer(env.device), offload_policy=CPUOffloadPolicy(pin_memory=pin))
        parameters = list(model.parameters())
        assert all(p.device.type == "cpu" for p in parameters)
        losses = train(env, model, sgd(parameters), STEPS)
        close(losses, reference(env, alone, sgd(alone.parameters()), STEPS))
        for p, q in zip(parameters, alone.parameters(), strict=True):
            assert isinstance(p, DTensor)
            there = DTensor.from_local(
                p.to_local().detach().to(env.device), p.device_mesh, p.placements,
                shape=p.shape, stride=p.stride(),
            )  # fmt: skip
            close(full(there), q.detach())


def accumulation(env: Env) -> None:
    """Two micro-batches a step; without synchronisation, without all-reduce, and with it."""
    for whole_gradients in (True, False):
        alone, model = transformer(env.device), sharded(transformer(env.device))
        assert isinstance(model, FSDPModule)
        ours, theirs = sgd(model.parameters()), sgd(alone.parameters())
        for step in range(STEPS):
            data = batch(step, env.device, rows=4 * env.world)
            tokens, targets = (env.rows(t).chunk(2) for t in (data.tokens, data.targets))
            for micro in range(2):
                last = micro == 1
                model.set_is_last_backward(last)
                if whole_gradients:
                    model.set_requires_gradient_sync(last)
                (loss_of(model(tokens[micro]), targets[micro]) / 2).backward()
            loss_of(alone(data.tokens), data.targets).backward()
            for optimizer in (ours, theirs):
                optimizer.step()
                optimizer.zero_grad()
        same_parameters(model, alone)


def clip(env: Env) -> None:
    alone, model = transformer(env.device), sharded(transformer(env.device))
    ours, theirs = (torch.optim.AdamW(m.parameters(), lr=0.01, eps=1e-3) for m in (model, alone))
    for step in range(STEPS):
        data = batch(step, env.device)
        loss_of(model(env.rows(data.tokens)), env.rows(data.targets)).backward()
        loss_of(alone(data.tokens), data.targets).backward()
        norms = [nn.utils.clip_grad_norm_(m.parameters(), 0.05) for m in (model, alone)]
        close(full(norms[0]), norms[1])
        assert norms[1] > 0.05
        for optimizer in (ours, theirs):
            optimizer.step()
            optimizer.zero_grad()
    same_parameters(model, alone)


def same_gradients(model: nn.Module, alone: nn.Module, factor: float = 1.0) -> None:
    """Gradients of a sharded model are `factor` times those of the whole one."""
    for p, q in zip(model.parameters(), alone.parameters(), strict=True):
        assert p.grad is not None
        assert q.grad is not None
        close(full(p.grad), q.grad * factor)


def divide_factor(env: Env) -> None:
    """A factor of one's own is a multiplication inside of the reduction (PREMUL_SUM)."""
    for factor in () if env.cpu else (3.0, 2.0 * env.world):  # gloo has no PREMUL_SUM
        alone, model = transformer(env.device), sharded(transformer(env.device))
        for group in groups(model):
            group.set_gradient_divide_factor(factor)
        data = batch(0, env.device)
        loss_of(model(env.rows(data.tokens)), env.rows(data.targets)).backward()
        loss_of(alone(data.tokens), data.targets).backward()
        same_gradients(model, alone, env.world / factor)


def from_meta(env: Env) -> None:
    with torch.device("meta"):
        model = Transformer()
    sharded(model)
    model.to_empty(device=env.device)
    whole = transformer(env.device)
    state = {
        name: nn.Parameter(distribute_tensor(t.detach(), p.device_mesh, p.placements))
        for (name, p), t in zip(
            model.state_dict().items(), whole.state_dict().values(), strict=True
        )
    }
    model.load_state_dict(state, assign=True)
    losses = train(env, model, sgd(model.parameters()), STEPS)
    close(losses, reference(env, whole, sgd(whole.parameters()), STEPS))
    same_parameters(model, whole)
    # A state dict goes around: into another model, which then is the same.
    other = sharded(Transformer().to(env.device))
    other.load_state_dict(model.state_dict())
    same_parameters(other, whole)


def ignored_and_frozen(env: Env) -> None:
    alone, model = transformer(env.device), transformer(env.device)
    for m in (alone, model):
        # PyTorch's stub calls the parameter `mode`.
        m.embedding.weight.requires_grad_(requires_grad=False)  # type: ignore[call-arg]
    fully_shard(model, ignored_params={model.norm.weight, model.norm.bias})
    assert not isinstance(model.norm.weight, DTensor)
    data = batch(0, env.device)
    loss_of(model(env.rows(data.tokens)), env.rows(data.targets)).backward()
    loss_of(alone(data.tokens), data.targets).backward()
    assert model.embedding.weight.grad is None
    for (name, p), q in zip(model.named_parameters(), alone.parameters(), strict=True):
        if p.grad is not None and q.grad is not None:
            grad = full(p.grad).clone()
            if name.startswith("norm."):  # not FSDP's, so not reduced
                dist.all_reduce(grad)
                grad /= env.world
            close(grad, q.grad)


class Odd(nn.Module):
    """Sizes that no number of ranks divides, and a method beside forward."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 3), nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.b(self.a(x).tanh())
        return y

    def score(self, x: torch.Tensor) -> torch.Tensor:
        return self(x).square()  # type: ignore[no-any-return]


def uneven(env: Env) -> None:
    torch.manual_seed(8)
    alone = Odd().to(env.device)
    model = copy.deepcopy(alone)
    fully_shard(model.a)
    fully_shard(model)
    register_fsdp_forward_method(model, "score")
    x = torch.randn(3 * env.world, 5).to(env.device)
    ours, theirs = sgd(model.parameters()), sgd(alone.parameters())
    for _ in range(STEPS):
        model.score(env.rows(x)).mean().backward()
        alone.score(x).mean().backward()
        for optimizer in (ours, theirs):
            optimizer.step()
            optimizer.zero_grad()
    same_parameters(model, alone)


def two_meshes(env: Env) -> None:
    """FSDP over a mesh that is part of a larger one."""
    if env.world < 4:
        return
    mesh = init_device_mesh(env.device.type, (2, 2), mesh_dim_names=("other", "shard"))
    part: DeviceMesh = mesh["shard"]
    alone = transformer(env.device)
    model = sharded(transformer(env.device), mesh=part)
    # Both halves of the mesh see the same rows, so they train the same model.
    row = part.get_local_rank()
    here = Env(row, 2, env.device)
    data = batch(0, env.device)
    loss_of(model(here.rows(data.tokens)), here.rows(data.targets)).backward()
    loss_of(alone(data.tokens), data.targets).backward()
    same_gradients(model, alone)


CHECKS = (
    plain, prefetch, early_unshard, other_placement, hybrid, recomputed, mixed_precision, offload,
    accumulation, clip, divide_factor, from_meta, ignored_and_frozen, uneven, two_meshes,
)  # fmt: skip


# What four ranks have that two have not: groups that are part of the world, meshes of two
# dimensions, more ranks than some parameters have rows.
OF_FOUR = (plain, hybrid, uneven, two_meshes)


@pytest.mark.parametrize(
    ("world", "checks"),
    [
        pytest.param(2, CHECKS, id="2"),
        pytest.param(4, OF_FOUR, id="4"),
        # What they do with the world as a whole is that of two.
        pytest.param(4, CHECKS, id="4-all", marks=pytest.mark.exhaustive),
    ],
)
def test_fully_shard(world: int, checks: Sequence[Check]) -> None:
    run_checks(world, checks)
