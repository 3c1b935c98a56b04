"""DistributedDataParallel, its communication hooks, SyncBatchNorm, and what shards optimizers."""
# No `from __future__ import annotations`: DDP compares a hook's annotations with types.

from collections.abc import Iterable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import BuiltinCommHookType, GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import (
    DDPCommHookType,
    default_hooks,
    powerSGD_hook,
    quantization_hooks,
    register_ddp_comm_hook,
)
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.join import Join
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from tests.distributed.clients import (
    Env,
    batch,
    close,
    loss_of,
    losses_of,
    reference,
    run_checks,
    same_parameters,
    sgd,
    train,
    transformer,
)

STEPS = 3
BUCKET_MB = 0.004  # a few tensors: several buckets even of these models


def wrap(env: Env, model: nn.Module, **options: Any) -> DistributedDataParallel:
    ids = None if env.cpu else [env.device.index]
    return DistributedDataParallel(model, device_ids=ids, bucket_cap_mb=BUCKET_MB, **options)


def trains_alike(env: Env, **options: Any) -> None:
    alone, model = transformer(env.device), transformer(env.device)
    ddp = wrap(env, model, **options)
    losses = train(env, ddp, sgd(ddp.parameters()), STEPS)
    close(losses, reference(env, alone, sgd(alone.parameters()), STEPS))
    same_parameters(model, alone)


def plain(env: Env) -> None:
    trains_alike(env)
    trains_alike(env, gradient_as_bucket_view=True)
    trains_alike(env, static_graph=True)
    trains_alike(env, static_graph=True, gradient_as_bucket_view=True)


def starts_from_rank_zero(env: Env) -> None:
    torch.manual_seed(env.rank)
    model = nn.Linear(5, 3).to(env.device)
    mine = model.weight.detach().clone()
    ddp = wrap(env, model)
    first = mine.clone()
    dist.broadcast(first, 0)
    assert torch.equal(ddp.module.weight, first)
    assert env.rank == 0 or not torch.equal(mine, first)


def no_sync(env: Env) -> None:
    """Two halves of this rank's rows, one reduction."""
    alone, model = transformer(env.device), transformer(env.device)
    ddp = wrap(env, model)
    ours, theirs = sgd(ddp.parameters()), sgd(alone.parameters())
    for step in range(STEPS):
        data = batch(step, env.device, rows=4 * env.world)
        tokens, targets = (env.rows(t).chunk(2) for t in (data.tokens, data.targets))
        with ddp.no_sync():
            (loss_of(ddp(tokens[0]), targets[0]) / 2).backward()
        local = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        gathered = [torch.empty_like(local[0]) for _ in range(env.world)]
        dist.all_gather(gathered, local[0])
        assert not torch.equal(gathered[0], gathered[-1])  # nothing was reduced yet
        (loss_of(ddp(tokens[1]), targets[1]) / 2).backward()
        loss_of(alone(data.tokens), data.targets).backward()
        for optimizer in (ours, theirs):
            optimizer.step()
            optimizer.zero_grad()
    same_parameters(model, alone)


