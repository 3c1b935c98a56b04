"""What the ranks of the tests of compiled programs do; imported by name in every rank."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional as F  # noqa: N812 - as everybody writes it
from torch.nn.parallel import DistributedDataParallel

from examples.simple_fsdp import Model, loss_of, simple_fsdp
from neuronxcc.lowering import overlap
from neuronxcc.neff.program import CollectiveStep, Program, WaitStep
from torch_neuronx.dynamo import backend
from torch_neuronx.dynamo.backend import CompiledGraph

# float32: a sum of other order, of gradients near 1.
CLOSE: dict[str, Any] = {"rtol": 2e-4, "atol": 2e-5}


class Watch:
    """The graphs that are compiled while it is open."""

    def __init__(self) -> None:
        self.graphs: list[CompiledGraph] = []

    def __enter__(self) -> Self:
        backend.OBSERVERS.append(self.graphs.append)
        return self

    def __exit__(self, *_: object) -> None:
        backend.OBSERVERS.remove(self.graphs.append)

    def program(self, kind: str) -> Program:
        """The program of the first graph of a kind."""
        graph = next(graph for graph in self.graphs if graph.kind == kind)
        program: Program = graph.executable.program
        return program


def collectives(program: Program) -> list[str]:
    """The kinds of the collectives of a program, in order."""
    return [step.kind for step in program.steps if isinstance(step, CollectiveStep)]


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Whole, or an error."""
    return torch.compile(function, backend="neuron", **{"fullgraph": True, **options})


def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small whole numbers, so that every order of additions gives the same."""
    value = torch.randint(-4, 5, shape, device="neuron")
    return value.to(dtype) if dtype != torch.bool else value > 0


# ---- functional collectives ----------------------------------------------------------------------


def functional(rank: int, ranks: int) -> None:
    """Every functional collective, compiled and eager."""
    torch.manual_seed(rank)
    world = dist.group.WORLD
    assert world is not None
    pair = dist.new_group(range(2))  # of more ranks: a group that not all are in
    same = fc.all_reduce
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
        ops = ["sum", "max", "min"] + ([] if dtype == torch.bool else ["product"])
        ops += ["avg"] if dtype.is_floating_point else ["band", "bxor"]
        x = tensor(2 * ranks, 3, dtype=dtype)
        check(lambda x, ops=tuple(ops): tuple(same(x, op, world) for op in ops), x)
    x = tensor(2 * ranks, ranks, 3)
    for dim in range(2):
        check(lambda x, d=dim: fc.all_gather_single(x, d, world), x)
        check(lambda x, d=dim: fc.reduce_scatter_single(x, "sum", d, world), x)
    check(lambda x: fc.all_to_all_single(x * 2, None, None, world), x)
    # Rank r sends s + 1 rows to rank s.
    sent = list(range(1, ranks + 1))
    rows = tensor(sum(sent), 2)
    check(lambda x: fc.all_to_all_single(x, [rank + 1] * ranks, sent, world) + 1, rows)
    check(lambda x: fc.broadcast(x, ranks - 1, world) * 2, x)
    many = [tensor(2 * ranks, 3), tensor(ranks), tensor(3 * ranks, 2)]
    check(lambda *xs: fc.all_reduce_coalesced(list(xs), "sum", world), *many)
    check(lambda *xs: fc.all_gather_into_tensor_coalesced(list(xs), world), *many)
    scatter = fc.reduce_scatter_tensor_coalesced
    check(lambda *xs: scatter(list(xs), "sum", [0] * 3, world), *many)
    check(lambda x: fc.all_reduce(x.cfloat() * 1j, "sum", world), tensor(3))
    if rank < 2:
        check(lambda x: fc.all_reduce(x, "sum", pair) + fc.all_reduce(x + 1, "max", pair), x)
    nobody_wants(rank, ranks, world)


def check(function: Callable[..., Any], *args: torch.Tensor) -> None:
    """Compiled and eager give the same bits."""
    torch._dynamo.reset()
    want, got = function(*args), compiled(function)(*args)
    want, got = (x if isinstance(x, list | tuple) else (x,) for x in (want, got))
    for a, b in zip(got, want, strict=True):
        ended = b.wait() if isinstance(b, fc.AsyncCollectiveTensor) else b
        torch.testing.assert_close(a, ended, rtol=0, atol=0)


def nobody_wants(rank: int, ranks: int, world: dist.ProcessGroup) -> None:
    """A rank that gets nothing takes part, or the others would wait for ever."""

    def step(x: torch.Tensor) -> torch.Tensor:
        receive = [x.shape[0] if rank == 0 else 0] * ranks
        got = fc.all_to_all_single(x, receive, [x.shape[0], *[0] * (ranks - 1)], world)
        total: torch.Tensor = (got * 2).sum(0) + fc.all_reduce(x, "sum", world).sum()
        return total

    check(step, tensor(4, 2))


# ---- training ------------------------------------------------------------------------------------


def sharded_everywhere(rank: int, ranks: int) -> dict[str, list[str]]:
    """SimpleFSDP: one graph forward, one backward; returns their collectives."""
    mesh = init_device_mesh("neuron", (ranks,))
    model, tokens = small(ranks)
    whole = copy.deepcopy(model)
    simple_fsdp(model, mesh)
    overlap.BUCKET = 1 << 14  # so that such a small model has several
    with Watch() as watch:
        loss = compiled(loss_of)(model, tokens[rank])
        loss.backward()
    same_gradients(model, whole, loss, tokens, rank)
    forward, backward = watch.program("forward"), watch.program("backward")
    started = [i for i, s in enumerate(forward.steps) if isinstance(s, CollectiveStep)]
    waited = [i for i, s in enumerate(forward.steps) if isinstance(s, WaitStep)]
    # Something is computed while a collective runs.
    assert any(wait - start > 1 for start, wait in zip(started, waited, strict=True))
    return {"forward": collectives(forward), "backward": collectives(backward)}


def small(ranks: int, width: int = 32) -> tuple[Model, torch.Tensor]:
    """A model, the same on all ranks, and words for each."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = Model(words=64, width=width, heads=4, layers=2).to("neuron")
    return model, torch.randint(64, (ranks, 2, 9), device="neuron")


