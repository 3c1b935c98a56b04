"""DTensor: placements, operators, random numbers; tensor, sequence and context parallelism."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
    empty,
    full,
    ones,
    rand,
    randn,
    zeros,
)
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import (
    context_parallel_unshard,
    set_rotate_method,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.distributed.clients import (
    LENGTH,
    Check,
    Env,
    Transformer,
    batch,
    close,
    loss_of,
    reference,
    run_checks,
    same_parameters,
    sgd,
    transformer,
)

STEPS = 3


def line(env: Env) -> DeviceMesh:
    return init_device_mesh(env.device.type, (env.world,))


def plane(env: Env) -> DeviceMesh:
    return init_device_mesh(env.device.type, (2, env.world // 2), mesh_dim_names=("dp", "tp"))


def numbers(env: Env, *shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(env.device)


# Placements


def redistribute(env: Env) -> None:
    """Every pair of placements, on sizes that the ranks don't divide; the whole stays the same.

    Only sums that are not yet made can't be asked for, which DTensor refuses.
    """
    mesh = line(env)
    places: list[Placement] = [Replicate(), Shard(0), Shard(1), Shard(2)]
    for shape in ((7, 4, 5), (1, 3, 8)):
        whole = numbers(env, *shape)
        for before, after in itertools.product([*places, Partial()], places):
            start: DTensor
            if before == Partial():
                parts = numbers(env, env.world, *shape)
                start = DTensor.from_local(parts[env.rank], mesh, [before])
                expected = parts.sum(0)
            else:
                start, expected = distribute_tensor(whole, mesh, [before]), whole
            moved = start.redistribute(mesh, [after])
            assert moved.placements == (after,)
            close(moved.full_tensor(), expected)
            if isinstance(after, Shard):
                mine = expected.tensor_split(
                    [-(-shape[after.dim] // env.world) * r for r in range(1, env.world)], after.dim
                )[env.rank]
                close(moved.to_local(), mine)
    averaged = DTensor.from_local(numbers(env, 3, seed=env.rank), mesh, [Partial("avg")])
    close(
        averaged.full_tensor(),
        torch.stack([numbers(env, 3, seed=r) for r in range(env.world)]).mean(0),
    )
    largest = DTensor.from_local(numbers(env, 3, seed=env.rank), mesh, [Partial("max")])
    close(
        largest.full_tensor(),
        torch.stack([numbers(env, 3, seed=r) for r in range(env.world)]).amax(0),
    )


def redistribute_plane(env: Env) -> None:
    """Two dimensions of the mesh, some splitting one dimension of the tensor twice."""
    mesh = plane(env)
    whole = numbers(env, 6, 5)
    places: list[Placement] = [Replicate(), Shard(0), Shard(1)]
    pairs = list(itertools.product(places, places))
    for before, after in itertools.product(pairs, pairs):
        moved = distribute_tensor(whole, mesh, before).redistribute(mesh, after)
        close(moved.full_tensor(), whole)


def gradients(env: Env) -> None:
    """Through redistribute, full_tensor and to_local, each with its own rule."""
    mesh = line(env)
    whole = numbers(env, 6, 4)
    w = numbers(env, 4, 6, seed=1)
    mine = distribute_tensor(whole, mesh, [Shard(0)]).to_local().clone().requires_grad_()
    start = DTensor.from_local(mine, mesh, [Shard(0)], shape=whole.shape, stride=whole.stride())
    doubled = start.redistribute(mesh, [Shard(1)]) * 2
    assert isinstance(doubled, DTensor)
    y = doubled.redistribute(mesh, [Replicate()])
    (y.to_local() @ w).square().sum().backward()
    alone = whole.clone().requires_grad_()
    (alone * 2 @ w).square().sum().backward()
    assert mine.grad is not None
    assert alone.grad is not None
    close(mine.grad, distribute_tensor(alone.grad, mesh, [Shard(0)]).to_local())
    leaf = distribute_tensor(whole, mesh, [Shard(1)])
    leaf.requires_grad_()
    (leaf.full_tensor() @ w).square().sum().backward()
    assert isinstance(leaf.grad, DTensor)
    close(leaf.grad.full_tensor() * 4, alone.grad)


# Operators


def operators(env: Env) -> None:
    """Operators of models under several placements of their operands, forward and backward."""
    mesh = line(env)

    def agree(fn: Any, *tensors: tuple[Tensor, Placement]) -> None:
        ours = [distribute_tensor(t, mesh, [p]).requires_grad_() for t, p in tensors]
        theirs = [t.clone().requires_grad_() for t, _ in tensors]
        got, want = fn(*ours), fn(*theirs)
        close(got.full_tensor().detach(), want.detach())
        got.square().sum().backward()
        want.square().sum().backward()
        for a, b in zip(ours, theirs, strict=True):
            assert isinstance(a.grad, DTensor)
            assert b.grad is not None
            close(a.grad.full_tensor(), b.grad)

    r, s0, s1 = Replicate(), Shard(0), Shard(1)
    x, w, b = numbers(env, 6, 8), numbers(env, 8, 10, seed=1), numbers(env, 8, seed=2)
    parts = numbers(env, 12, 8)
    for left, right in ((s0, r), (r, s1), (s1, s0), (s0, s1), (r, s0)):
        agree(torch.matmul, (x, left), (w, right))
    for place in (r, s0, s1):
        agree(lambda t: functional.softmax(t, -1), (x, place))
        agree(lambda t: functional.log_softmax(t, 0), (x, place))
        agree(lambda t, g: functional.layer_norm(t, (8,), g), (x, place), (b, r))
        if place != s1:  # there DTensor refuses an addition in place
            agree(lambda t, g: functional.rms_norm(t, (8,), g), (x, place), (b, r))
        agree(lambda t: functional.gelu(t).sum(0), (x, place))
        # DTensor takes a sharded dimension apart only where every rank gets whole parts.
        agree(lambda t: t.view(4, 3, 8).transpose(0, 1).contiguous().mean(-1), (parts, place))
        agree(lambda t: torch.cat([t, t * 2], 1), (x, place))
        agree(lambda t, u: t * torch.sigmoid(u), (x, place), (x + 1, r))
        agree(lambda t: t.var(1), (x, place))
    queries = numbers(env, 2, 4, 6, 8, seed=3)
    for place in (r, s0, s1):
        agree(
            lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
            *((queries + i, place) for i in range(3)),
        )
    tokens = torch.randint(10, (3, 4), generator=torch.Generator().manual_seed(0)).to(env.device)
    for table, ids in ((r, s0), (s0, r), (s1, r)):
        weight = distribute_tensor(w.t().contiguous(), mesh, [table]).requires_grad_()
        where = distribute_tensor(tokens, mesh, [ids])
        got = functional.embedding(where, weight)
        assert isinstance(got, DTensor)
        close(got.full_tensor().detach(), functional.embedding(tokens, w.t()))
    ordered = distribute_tensor(tokens, mesh, [s0]).sort(1).values
    assert isinstance(ordered, DTensor)
    assert torch.equal(ordered.full_tensor(), tokens.sort(1).values)
    assert distribute_tensor(x, mesh, [s0]).norm().full_tensor().sub(x.norm()).abs() < 1e-5


def random_numbers(env: Env) -> None:
    """One seed for the mesh: replicas are equal, shards differ, the same seed gives the same."""
    mesh = line(env)
    torch.manual_seed(3)
    drawn = randn(16, 64, device_mesh=mesh, placements=[Shard(0)]).full_tensor()
    same = rand(5, device_mesh=mesh, placements=[Replicate()]).to_local()
    gathered = [torch.empty_like(same) for _ in range(env.world)]
    dist.all_gather(gathered, same)
    assert all(torch.equal(g, same) for g in gathered)
    assert len(drawn.unique()) == drawn.numel()
    torch.manual_seed(3)
    again = randn(16, 64, device_mesh=mesh, placements=[Shard(0)]).full_tensor()
    assert torch.equal(drawn, again)
    dropped = functional.dropout(ones(64, 8, device_mesh=mesh, placements=[Shard(0)]), 0.5)
    assert isinstance(dropped, DTensor)
    masks = dropped.full_tensor().chunk(env.world)
    assert not torch.equal(masks[0], masks[-1])
    weight = empty(8, 4, device_mesh=mesh, placements=[Shard(1)])
    nn.init.kaiming_uniform_(weight)
    nn.init.normal_(weight, std=0.02)
    assert weight.full_tensor().std() > 0.01
    for factory in (zeros, ones):
        assert factory(3, 5, device_mesh=mesh, placements=[Shard(1)]).full_tensor().shape == (3, 5)
    filled = full((3, 5), 2.5, device_mesh=mesh, placements=[Shard(0)])
    assert filled.full_tensor().eq(2.5).all()


def clip_and_step(
    models: tuple[nn.Module, nn.Module],
    largest: float,
    optimizers: tuple[torch.optim.Optimizer, torch.optim.Optimizer],
) -> None:
    """Step of a divided model and of a whole one; the norms that are clipped are the same."""
    ours, theirs = (nn.utils.clip_grad_norm_(m.parameters(), largest) for m in models)
    assert isinstance(ours, DTensor)
    close(ours.full_tensor(), theirs)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def draws(mesh: DeviceMesh, length: int, places: list[Placement]) -> dict[str, DTensor]:
    """A tensor of `length` numbers of each operator that DTensor calls random, but no others.

    nn.init.trunc_normal_ is none: it draws again where a rank's own numbers ask for it, so that the
    generators of sharded tensors go apart, on every device.
    """
    where: Any = {"device_mesh": mesh, "placements": places}
    found: dict[str, Any] = {}
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        kind = str(dtype).removeprefix("torch.")
        found[f"rand {kind}"] = rand(length, dtype=dtype, **where)
        found[f"randn {kind}"] = randn(length, dtype=dtype, **where)
        found[f"normal {kind}"] = nn.init.normal_(empty(length, dtype=dtype, **where))
        found[f"dropout {kind}"] = functional.dropout(ones(length, dtype=dtype, **where), 0.5)
    found["randint"] = torch.randint_like(zeros(length, dtype=torch.int64, **where), 1 << 62)
    found["bernoulli"] = torch.bernoulli(full((length,), 0.5, **where))
    found["kaiming"] = nn.init.kaiming_uniform_(empty(length, 1, **where))
    return found


def random_shards(env: Env) -> None:
    """Shards of any size and type are independent, and all ranks' generators go on alike."""
    mesh = line(env)
    for size in (4, 5, 33, 66):
        torch.manual_seed(size)
        drawn = draws(mesh, size * env.world, [Shard(0)])
        state = torch.get_device_module(env.device).get_rng_state().to(env.device)
        states = [torch.empty_like(state) for _ in range(env.world)]
        dist.all_gather(states, state)
        assert all(torch.equal(s, state) for s in states)
        for name, found in drawn.items():
            shards = found.full_tensor().flatten().reshape(env.world, size)
            if not name.endswith("bfloat16") and not name.startswith(("dropout", "bernoulli")):
                assert len(shards.unique()) == shards.numel(), (name, size)
            elif size >= 33:
                assert len(shards.unique(dim=0)) == env.world, (name, size)
        torch.manual_seed(size)
        for name, again in draws(mesh, size * env.world, [Shard(0)]).items():
            assert torch.equal(again.full_tensor(), drawn[name].full_tensor()), (name, size)
    length = 5000
    values = randn(length * env.world, device_mesh=mesh, placements=[Shard(0)]).full_tensor()
    together = values.reshape(env.world, length).corrcoef().fill_diagonal_(0)
    assert together.abs().max() < 5 / length**0.5
    # A rank of the other dimension holds the same shard.
    for found in draws(plane(env), 20, [Shard(0), Replicate()]).values():
        local = found.to_local()
        copies = [torch.empty_like(local) for _ in range(env.world)]
        dist.all_gather(copies, local)
        row = env.world // 2
        mine = env.rank // row * row
        assert all(torch.equal(copy, local) for copy in copies[mine : mine + row])


