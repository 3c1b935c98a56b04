"""Groups, meshes, objects, autograd through collectives, point to point, all-to-all of tokens."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import _functional_collectives as functional_collectives
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn import functional

from tests.distributed.clients import Env, bound, close, run_checks


def numbers(env: Env, *shape: int, rank: int | None = None, dtype: Any = None) -> Tensor:
    """Different for each rank, the same wherever they are computed."""
    generator = torch.Generator().manual_seed(1000 + (env.rank if rank is None else rank))
    return torch.randn(shape, generator=generator).to(env.device, dtype or torch.float32)


def objects(env: Env) -> None:
    mine = {"rank": env.rank, "text": "x" * (10 * env.rank), "tensor": torch.arange(env.rank)}
    everyone: list[Any] = [None] * env.world
    dist.all_gather_object(everyone, mine)
    assert [o["rank"] for o in everyone] == list(range(env.world))
    assert [len(o["tensor"]) for o in everyone] == list(range(env.world))
    gathered: list[Any] | None = [None] * env.world if env.rank == 1 else None
    dist.gather_object(mine, gathered, dst=1)
    assert gathered is None or [len(o["text"]) for o in gathered] == [
        10 * r for r in range(env.world)
    ]
    sent = [("root", 0), {1, 2}] if env.rank == 0 else [None, None]
    dist.broadcast_object_list(sent, src=0)
    assert sent == [("root", 0), {1, 2}]
    got: list[Any] = [None]
    dist.scatter_object_list(got, [f"for {r}" for r in range(env.world)], src=0)
    assert got == [f"for {env.rank}"]
    if env.rank == 0:
        dist.send_object_list([1, "two", 3.0], dst=1)
    elif env.rank == 1:
        received: list[Any] = [None] * 3
        dist.recv_object_list(received, src=0)
        assert received == [1, "two", 3.0]


def autograd_collectives(env: Env) -> None:
    """torch.distributed.nn.functional: values, and gradients against one process."""
    import torch.distributed.nn.functional as dnn  # noqa: PLC0415  # warns on import

    def parts() -> list[Tensor]:
        return [numbers(env, 2 * env.world, 3, rank=r).requires_grad_() for r in range(env.world)]

    weights = [numbers(env, 2 * env.world, 3, rank=50 + r) for r in range(env.world)]

    def agree(ours: Tensor, losses: list[Tensor], got: Tensor, want: list[Tensor]) -> None:
        """Gradients of the sum of all ranks' losses."""
        sum(losses, torch.zeros((), device=env.device)).backward()
        ours.backward()
        close(ours.detach(), losses[env.rank].detach())
        assert got.grad is not None
        grad = want[env.rank].grad
        assert grad is not None
        close(got.grad, grad)

    mine, w = parts()[env.rank], weights[env.rank]
    alone = parts()
    total = torch.stack(alone).sum(0)
    agree((dnn.all_reduce(mine) * w).sum(), [(total * v).sum() for v in weights], mine, alone)

    mine, alone = parts()[env.rank], parts()
    got = torch.stack(dnn.all_gather(mine))
    agree(
        (got.square() * w).sum(),
        [(torch.stack(alone).square() * v).sum() for v in weights],
        mine, alone,
    )  # fmt: skip

    mine, alone = parts()[env.rank], parts()
    received = dnn.all_to_all_single(torch.empty_like(mine), mine)
    exchanged = [torch.cat([p.chunk(env.world)[r] for p in alone]) for r in range(env.world)]
    agree(
        (received * w).sum(),
        [(e * v).sum() for e, v in zip(exchanged, weights, strict=True)],
        mine, alone,
    )  # fmt: skip

    mine, alone = parts()[env.rank], parts()
    piece = dnn.reduce_scatter(torch.empty_like(mine[:2]), list(mine.chunk(env.world)))
    scattered = torch.stack(alone).sum(0).chunk(env.world)
    agree(
        (piece * w[:2]).sum(),
        [(s * v[:2]).sum() for s, v in zip(scattered, weights, strict=True)],
        mine, alone,
    )  # fmt: skip

    mine, alone = parts()[env.rank], parts()
    agree(
        (dnn.broadcast(mine, 0) * w).sum(),
        [(alone[0] * v).sum() + 0 * alone[r].sum() for r, v in enumerate(weights)],
        mine, alone,
    )  # fmt: skip


