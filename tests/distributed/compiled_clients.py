"""What the ranks of the tests of compiled programs do; imported by name in every rank."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

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
from neuronxcc.lowering.scheduling import overlap
from neuronxcc.program.steps.collective import CollectiveStep, WaitStep
from tests.distributed.compiled_collectives import Watch, collectives, compiled

# float32: a sum of other order, of gradients near 1.
CLOSE: dict[str, Any] = {"rtol": 2e-4, "atol": 2e-5}


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


def reduced_by_python(rank: int, ranks: int) -> None:
    """DDP whose hooks are traced: compiled autograd's one graph has the collectives, as a bucket.

    Whether gradients are new or added to what is there.
    """
    with torch._dynamo.config.patch(optimize_ddp="python_reducer", compiled_autograd=True):
        model, tokens = small(ranks)
        whole = copy.deepcopy(model)
        ddp = DistributedDataParallel(model)

        def step(words: torch.Tensor) -> torch.Tensor:
            loss = loss_of(ddp, words)
            loss.backward()
            return loss.detach()

        run = compiled(step, fullgraph=False)
        for fresh in (True, False):
            model.zero_grad(set_to_none=fresh)
            with Watch() as watch:
                loss = run(tokens[rank])
            same_gradients(model, copy.deepcopy(whole), loss, tokens, rank)
            found = [collectives(graph.executable.program) for graph in watch.graphs]
            assert [kinds for kinds in found if kinds] == [["all_reduce"]]


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
    reduced_by_python,
    sharded_by_layers,
    tensor_parallel,
    experts,
)


def training(rank: int, ranks: int) -> None:
    """All clients."""
    for client in TRAINING:
        client(rank, ranks)