def modules(env: Env) -> None:
    """distribute_module, an optimizer over DTensors, clipping their norm."""
    mesh = line(env)
    torch.manual_seed(4)
    alone = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).to(env.device)
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).to(env.device)

    def split(_: str, module: nn.Module, mesh: DeviceMesh) -> None:
        for name, p in list(module.named_parameters(recurse=False)):
            module.register_parameter(
                name, nn.Parameter(distribute_tensor(p.detach(), mesh, [Shard(0)]))
            )

    distribute_module(model, mesh, split)
    x = numbers(env, 5, 8)
    for kind in (torch.optim.AdamW, torch.optim.Adagrad):
        ours, theirs = (kind(m.parameters(), lr=0.01, eps=1e-3) for m in (model, alone))
        for _ in range(STEPS):
            model(distribute_tensor(x, mesh, [Replicate()])).square().sum().backward()
            alone(x).square().sum().backward()
            clip_and_step((model, alone), 0.5, (ours, theirs))
        same_parameters(model, alone)


# Tensor and sequence parallelism


def heads_split(model: Transformer, mesh: DeviceMesh, *, sequence: bool, loss: bool) -> None:
    """The usual plan of a transformer, with sharded activations between layers or without."""
    between = Shard(1) if sequence else Replicate()
    parallelize_module(
        model,
        mesh,
        {
            "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
            "norm": SequenceParallel()
            if sequence
            else PrepareModuleInput(
                input_layouts=Replicate(), desired_input_layouts=Replicate(), use_local_output=True
            ),
            "head": ColwiseParallel(
                input_layouts=between,
                output_layouts=Shard(-1) if loss else Replicate(),
                use_local_output=not loss,
            ),
        },
    )
    for layer in model.layers:
        split = ColwiseParallel(input_layouts=between) if not sequence else ColwiseParallel()
        plan: dict[str, Any] = {
            "query": split, "key": split, "value": split, "up": split,
            "out": RowwiseParallel(output_layouts=between),
            "down": RowwiseParallel(output_layouts=between),
        }  # fmt: skip
        if sequence:
            plan |= {"norm1": SequenceParallel(), "norm2": SequenceParallel()}
        parallelize_module(layer, mesh, plan)