def functional_forms(env: Env) -> None:
    """What DTensor and the compiler call: results are waited for by their first use."""
    group = dist.group.WORLD
    assert group is not None
    every = [numbers(env, env.world, 3, rank=r) for r in range(env.world)]
    mine = every[env.rank]
    close(functional_collectives.all_reduce(mine, "sum", group) + 0, torch.stack(every).sum(0))
    close(functional_collectives.all_reduce(mine, "avg", group) + 0, torch.stack(every).mean(0))
    gathered = functional_collectives.all_gather_single(mine, 1, group)
    close(gathered + 0, torch.cat(every, 1))
    piece = functional_collectives.reduce_scatter_single(mine, "sum", 0, group)
    close(piece + 0, torch.stack(every).sum(0)[env.rank : env.rank + 1])
    turned = functional_collectives.permute_tensor(mine.flatten(), [*range(1, env.world), 0], group)
    close(turned + 0, every[(env.rank - 1) % env.world].flatten())
    both = functional_collectives.all_reduce_coalesced([mine, mine * 2], "sum", group)
    close(both[1] + 0, torch.stack(every).sum(0) * 2)
    outs = functional_collectives.all_gather_single_coalesced([mine, mine[:1]], group)
    close(outs[1] + 0, torch.cat([e[:1] for e in every]))
    parts = functional_collectives.reduce_scatter_single_coalesced([mine], "sum", [0], group)
    close(parts[0] + 0, torch.stack(every).sum(0)[env.rank : env.rank + 1])


def point_to_point(env: Env) -> None:
    """A ring in one batch, several sizes and dtypes, with tags and without."""
    right, left = (env.rank + 1) % env.world, (env.rank - 1) % env.world
    for dtype, size in ((torch.float32, 5), (torch.bfloat16, 70000), (torch.int64, 1)):
        send = (numbers(env, size) * 8).to(dtype)
        expected = (numbers(env, size, rank=left) * 8).to(dtype)
        receive = torch.empty_like(send)
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, send, right),
                dist.P2POp(dist.irecv, receive, left),
            ]
        )
        for work in works:
            work.wait()
        assert torch.equal(receive, expected)
    back_and_forth = numbers(env, 4)
    if env.rank == 0:
        dist.send(back_and_forth, 1)
        dist.recv(back_and_forth, 1)
        close(back_and_forth, numbers(env, 4) * 2)
    elif env.rank == 1:
        assert dist.recv(back_and_forth) == 0  # from anybody
        dist.send(back_and_forth * 2, 0)


class Experts(nn.Module):
    """Tokens go to the rank of their expert and come back: both ways by uneven all_to_all."""

    def __init__(self, env: Env, per_rank: int = 2) -> None:
        super().__init__()
        self.env, self.per_rank, self.count = env, per_rank, per_rank * env.world
        torch.manual_seed(11)
        self.gate = nn.Linear(6, self.count)
        every = [nn.Linear(6, 6) for _ in range(self.count)]
        self.mine = nn.ModuleList(every[env.rank * per_rank : (env.rank + 1) * per_rank])
        self.every = nn.ModuleList(every)  # for the reference only

    def exchange(self, x: Tensor, out: list[int], into: list[int]) -> Tensor:
        group = dist.group.WORLD
        assert group is not None
        y: Tensor = functional_collectives.all_to_all_single_autograd(x, into, out, group)
        return y

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weight, expert = functional.softmax(self.gate(x), -1).max(-1)
        return weight, expert

    def forward(self, x: Tensor) -> Tensor:
        weight, expert = self.route(x)
        order = expert.argsort(stable=True)
        counts = torch.bincount(expert, minlength=self.count)
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts)
        table = arriving.view(self.env.world, self.per_rank)
        into = table.sum(1).tolist()
        out = counts.view(self.env.world, self.per_rank).sum(1).tolist()
        tokens = self.exchange(x[order], out, into)
        local = torch.arange(self.per_rank, device=x.device).repeat(self.env.world)
        which = local.repeat_interleave(table.flatten())
        done = torch.zeros_like(tokens)
        for i, layer in enumerate(self.mine):
            rows = (which == i).nonzero().flatten()
            done = done.index_add(0, rows, layer(tokens[rows]))
        returned = self.exchange(done, into, out)
        return torch.zeros_like(x).index_add(0, order, returned) * weight.unsqueeze(-1)

    def alone(self, x: Tensor) -> Tensor:
        weight, expert = self.route(x)
        results = torch.stack([layer(x) for layer in self.every], 1)
        rows = torch.arange(len(x), device=x.device)
        return results[rows, expert] * weight.unsqueeze(-1)