def same_gradients(
    model: nn.Module, whole: nn.Module, loss: torch.Tensor, tokens: torch.Tensor, rank: int
) -> None:
    """The loss of this rank, and gradients of the mean loss of all, are those of one rank."""
    losses = [loss_of(whole, each) for each in tokens]
    torch.stack(losses).mean().backward()
    torch.testing.assert_close(loss, losses[rank], **CLOSE)
    for (name, p), q in zip(model.named_parameters(), whole.parameters(), strict=True):
        assert p.grad is not None, name
        grad = p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad
        torch.testing.assert_close(grad, q.grad, **CLOSE, msg=partial("{}: {}".format, name))


def replicated(rank: int, ranks: int) -> None:
    """DDP around a compiled model, and compiled DDP, whose graph PyTorch divides by buckets."""
    for where in ("inside", "outside"):
        # Of three megabytes, for PyTorch divides the graph by buckets of at least one.
        model, tokens = small(ranks, width=128)
        whole = copy.deepcopy(model)
        with Watch() as watch:
            if where == "inside":
                model.compile(backend="neuron", fullgraph=True)
            ddp = DistributedDataParallel(model, bucket_cap_mb=1)
            run: Any = ddp if where == "inside" else compiled(ddp, fullgraph=False)
            loss = loss_of(run, tokens[rank])
            loss.backward()
        same_gradients(model, whole, loss, tokens, rank)
        graphs = [graph for graph in watch.graphs if graph.kind == "forward"]
        assert len(graphs) > 1 or where != "outside"


def sharded_by_layers(rank: int, ranks: int) -> None:
    """FSDP2 with compiled layers, and compiled as a whole with breaks of the graph."""
    mesh = init_device_mesh("neuron", (ranks,))
    for by_layers in (True, False):
        model, tokens = small(ranks)
        whole = copy.deepcopy(model)
        for layer in model.layers:
            if by_layers:
                layer.compile(backend="neuron", fullgraph=True)
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        run = loss_of if by_layers else compiled(loss_of, fullgraph=False)
        for _ in range(2):
            model.zero_grad()
            loss = run(model, tokens[rank])
            loss.backward()
        same_gradients(model, whole, loss, tokens, rank)


class MLP(nn.Module):
    """Two products, the second one's results are summed over ranks."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of (batch, length, width)."""
        y: torch.Tensor = self.down(F.gelu(self.up(self.norm(x))))
        return y