def tensor_parallel(env: Env) -> None:
    """Every rank has all rows and some of the heads; losses equal those of one process."""
    mesh = line(env)
    for sequence, loss in itertools.product((False, True), (False, True)):
        alone, model = transformer(env.device), transformer(env.device)
        heads_split(model, mesh, sequence=sequence, loss=loss)
        # Norms that are not split stay tensors; a list of both kinds is refused by DTensor.
        ours = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
        theirs = sgd(alone.parameters())
        want = reference(env, alone, theirs, STEPS)
        for step in range(STEPS):
            data = batch(step, env.device)
            if loss:
                with loss_parallel():
                    value = functional.cross_entropy(
                        model(data.tokens).flatten(0, 1), data.targets.flatten()
                    )
                    value.backward()
                value = value.full_tensor()  # type: ignore[attr-defined]
            else:
                value = loss_of(model(data.tokens), data.targets)
                value.backward()
            close(value.detach(), want[step])
            ours.step()
            ours.zero_grad()
        same_parameters(model, alone)


def prepared_modules(env: Env) -> None:
    """PrepareModuleInput, -Output and -InputOutput around a module of one's own."""
    mesh = line(env)

    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    x = numbers(env, 4 * env.world, 3)
    mine = x.chunk(env.world)[env.rank]
    into = parallelize_module(
        Twice(),
        mesh,
        PrepareModuleInput(input_layouts=Shard(0), desired_input_layouts=Replicate()),
    )
    close(into(mine).to_local(), x * 2)
    out = parallelize_module(
        Twice(),
        mesh,
        PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(0)),
    )
    close(out(distribute_tensor(x, mesh, [Replicate()])), mine * 2)
    both = parallelize_module(
        Twice(),
        mesh,
        PrepareModuleInputOutput(
            input_layouts=Shard(0), desired_input_layouts=Replicate(),
            output_layouts=Replicate(), desired_output_layouts=Shard(0),
        ),
    )  # fmt: skip
    close(both(mine), mine * 2)