def experts(env: Env) -> None:
    """Mixture of experts: outputs, and gradients of inputs and of the experts."""
    model = Experts(env).to(env.device)
    x = numbers(env, 13 + env.rank, 6)
    if env.rank == 0:
        x = x[:0]  # a rank without tokens
    ours, theirs = (x.clone().requires_grad_() for _ in range(2))
    got, want = model(ours), model.alone(theirs)
    close(got.detach(), want.detach())
    got.square().sum().backward()
    mine = [p.grad for p in model.mine.parameters()]
    model.every.zero_grad()
    want.square().sum().backward()
    assert ours.grad is not None
    assert theirs.grad is not None
    close(ours.grad, theirs.grad)
    # An expert's gradient comes from all ranks' tokens.
    totals = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.every.parameters()]
    for total in totals:
        dist.all_reduce(total)
    per_rank = len(mine)
    for grad, total in zip(
        mine, totals[env.rank * per_rank : (env.rank + 1) * per_rank], strict=True
    ):
        if grad is not None:
            close(grad, total)


def meshes(env: Env) -> None:
    kind = env.device.type
    flat = init_device_mesh(kind, (env.world,))
    assert flat.get_local_rank() == env.rank
    assert flat.get_group() is not None
    named = init_device_mesh(kind, (2, env.world // 2), mesh_dim_names=("dp", "tp"))
    assert named.mesh.tolist() == torch.arange(env.world).view(2, -1).tolist()
    ones = torch.ones(1, device=env.device)
    for name, size in (("dp", 2), ("tp", env.world // 2)):
        part = named[name]
        assert part.size() == size
        total = ones.clone()
        dist.all_reduce(total, group=part.get_group())
        assert total.item() == size
    joined = named["dp", "tp"]._flatten("all")
    total = ones.clone()
    dist.all_reduce(total, group=joined.get_group())
    assert total.item() == env.world
    deep = init_device_mesh(kind, (1, 2, env.world // 2), mesh_dim_names=("pp", "dp", "tp"))
    assert deep["pp", "tp"].shape == (1, env.world // 2)
    assert list(deep.get_coordinate() or ()) == [
        0,
        env.rank // (env.world // 2),
        env.rank % (env.world // 2),
    ]
    world = dist.group.WORLD
    assert world is not None
    from_group = DeviceMesh.from_group(world, kind)
    assert from_group.mesh.tolist() == list(range(env.world))
    rows = named.mesh[:, 0].tolist()
    sub = DeviceMesh(kind, rows)
    assert (sub.get_coordinate() is not None) == (env.rank in rows)


def new_groups(env: Env) -> None:
    """Subgroups by ranks, by enumeration, in another order of creation, and what is not in one."""
    half = list(range(0, env.world, 2))
    group = dist.new_group(half, timeout=timedelta(seconds=30))
    total = torch.full((3,), float(env.rank), device=env.device)
    if env.rank in half:
        assert group is not None
        dist.all_reduce(total, group=group)
        assert total.tolist() == [float(sum(half))] * 3
        assert dist.get_group_rank(group, env.rank) == half.index(env.rank)
    else:
        assert group == dist.GroupMember.NON_GROUP_MEMBER
    mine, groups = dist.new_subgroups(group_size=2)
    assert len(groups) == env.world // 2
    assert dist.get_world_size(mine) == 2
    pair = torch.tensor([env.rank], device=env.device)
    dist.broadcast(pair, group=mine, group_src=1)
    assert pair.item() == env.rank // 2 * 2 + 1
    for made in groups:
        dist.destroy_process_group(made)
    local = dist.new_group([env.rank], use_local_synchronization=True)
    dist.all_reduce(total, group=local)


def scattered_in_memory(env: Env) -> None:
    """What is only read may be a slice, transposed or expanded."""
    rows = 2 * env.world
    forms: tuple[Callable[[Tensor], Tensor], ...] = (
        lambda t: t.t(),
        lambda t: t.t()[:, ::2],
        lambda t: t[:, 0].expand(rows, 5),
    )
    for form in forms:
        given = [form(numbers(env, 5, rows, rank=r)) for r in range(env.world)]
        mine, sizes = given[env.rank], given[0].shape
        assert not mine.is_contiguous()
        got = [torch.empty(sizes, device=env.device) for _ in range(env.world)]

        def agree(a: list[Tensor], b: list[Tensor]) -> None:
            assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))

        dist.all_gather(got, mine)
        agree(got, given)
        whole = torch.empty(env.world, *sizes, device=env.device)
        dist.all_gather_single(whole, mine)
        agree(list(whole), given)
        for to in range(env.world):
            got = [torch.empty(sizes, device=env.device) for _ in range(env.world)]
            dist.gather(mine, got if env.rank == to else None, dst=to)
            agree(got if env.rank == to else given, given)
        part = torch.empty(sizes, device=env.device)
        dist.scatter(part, given if env.rank == 0 else None, src=0)
        agree([part], [mine])
        dist.reduce_scatter(part, [mine] * env.world)
        close(part, torch.stack(given).sum(0))
        slices = [t.chunk(env.world)[env.rank] for t in given]
        dist.all_to_all(got, [mine] * env.world)
        agree(got, given)
        even = torch.empty(sizes, device=env.device)
        dist.all_to_all_single(even, mine)
        agree([even], [torch.cat(slices)])
        if env.cpu or env.rank > 1:
            continue
        if env.rank == 0:
            dist.send(given[0], 1)
        else:
            dist.recv(part, 0)
            agree([part], [given[0]])


def gathered_futures(env: Env) -> None:
    """The future of a gather has one tensor, as NCCL's; unequal shapes leave the list."""
    lists = [torch.empty(3, device=env.device) for _ in range(env.world)]
    mine = torch.full((3,), float(env.rank), device=env.device)
    work = dist.all_gather(lists, mine, async_op=True)
    assert work is not None
    (value,) = work.get_future().wait()
    assert value.tolist() == [[float(r)] * 3 for r in range(env.world)]
    lists = [torch.empty(r, device=env.device) for r in range(env.world)]
    work = dist.all_gather(lists, mine[:1].repeat(env.rank), async_op=True)
    assert work is not None
    value = work.get_future().wait()
    assert [one.tolist() for one in value] == [[float(r)] * r for r in range(env.world)]


def completion_hooks(env: Env) -> None:
    """A hook is told of each collective and message; what it raises comes out of the wait."""

    def new() -> Any:
        group = dist.new_group()
        dist.all_reduce(torch.ones(3, device=env.device), group=group)  # see become_default
        return group

    group = new()
    seen: list[Any] = []
    group._register_on_completion_hook(seen.append)
    for count in range(1, 4):
        dist.all_reduce(torch.ones(3, device=env.device), group=group)
        work = dist.broadcast(torch.ones(3, device=env.device), 0, group, async_op=True)
        assert work is not None
        work.wait()
        if env.rank < 2:
            other = 1 - env.rank
            told = torch.ones(2, device=env.device)
            dist.send(told, other, group) if env.rank else dist.recv(told, other, group)
        group._wait_for_pending_works()
        assert len(seen) == (3 if env.rank < 2 else 2) * count
    names = {str(info.op_type).rpartition(".")[2] for info in seen}
    assert {"ALLREDUCE", "BROADCAST"} < names | {"ANY"}
    assert all(info.active_duration.total_seconds() >= 0 for info in seen)
    assert [info.seq for info in seen] == sorted(info.seq for info in seen)
    with pytest.raises(RuntimeError, match="has a completion hook already"):
        group._register_on_completion_hook(seen.append)
    dist.destroy_process_group(group)
    group = new()

    def broken(info: Any) -> None:
        raise ValueError(f"told of {info.seq}")

    group._register_on_completion_hook(broken)
    dist.all_reduce(torch.ones(3, device=env.device), group=group)
    dist.all_reduce(torch.ones(3, device=env.device), group=group)
    with pytest.raises(RuntimeError, match="ValueError: told of 2"):
        group._wait_for_pending_works()
    group._wait_for_pending_works()
    dist.destroy_process_group(group)


def barriers(env: Env) -> None:
    dist.barrier()
    if not env.cpu:
        dist.barrier(device_ids=[env.device.index])
    group = dist.group.WORLD
    assert group is not None
    backend: Any = group._get_backend(env.device)  # PyTorch's stub has no monitored_barrier
    if not env.cpu:  # PyTorch's function asks for a name; the backend itself can
        # PyTorch's text until 2.14, and since.
        text = r"only implemented for GLOO backend|requires a group with a CPU-capable backend"
        with pytest.raises(ValueError, match=text):
            dist.monitored_barrier(timeout=timedelta(seconds=30))
    backend.monitored_barrier(timedelta(seconds=30))
    backend.monitored_barrier(timedelta(seconds=30), wait_all_ranks=True)
    work = dist.barrier(async_op=True)
    assert work is not None
    work.wait()


def sums_of_dtypes(env: Env) -> None:
    """A reduction of every float by a client's means, in order of the ranks."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        got = numbers(env, 33, dtype=dtype)
        dist.all_reduce(got, dist.ReduceOp.AVG if not env.cpu else dist.ReduceOp.SUM)
        parts = torch.stack([numbers(env, 33, rank=r, dtype=dtype) for r in range(env.world)])
        want = parts.double().mean(0) if not env.cpu else parts.double().sum(0)
        assert (got.double() - want).abs().max() <= bound(want, dtype, env.world)


def initialised_in_other_ways(env: Env) -> None:
    """Without a backend, by name, with a device: each works after the one before is destroyed."""
    where: list[Any] = [tempfile.mkdtemp() if env.rank == 0 else None]
    dist.broadcast_object_list(where, src=0)
    dist.barrier()
    kind = env.device.type
    forms: list[dict[str, Any]] = [
        {} if not env.cpu else {"backend": "gloo"},
        {"backend": "neuron"} if not env.cpu else {"backend": "cpu:gloo"},
    ]
    if not env.cpu:
        forms += [{"device_id": env.device}, {"backend": "cpu:gloo,neuron:neuron"}]
        forms += [{"backend": "neuron", "device_id": env.device}]
    for i, form in enumerate(forms):
        dist.destroy_process_group()
        assert not dist.is_initialized()
        dist.init_process_group(
            init_method=f"file://{where[0]}/{i}", rank=env.rank, world_size=env.world,
            timeout=timedelta(seconds=30), **form,
        )  # fmt: skip
        total = torch.ones(4, device=env.device)
        dist.all_reduce(total)
        assert total.tolist() == [env.world] * 4
        if "cpu" in form.get("backend", ""):
            on_host = torch.ones(2)
            dist.all_reduce(on_host)
            assert on_host.tolist() == [env.world] * 2
        backend = dist.group.WORLD._get_backend(torch.device(kind))  # type: ignore[union-attr]
        assert backend.name() == ("gloo" if env.cpu else "neuron")
    os.sync()


def split(env: Env) -> None:
    """Groups made from a group: needs the device of the default group, hence after the above."""
    if env.cpu:
        return
    ranks = [list(range(0, env.world, 2)), list(range(1, env.world, 2))]
    options = torch._C._distributed_c10d.Backend.Options("neuron", timedelta(seconds=30))
    part = dist.split_group(split_ranks=ranks, pg_options=options)
    assert part is not None
    total = torch.full((2,), float(env.rank), device=env.device)
    dist.all_reduce(total, group=part)
    assert total.tolist() == [float(sum(ranks[env.rank % 2]))] * 2
    dist.barrier(group=part)
    dist.destroy_process_group(part)
    world: Any = dist.group.WORLD
    made = world.split_group(list(range(env.world)), timedelta(seconds=30))  # registered nowhere
    made.allreduce([total]).wait()
    assert total.tolist() == [float(env.world // 2 * sum(map(sum, ranks)))] * 2
    made.shutdown()


def merged(env: Env) -> None:
    """Groups of one rank each become one of all, in the order of their arrival."""
    if env.cpu:
        return
    alone: Any = [dist.new_group([rank]) for rank in range(env.world)][env.rank]
    path = [tempfile.mktemp() if env.rank == 0 else None]  # noqa: S306 - the store makes it
    dist.broadcast_object_list(path, src=0)
    store = torch._C._distributed_c10d.FileStore(str(path[0]), env.world)
    group = alone.merge_remote_group(store, env.world, timedelta(seconds=30), "merged")
    total = torch.full((3,), float(env.rank + 1), device=env.device)
    group.allreduce([total]).wait()
    assert total.tolist() == [env.world * (env.world + 1) / 2] * 3
    places: list[Any] = [None] * env.world
    dist.all_gather_object(places, group.rank())
    assert sorted(places) == list(range(env.world))
    group.shutdown()


def default_of_two(env: Env) -> None:
    """With two backends named, PyTorch leaves a group without a default, and warns."""
    if env.cpu:
        return
    group: Any = dist.new_group(backend="cpu:gloo,neuron:neuron")
    dist.all_reduce(torch.ones(2, device=env.device), group=group)
    seen: list[Any] = []
    group._register_on_completion_hook(seen.append)
    dist.all_reduce(torch.ones(2, device=env.device), group=group)
    dist.destroy_process_group(group)
    assert len(seen) == 1


CHECKS = (
    objects, scattered_in_memory, gathered_futures, completion_hooks,
    autograd_collectives, functional_forms, point_to_point, experts, meshes, new_groups,
    barriers, sums_of_dtypes, initialised_in_other_ways, split, merged, default_of_two,
)  # fmt: skip


@pytest.mark.parametrize("world", [2, 4])
def test_groups(world: int) -> None:
    run_checks(world, CHECKS)