class Branches(nn.Module):
    """Uses one of its two branches."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = (nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: Tensor, first: bool) -> Tensor:
        y: Tensor = self.last((self.first if first else self.second)(x).tanh())
        return y


def unused_parameters(env: Env) -> None:
    """In odd steps ranks even take different branches."""
    models = []
    for _ in range(2):
        torch.manual_seed(2)
        models.append(Branches().to(env.device))
    alone, model = models
    ddp = wrap(env, model, find_unused_parameters=True)
    ours, theirs = sgd(ddp.parameters()), sgd(alone.parameters())
    data = torch.randn(env.world, 3, 6).to(env.device)
    for step in range(STEPS):
        branch = [step % 2 == 0 or rank % 2 == 0 for rank in range(env.world)]
        ddp(data[env.rank], branch[env.rank]).square().sum().backward()
        for rank in range(env.world):
            (alone(data[rank], branch[rank]).square().sum() / env.world).backward()
        for optimizer in (ours, theirs):
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
    same_parameters(model, alone)


def join(env: Env) -> None:
    """Rank r has r + 1 batches; gradients are divided by the number of all ranks."""
    torch.manual_seed(3)
    alone, model = nn.Linear(4, 2), nn.Linear(4, 2)
    model.load_state_dict(alone.state_dict())
    alone, model = alone.to(env.device), model.to(env.device)
    ddp = wrap(env, model)
    ours, theirs = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (ddp, alone))
    data = torch.randn(env.world, env.world, 5, 4).to(env.device)
    with Join([ddp]):
        for step in range(env.rank + 1):
            ddp(data[env.rank, step]).square().sum().backward()
            ours.step()
            ours.zero_grad()
    for step in range(env.world):
        for rank in range(step, env.world):
            (alone(data[rank, step]).square().sum() / env.world).backward()
        theirs.step()
        theirs.zero_grad()
    same_parameters(model, alone)


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(functional.relu(self.norm(self.conv(x))).mean((2, 3)))
        return y


def sync_batch_norm(env: Env) -> None:
    """Ranks have different numbers of images; statistics are those of all of them."""
    if env.cpu:  # refused by PyTorch on cpu
        return
    torch.manual_seed(4)
    alone = Images().to(env.device)
    model = Images().to(env.device)
    model.load_state_dict(alone.state_dict())
    ddp = wrap(env, nn.SyncBatchNorm.convert_sync_batchnorm(model))
    ours, theirs = sgd(ddp.parameters()), sgd(alone.parameters())
    ends = [sum(range(2, 2 + r)) for r in range(env.world + 1)]
    for step in range(STEPS):
        x = torch.randn(ends[-1], 3, 6, 6, generator=torch.Generator().manual_seed(step))
        x = x.to(env.device)
        part = x[ends[env.rank] : ends[env.rank + 1]]
        if step == STEPS - 1:
            part = part.contiguous(memory_format=torch.channels_last)
        # DDP averages, so sums become the whole batch's by this factor.
        (ddp(part).square().sum() * env.world).backward()
        alone(x).square().sum().backward()
        for optimizer in (ours, theirs):
            optimizer.step()
            optimizer.zero_grad()
    same_parameters(ddp.module, alone)
    assert ddp.module.norm.num_batches_tracked == STEPS
    ddp.eval()
    alone.eval()
    close(ddp(x), alone(x))


# Communication hooks


def scaled_by_python(state: list[int], bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """A hook of a user: its own collective, and two steps after it."""
    state.append(bucket.index())
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    size = dist.get_world_size()
    ended: torch.futures.Future[Tensor] = (
        work.get_future()
        .then(lambda done: done.value()[0] * (2.0 / size))
        .then(lambda done: done.value() / 2.0)
    )
    return ended


def bf16_under_another_name(
    state: dist.ProcessGroup, bucket: GradBucket
) -> torch.futures.Future[Tensor]:
    """PyTorch's hook. DDP asks for NCCL or XCCL when a hook is *called* bf16_compress_hook."""
    return default_hooks.bf16_compress_hook(state, bucket)


def hooked(env: Env, register: Any, dtype: torch.dtype = torch.float32) -> None:
    alone, model = transformer(env.device), transformer(env.device)
    ddp = wrap(env, model)
    register(ddp)
    losses = train(env, ddp, sgd(ddp.parameters()), STEPS)
    close(losses, reference(env, alone, sgd(alone.parameters()), STEPS), dtype=dtype)
    same_parameters(model, alone, dtype=dtype)


def hooks(env: Env) -> None:
    group = dist.group.WORLD
    assert group is not None
    half, brain = torch.float16, torch.bfloat16
    hooked(env, lambda ddp: ddp.register_comm_hook(group, default_hooks.allreduce_hook))
    hooked(env, lambda ddp: ddp.register_comm_hook(group, default_hooks.fp16_compress_hook), half)
    hooked(env, lambda ddp: ddp.register_comm_hook(group, bf16_under_another_name), brain)
    register_type = DDPCommHookType.ALLREDUCE
    hooked(env, lambda ddp: register_ddp_comm_hook(register_type, ddp, group))
    for kind, dtype in (("ALLREDUCE", torch.float32), ("FP16_COMPRESS", half)):
        builtin = getattr(BuiltinCommHookType, kind)
        hooked(env, lambda ddp, b=builtin: ddp._register_builtin_comm_hook(b), dtype)
    seen: list[int] = []
    hooked(env, lambda ddp: ddp.register_comm_hook(seen, scaled_by_python))
    assert len(set(seen)) > 1  # several buckets