def sharded_both_ways(env: Env) -> None:
    """FSDP2 over one dimension of the mesh, tensor parallelism over the other."""
    mesh = plane(env)
    alone, model = transformer(env.device), transformer(env.device)
    heads_split(model, mesh["tp"], sequence=True, loss=False)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    here = Env(mesh["dp"].get_local_rank(), 2, env.device)
    ours, theirs = sgd(model.parameters()), sgd(alone.parameters())
    for step in range(STEPS):
        data = batch(step, env.device)
        loss_of(model(here.rows(data.tokens)), here.rows(data.targets)).backward()
        loss_of(alone(data.tokens), data.targets).backward()
        clip_and_step((model, alone), 0.1, (ours, theirs))
    same_parameters(model, alone)


# Context parallelism


def ring_attention(env: Env) -> None:
    """Sequences are split over the ranks; attention goes around the ring of keys."""
    if env.cpu:  # the ring's steps exist for accelerators only
        return
    mesh = line(env)
    shape = (2, 4, 4 * env.world, 8)
    for method, causal in itertools.product(("allgather", "alltoall"), (True, False)):
        set_rotate_method(method)
        torch.distributed.tensor.experimental._attention._cp_options.enable_load_balance = causal
        alone = [numbers(env, *shape, seed=i).requires_grad_() for i in range(3)]
        weight = numbers(env, *shape, seed=9)
        q, k, v = alone
        want = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        (want * weight).sum().backward()
        parts = [t.detach().clone() for t in alone]
        scale = weight.clone()
        with context_parallel(mesh, buffers=[*parts, scale], buffer_seq_dims=[2] * 4):
            for t in parts:
                t.requires_grad_()
            q, k, v = parts
            got = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
            assert got.shape[2] == shape[2] // env.world
            (got * scale).sum().backward()
            grads = [t.grad for t in parts if t.grad is not None]
            for t in parts:
                # PyTorch's stub calls the parameter `mode`.
                t.requires_grad_(requires_grad=False)  # type: ignore[call-arg]
            whole = context_parallel_unshard(mesh, [got.detach(), *grads], [2] * 4)
        close(whole[0], want.detach())
        for g, t in zip(whole[1:], alone, strict=True):
            assert t.grad is not None
            close(g, t.grad)
    set_rotate_method("allgather")
    torch.distributed.tensor.experimental._attention._cp_options.enable_load_balance = True


