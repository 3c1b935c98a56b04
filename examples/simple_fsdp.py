"""Fully sharded training in the style of SimpleFSDP: a parameter is gathered where it is read.

Nothing here knows of buckets, streams or hooks. A module's parameters become DTensors of which
every rank has a part; reading one gathers it, and the gradient that comes back is averaged and
scattered. So the whole step is one graph, `torch.compile(fullgraph=True)` sees all collectives, and
the compiler decides which go together and how they overlap with the computation.

    torchrun --nproc-per-node 2 -m examples.simple_fsdp
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn import functional as F  # noqa: N812 - as everybody writes it


def simple_fsdp(
    model: nn.Module, mesh: DeviceMesh, param_dtype: torch.dtype | None = None
) -> nn.Module:
    """Shard all parameters of a model over a one-dimensional mesh, by their first dimension.

    Args:
        model: Its modules get a subclass of their class; its parameters are replaced.
        mesh: The ranks.
        param_dtype: What parameters are gathered and computed with in; None: as they are.
    """
    for module in model.modules():
        own = dict(module.named_parameters(recurse=False))
        if not own:
            continue
        for name, value in own.items():
            shards = distribute_tensor(value.detach(), mesh, [Shard(0)])
            module.register_parameter(name, nn.Parameter(shards, value.requires_grad))
        readers = {name: _gathered(name, param_dtype) for name in own}
        kind = type(module)
        module.__class__ = type(f"Sharded{kind.__name__}", (kind,), readers)
    return model


def _gathered(name: str, dtype: torch.dtype | None) -> property:
    """Reads a parameter: all of it, on every rank."""

    def read(module: nn.Module) -> torch.Tensor:
        # Any: PyTorch's types do not say that a parameter, or what `to` gives, can be a DTensor.
        value: Any = module._parameters[name]  # noqa: SLF001 - the attribute's name reads it whole
        assert isinstance(value, DTensor)
        typed: Any = value if dtype is None else value.to(dtype)
        whole = typed.redistribute(placements=[Replicate()])
        local: torch.Tensor = whole.to_local(grad_placements=[Partial("avg")])
        return local

    return property(read)


class Block(nn.Module):
    """A transformer layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of (batch, length, width)."""
        parts = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        y: torch.Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return y


class Model(nn.Module):
    """A language model of a few layers."""

    def __init__(self, words: int = 256, width: int = 128, heads: int = 4, layers: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of the next words for (batch, length) words."""
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        scores: torch.Tensor = self.head(self.norm(x))
        return scores


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Mean loss of predicting every word from those before it."""
    scores = model(tokens[:, :-1])
    return F.cross_entropy(scores.flatten(0, 1).float(), tokens[:, 1:].flatten())


def main() -> None:
    """Train on random sentences that repeat, in bfloat16."""
    dist.init_process_group("neuron")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.neuron.set_device(int(os.environ["LOCAL_RANK"]))  # type: ignore[attr-defined]
    torch.manual_seed(0)
    mesh = init_device_mesh("neuron", (ranks,))
    model = simple_fsdp(Model().to("neuron"), mesh, torch.bfloat16)
    step = torch.compile(loss_of, backend="neuron", fullgraph=True)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    torch.manual_seed(rank)
    tokens = torch.randint(256, (4, 64), device="neuron")
    for number in range(20):
        loss = step(model, tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss.detach_(), dist.ReduceOp.AVG)
        if rank == 0 and number % 5 == 4:
            print(f"step {number + 1}: loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