def bf16_hook_is_refused(env: Env) -> None:
    """Says by which test PyTorch refuses its hook: the name, without looking at the backend.

    What it asks for is a build with NCCL; such a build takes it on any device, where it is right.
    """
    if dist.is_nccl_available():
        group, hook = dist.group.WORLD, default_hooks.bf16_compress_hook
        hooked(env, lambda ddp: ddp.register_comm_hook(group, hook), torch.bfloat16)
        return
    ddp = wrap(env, nn.Linear(2, 2).to(env.device))
    with pytest.raises(TypeError, match=r"required CUDA 11\+ and NCCL 2.10\+ or XPU and XCCL"):
        ddp.register_comm_hook(dist.group.WORLD, default_hooks.bf16_compress_hook)
    ddp.register_comm_hook(dist.group.WORLD, bf16_under_another_name)


def low_rank(env: Env) -> None:
    """PowerSGD gives equal parameters everywhere and trains; before its start it is exact.

    Each rank multiplies its gradients out of the reduced factors by itself, so that parameters are
    equal only if ranks multiply equal numbers to equal bits (test_same_products.py).

    PyTorch 2.13's batched hook works before its start only, on any device: it hands matrices of two
    dimensions to `_orthogonalize`, which asserts three.
    """
    for hook in (powerSGD_hook.powerSGD_hook, powerSGD_hook.batched_powerSGD_hook):
        late = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=100)
        hooked(env, lambda ddp, s=late, h=hook: ddp.register_comm_hook(s, h))
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=1
    )
    model = transformer(env.device)
    ddp = wrap(env, model)
    ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    losses = train(env, ddp, torch.optim.SGD(ddp.parameters(), lr=0.1), 12)
    assert losses[-1] < losses[0]
    for parameter in model.parameters():
        first = parameter.detach().clone()
        dist.broadcast(first, 0)
        assert torch.equal(first, parameter)
    ddp = wrap(env, transformer(env.device))
    wrapped = default_hooks.fp16_compress_wrapper(powerSGD_hook.powerSGD_hook)
    ddp.register_comm_hook(powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2), wrapped)
    train(env, ddp, sgd(ddp.parameters()), 4)


def quantised(env: Env) -> None:
    """PyTorch's hooks of 8 bits: all ranks have the same parameters, and training goes on."""
    for hook in (
        quantization_hooks.quantization_pertensor_hook,
        quantization_hooks.quantization_perchannel_hook,
    ):
        model = transformer(env.device)
        ddp = wrap(env, model)
        ddp.register_comm_hook(None, hook)
        losses = train(env, ddp, torch.optim.SGD(ddp.parameters(), lr=0.1), 8)
        assert losses[-1] < losses[0]
        for parameter in model.parameters():
            first = parameter.detach().clone()
            dist.broadcast(first, 0)
            assert torch.equal(first, parameter)


def post_local_sgd(env: Env) -> None:
    """Two steps with reduced gradients, then local ones then the models' mean every second."""
    # Imported late, see zero().
    from torch.distributed.algorithms.model_averaging.averagers import (  # noqa: PLC0415
        PeriodicModelAverager,
    )
    from torch.distributed.optim import PostLocalSGDOptimizer  # noqa: PLC0415

    starts = 2
    alone = [transformer(env.device) for _ in range(env.world)]
    model = transformer(env.device)
    ddp = wrap(env, model)
    state = PostLocalSGDState(
        process_group=None, subgroup=dist.new_group([env.rank], use_local_synchronization=True),
        start_localSGD_iter=starts, post_local_gradient_allreduce=False,
    )  # fmt: skip
    ddp.register_comm_hook(state, post_localSGD_hook)
    averager = PeriodicModelAverager(period=2, warmup_steps=starts)
    ours = PostLocalSGDOptimizer(torch.optim.SGD(ddp.parameters(), lr=0.1), averager)
    steps = 6
    train(env, ddp, ours, steps)
    parameters = [list(m.parameters()) for m in alone]
    for step in range(steps):
        data = batch(step, env.device)
        for rank, m in enumerate(alone):
            tokens, targets = (t.tensor_split(env.world)[rank] for t in (data.tokens, data.targets))
            loss_of(m(tokens), targets).backward()
        with torch.no_grad():
            for group in zip(*parameters, strict=True):
                grads = torch.stack([p.grad for p in group if p.grad is not None])
                for p, g in zip(group, grads, strict=True):
                    p.sub_(0.1 * (grads.mean(0) if step < starts else g))
                    p.grad = None
                if step >= starts and (step - starts) % 2 == 0:
                    mean = torch.stack(list(group)).mean(0)
                    for p in group:
                        p.copy_(mean)
    same_parameters(model, alone[env.rank])