def tensor_parallel(rank: int, ranks: int) -> None:
    """DTensor's products and tensor and sequence parallel layers, whole graphs."""
    mesh = init_device_mesh("neuron", (ranks,))
    torch.manual_seed(0)
    products(mesh)
    for plan, by_sequence in plans():
        torch._dynamo.reset()
        torch.manual_seed(1)
        one = MLP(16).to("neuron")
        model = copy.deepcopy(one)
        parallelize_module(model, mesh, plan)
        x = torch.randn(2, 2 * ranks, 16, device="neuron")
        part = slice(2 * rank, 2 * rank + 2) if by_sequence else slice(None)
        inputs = [x.clone().requires_grad_(), x[:, part].clone().requires_grad_()]
        want, got = one(inputs[0]), compiled(model)(inputs[1])
        got = got.full_tensor() if isinstance(got, DTensor) else got
        torch.testing.assert_close(got, want, **CLOSE)
        want.square().sum().backward()
        got.square().sum().backward()
        assert inputs[0].grad is not None
        torch.testing.assert_close(inputs[1].grad, inputs[0].grad[:, part], **CLOSE)
        for p, q in zip(model.parameters(), one.parameters(), strict=True):
            grad = p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad
            torch.testing.assert_close(grad, q.grad, **CLOSE)


def plans() -> Sequence[tuple[dict[str, Any], bool]]:
    """Tensor parallel; and, told by True, with sequences divided outside of the products."""
    inner: dict[str, Any] = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    sequence = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Replicate()),
    }
    return (inner, False), (sequence, True)


def products(mesh: DeviceMesh) -> None:
    """a @ b for all placements of both, forward and backward."""
    a, b = torch.randn(8, 16, device="neuron"), torch.randn(16, 8, device="neuron")
    places = (Shard(0), Shard(1), Replicate())

    def product(x: DTensor, y: DTensor) -> torch.Tensor:
        placed: Any = x @ y  # a DTensor; PyTorch says Tensor
        whole: torch.Tensor = placed.redistribute(placements=[Replicate()]).to_local()
        return whole

    for left in places:
        for right in places:
            x, y = (
                distribute_tensor(t, mesh, [p]).requires_grad_() for t, p in ((a, left), (b, right))
            )
            torch._dynamo.reset()
            got = compiled(product)(x, y)
            torch.testing.assert_close(got, a @ b, **CLOSE)
            got.sum().backward()
            ones = torch.ones_like(got)
            assert isinstance(x.grad, DTensor)
            assert isinstance(y.grad, DTensor)
            torch.testing.assert_close(x.grad.full_tensor(), ones @ b.T, **CLOSE)
            torch.testing.assert_close(y.grad.full_tensor(), a.T @ ones, **CLOSE)


def experts(rank: int, ranks: int) -> None:
    """A layer of experts, one per rank: words go to their expert and come back."""
    torch.manual_seed(0)
    world = dist.group.WORLD
    assert world is not None
    width, room = 8, 3
    weights = torch.randn(ranks, width, width, device="neuron")
    words = torch.randn(ranks, ranks * room, width, device="neuron")
    exchange = fc.all_to_all_single_autograd

    def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        there = exchange(x, None, None, world)
        return exchange(F.gelu(there @ w), None, None, world)

    x = words[rank].clone().requires_grad_()
    w = weights[rank].clone().requires_grad_()
    got = compiled(layer)(x, w)
    got.square().sum().backward()
    # All ranks on one: room words of every rank for each expert.
    xs, ws = words.clone().requires_grad_(), weights.clone().requires_grad_()
    sorted_words = xs.view(ranks, ranks, room, width)
    want = F.gelu(torch.einsum("rekw,ewv->rekv", sorted_words, ws)).reshape(xs.shape)
    want.square().sum().backward()
    assert xs.grad is not None
    assert ws.grad is not None
    torch.testing.assert_close(got, want[rank], **CLOSE)
    torch.testing.assert_close(x.grad, xs.grad[rank], **CLOSE)
    torch.testing.assert_close(w.grad, ws.grad[rank], **CLOSE)


TRAINING: tuple[Callable[[int, int], Any], ...] = (
    replicated,
    sharded_by_layers,
    tensor_parallel,
    experts,
)


def training(rank: int, ranks: int) -> None:
    """All clients."""
    for client in TRAINING:
        client(rank, ranks)
