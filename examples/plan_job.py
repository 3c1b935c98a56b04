"""Train a Llama-like model with FSDP2 and tensor parallelism; and plan that for many cores.

On four emulated cores, a tiny model:

    torchrun --nproc-per-node 4 -m examples.plan_job --size tiny --tp 2 --steps 3

What rank 0 of 64 would need and send for 8 billion parameters, in seconds on this computer:

    python -m torch_neuronx.distributed.plan --world-size 64 examples/plan_job.py --size 8b --tp 8
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Size:
    """Widths of a model."""

    layers: int
    width: int
    heads: int
    key_heads: int
    hidden: int
    vocabulary: int
    sequence: int


SIZES = {
    "tiny": Size(2, 64, 8, 4, 160, 512, 64),
    "8b": Size(32, 4096, 32, 8, 14336, 128256, 8192),
    "70b": Size(80, 8192, 64, 8, 28672, 128256, 8192),
}


class Attention(nn.Module):
    """Causal attention with rotary positions and shared keys."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.each = size.width // size.heads
        self.q = nn.Linear(size.width, size.heads * self.each, bias=False)
        self.k = nn.Linear(size.width, size.key_heads * self.each, bias=False)
        self.v = nn.Linear(size.width, size.key_heads * self.each, bias=False)
        self.o = nn.Linear(size.heads * self.each, size.width, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (-1, self.each)).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        q, k = (_rotate(part, cosine, sine) for part in (q, k))
        repeats = q.shape[1] // k.shape[1]
        k, v = (part.repeat_interleave(repeats, dim=1) for part in (k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        result: Tensor = self.o(out.transpose(1, 2).flatten(2))
        return result


def _rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return (x * cosine + turned * sine).to(x.dtype)


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.gate = nn.Linear(size.width, size.hidden, bias=False)
        self.up = nn.Linear(size.width, size.hidden, bias=False)
        self.down = nn.Linear(size.hidden, size.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return result


class Block(nn.Module):
    """One layer."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.attention = Attention(size)
        self.feed_forward = FeedForward(size)
        self.norm1 = nn.RMSNorm(size.width)
        self.norm2 = nn.RMSNorm(size.width)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), cosine, sine)
        result: Tensor = x + self.feed_forward(self.norm2(x))
        return result


class Model(nn.Module):
    """A language model like Llama's."""

    def __init__(self, size: Size, *, recompute: bool) -> None:
        super().__init__()
        self.size, self.recompute = size, recompute
        self.embedding = nn.Embedding(size.vocabulary, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.width)
        self.output = nn.Linear(size.width, size.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        each = self.size.width // self.size.heads
        rates = 500000.0 ** (-torch.arange(0, each, 2, device=tokens.device) / each)
        angles = torch.outer(torch.arange(tokens.shape[1], device=tokens.device), rates).repeat(
            1, 2
        )
        cosine, sine = angles.cos(), angles.sin()
        x = self.embedding(tokens)
        for block in self.blocks:
            if self.recompute:
                x = checkpoint(block, x, cosine, sine, use_reentrant=False)
            else:
                x = block(x, cosine, sine)
        result: Tensor = self.output(self.norm(x))
        return result


def divide(model: Model, tp: int, *, precision: torch.dtype) -> None:
    """Divide a model: layers over `tp` ranks of a chip, what is left over the others by FSDP."""
    mesh = init_device_mesh(
        "neuron", (dist.get_world_size() // tp, tp), mesh_dim_names=("dp", "tp")
    )
    if tp > 1:
        top = {
            "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "output": ColwiseParallel(
                input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
            ),
        }
        parallelize_module(model, mesh["tp"], top)
        layer = {
            "norm1": SequenceParallel(),
            "norm2": SequenceParallel(),
            "attention": PrepareModuleInput(
                input_layouts=(Shard(1), None, None),
                desired_input_layouts=(Replicate(), None, None),
            ),
            "attention.q": ColwiseParallel(),
            "attention.k": ColwiseParallel(),
            "attention.v": ColwiseParallel(),
            "attention.o": RowwiseParallel(output_layouts=Shard(1)),
            "feed_forward": PrepareModuleInput(
                input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
            ),
            "feed_forward.gate": ColwiseParallel(),
            "feed_forward.up": ColwiseParallel(),
            "feed_forward.down": RowwiseParallel(output_layouts=Shard(1)),
        }
        for block in model.blocks:
            parallelize_module(block, mesh["tp"], layer)
    policy = MixedPrecisionPolicy(param_dtype=precision, reduce_dtype=torch.float32)
    for part in (*model.blocks, model):
        fully_shard(part, mesh=mesh["dp"], mp_policy=policy)


def main(arguments: Sequence[str] | None = None) -> float:
    """Train; returns the last loss."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--tp", type=int, default=1, help="ranks that share each layer")
    parser.add_argument("--batch", type=int, default=1, help="sequences of a rank")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--recompute", action="store_true", help="activation checkpointing")
    chosen = parser.parse_args(arguments)
    size = SIZES[chosen.size]

    dist.init_process_group("cpu:gloo,neuron:neuron")
    torch.manual_seed(0)
    with torch.device("meta"):
        model = Model(size, recompute=chosen.recompute)
    divide(model, chosen.tp, precision=torch.bfloat16)
    model.to_empty(device="neuron")
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02) if parameter.dim() > 1 else nn.init.ones_(parameter)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    # The same sequences again and again: the loss must fall.
    torch.manual_seed(dist.get_rank() // chosen.tp)
    tokens = torch.randint(size.vocabulary, (chosen.batch, size.sequence + 1)).to("neuron")
    loss = torch.zeros(())
    for step in range(chosen.steps):
        logits = model(tokens[:, :-1])
        if chosen.tp > 1:
            with loss_parallel():
                loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
                loss.backward()
        else:
            loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step + 1}: loss {loss.item():.3f}")
    dist.destroy_process_group()
    return loss.item()


if __name__ == "__main__":
    main()
    sys.exit(0)