# Sharded optimizers


def zero(parameters: Iterable[Tensor], kind: type[Optimizer], **options: Any) -> Any:
    """Import late: the package scripts functions, which PyTorch itself warns of."""
    from torch.distributed.optim import ZeroRedundancyOptimizer  # noqa: PLC0415

    return ZeroRedundancyOptimizer(parameters, kind, **options)


def zero_optimizer(env: Env) -> None:
    for as_bucket in (False, True):
        alone, model = transformer(env.device), transformer(env.device)
        ddp = wrap(env, model)
        ours = zero(
            ddp.parameters(), torch.optim.AdamW, lr=0.01, eps=1e-3,
            parameters_as_bucket_view=as_bucket,
        )  # fmt: skip
        theirs = torch.optim.AdamW(alone.parameters(), lr=0.01, eps=1e-3)
        losses = train(env, ddp, ours, STEPS)
        close(losses, reference(env, alone, theirs, STEPS))
        same_parameters(model, alone)
        mine = sum(len(g["params"]) for g in ours.optim.param_groups)
        assert 0 < mine < len(list(model.parameters()))
        ours.consolidate_state_dict(to=0)
        if env.rank == 0:
            state, expected = ours.state_dict()["state"], theirs.state_dict()["state"]
            assert state.keys() == expected.keys()
            for key, values in expected.items():
                close(state[key]["exp_avg"].to(env.device), values["exp_avg"])


def zero_join(env: Env) -> None:
    """DDP and ZeRO together with uneven inputs end with equal parameters."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)).to(env.device)
    ddp = wrap(env, model)
    ours = zero(ddp.parameters(), torch.optim.SGD, lr=0.1)
    with Join([ddp, ours]):
        for _ in range(2 + env.rank):
            ddp(torch.randn(3, 4).to(env.device)).square().sum().backward()
            ours.step()
            ours.zero_grad()
    for p in model.parameters():
        first = p.detach().clone()
        dist.broadcast(first, 0)
        assert torch.equal(first, p)


def bfloat16_model(env: Env) -> None:
    """Gradients of another dtype, and parameters of two: buckets of one dtype each."""
    torch.manual_seed(6)
    alone = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8).to(torch.bfloat16)).to(env.device)
    torch.manual_seed(6)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8).to(torch.bfloat16)).to(env.device)
    ddp = wrap(env, model)
    x = torch.randn(4 * env.world, 8).to(env.device)

    def loss(m: nn.Sequential | DistributedDataParallel, x: Tensor) -> Tensor:
        first, second = m.module if isinstance(m, DistributedDataParallel) else m
        del first, second
        with torch.autocast(env.device.type, dtype=torch.bfloat16):
            y: Tensor = m(x).float().square().mean()
        return y

    mine = loss(ddp, env.rows(x))
    mine.backward()
    whole = loss(alone, x)
    whole.backward()
    close(losses_of(mine, env), whole.detach(), dtype=torch.bfloat16)
    for p, q in zip(model.parameters(), alone.parameters(), strict=True):
        assert p.grad is not None
        assert q.grad is not None
        assert p.grad.dtype == p.dtype
        close(p.grad, q.grad, dtype=torch.bfloat16)


CHECKS = (
    plain, starts_from_rank_zero, no_sync, unused_parameters, join, sync_batch_norm, hooks,
    bf16_hook_is_refused, post_local_sgd, zero_optimizer, zero_join, bfloat16_model,
)  # fmt: skip


@pytest.mark.parametrize("world", [2, 4])
def test_ddp(world: int) -> None:
    run_checks(world, (*CHECKS, low_rank, quantised) if world == 2 else CHECKS)
