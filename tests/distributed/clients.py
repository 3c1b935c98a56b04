"""What the tests of PyTorch's own clients share: ranks, a small model, references, bounds.

A check is a function of an Env that every rank calls. One start of the ranks runs many, since the
start costs more than they do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from tests.distributed.ranks import run_ranks

VOCABULARY, WIDTH, HEADS, LAYERS = 32, 16, 4, 2
ROWS, LENGTH = 8, 8  # of a batch: sequences, tokens of one


@dataclass(frozen=True)
class Env:
    """Where a check runs."""

    rank: int
    world: int
    device: torch.device

    @property
    def cpu(self) -> bool:
        """True where the checks themselves are checked: gloo and cpu."""
        return self.device.type == "cpu"

    def rows(self, batch: Tensor) -> Tensor:
        """This rank's rows of a batch."""
        return shard(batch, self.rank, self.world)


Check = Callable[[Env], None]


def run_checks(world: int, checks: Sequence[Check], *, timeout: float = 100) -> None:
    """Run the checks on `world` ranks of the neuron device, in order; the first failure ends it."""
    run_ranks(world, _run, list(checks), "neuron", timeout=timeout)


def _run(rank: int, world: int, checks: Sequence[Check], device_type: str) -> None:
    device = torch.device(device_type)
    if device_type != "cpu":
        device = torch.device(device_type, rank % torch.accelerator.device_count())
        torch.accelerator.set_device_index(device.index)
    for check in checks:
        torch.manual_seed(7)
        try:
            check(Env(rank, world, device))
        except BaseException as e:
            e.add_note(f"in {check.__module__}.{check.__qualname__} of rank {rank} of {world}")
            raise


# Models and data


class Block(nn.Module):
    """One layer of a transformer: attention and a wider part, both added."""

    def __init__(self, width: int = WIDTH, heads: int = HEADS) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, length, width]; columns of query, key and value may be some of the heads."""
        h = self.norm1(x)
        size = self.out.weight.shape[0] // self.heads
        q, k, v = (
            part.unflatten(-1, (-1, size)).transpose(1, 2)
            for part in (self.query(h), self.key(h), self.value(h))
        )
        heads = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).flatten(2))
        update: Tensor = self.down(functional.gelu(self.up(self.norm2(x))))
        return x + update


class Transformer(nn.Module):
    """Tokens [rows, length] to logits [rows, length, vocabulary]."""

    def __init__(self, layers: int = LAYERS) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def transformer(device: torch.device, layers: int = LAYERS) -> Transformer:
    """The same parameters on every rank and device."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return Transformer(layers).to(device)


@dataclass(frozen=True)
class Batch:
    """Tokens and, for each, the one after it."""

    tokens: Tensor
    targets: Tensor


def batch(step: int, device: torch.device, rows: int = ROWS) -> Batch:
    """The whole batch of a step, of all ranks."""
    generator = torch.Generator().manual_seed(100 + step)
    tokens = torch.randint(VOCABULARY, (rows, LENGTH + 1), generator=generator)
    return Batch(tokens[:, :-1].contiguous().to(device), tokens[:, 1:].contiguous().to(device))


def shard(t: Tensor, rank: int, world: int) -> Tensor:
    """One rank's part of the first dimension."""
    return t.tensor_split(world)[rank]


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over all tokens."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """What most checks train with; linear in the gradients, so bounds are easy to give."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


# References


def losses_of(losses: Tensor, env: Env) -> Tensor:
    """The mean over ranks of their losses."""
    total = losses.detach().clone()
    dist.all_reduce(total)
    return total / env.world


def train(
    env: Env,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int = 3,
    *,
    whole_batch: bool = False,
) -> Tensor:
    """Train on this rank's rows (or all rows); the loss of each step over all ranks."""
    losses = []
    for step in range(steps):
        data = batch(step, env.device)
        pick = (lambda t: t) if whole_batch else env.rows
        loss = loss_of(model(pick(data.tokens)), pick(data.targets))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    stacked = torch.stack(losses)
    return stacked if whole_batch else losses_of(stacked, env)


def reference(
    env: Env,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int = 3,
) -> Tensor:
    """The same training by one process: whole batches, no group."""
    return train(env, model, optimizer, steps, whole_batch=True)


# Bounds


def bound(want: Tensor, dtype: torch.dtype, terms: int) -> float:
    """How far two orders of summing `terms` products may lie apart.

    Each result carries about sqrt(terms) independent roundings of half a unit in the last place of
    numbers as large as the largest; 16 covers both results, several layers and steps.
    """
    largest = want.abs().max().item() if want.numel() else 0.0
    return 16 * torch.finfo(dtype).eps * math.sqrt(terms) * max(largest, 1e-3)


def close(
    got: Tensor, want: Tensor, *, dtype: torch.dtype = torch.float32, terms: int = ROWS * LENGTH
) -> None:
    """Equal shapes, and values within the bound of `dtype`."""
    assert got.shape == want.shape, f"shape {tuple(got.shape)}, expected {tuple(want.shape)}"
    far = (got.double() - want.double()).abs().max().item() if want.numel() else 0.0
    limit = bound(want, dtype, terms)
    assert far <= limit, f"differs by {far:.3g}, bound {limit:.3g}\n{got}\n{want}"


def full(t: Tensor) -> Tensor:
    """The whole of a DTensor (a collective), or the tensor itself."""
    whole: Tensor = t.full_tensor() if hasattr(t, "full_tensor") else t
    return whole.detach()


def same_parameters(
    model: nn.Module,
    want: nn.Module,
    *,
    dtype: torch.dtype = torch.float32,
    terms: int = ROWS * LENGTH,
) -> None:
    """Parameters and buffers of both models agree, by position."""
    pairs = zip(_state(model), _state(want), strict=True)
    for (name, got), (other, expected) in pairs:
        try:
            close(full(got), expected.detach(), dtype=dtype, terms=terms)
        except AssertionError as e:
            e.add_note(f"{name} against {other}")
            raise


def _state(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    for name, buffer in model.named_buffers():
        if buffer.is_floating_point():
            yield name, buffer