def ring_training(env: Env) -> None:
    """A transformer whose tokens are split: gradients of all parts make the whole's."""
    if env.cpu:
        return
    mesh = line(env)
    alone, model = transformer(env.device), transformer(env.device)
    fully_shard(model, mesh=mesh)
    ours, theirs = sgd(model.parameters()), sgd(alone.parameters())
    for step in range(STEPS):
        data = batch(step, env.device)
        loss_of(alone(data.tokens), data.targets).backward()
        tokens, targets = data.tokens.clone(), data.targets.clone()
        with (
            sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]),
            context_parallel(mesh, buffers=[tokens, targets], buffer_seq_dims=[1, 1]),
        ):
            assert tokens.shape[1] == LENGTH // env.world
            loss_of(model(tokens), targets).backward()
        for optimizer in (ours, theirs):
            optimizer.step()
            optimizer.zero_grad()
    same_parameters(model, alone)


CHECKS = (
    redistribute, redistribute_plane, gradients, operators, random_numbers, random_shards, modules,
    tensor_parallel, prepared_modules, sharded_both_ways, ring_attention, ring_training,
)  # fmt: skip


# What four ranks have that two have not: meshes of two dimensions, several shards that differ in
# size, a ring in which not everybody is everybody's neighbour.
OF_FOUR = (redistribute, redistribute_plane, random_shards, sharded_both_ways, ring_attention)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "checks"),
    [
        pytest.param(2, CHECKS, id="2"),
        pytest.param(4, OF_FOUR, id="4"),
        # What they do with one dimension of even shards is that of two.
        pytest.param(4, CHECKS, id="4-all", marks=pytest.mark.exhaustive),
    ],
)
def test_dtensor(world: int, checks: Sequence[Check]) -> None:
    run_checks(world, checks)
