"""How long would a model take on hardware? A small GPT, and a norm by a kernel, on three chips.

    python -m examples.model_time

Nothing is computed: the model runs on fake tensors, and what it did is timed. What
`torch_neuronx.estimate` gives also says where the time goes; docs/estimate.md.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn

import torch_neuronx
from torch_neuronx.kernels.norm import rms_norm, rms_norm_reference

TARGETS = ("trn1", "trn2", "trn3")
WIDTH, HEADS, LAYERS, TOKENS, VOCABULARY = 512, 8, 4, 512, 8192


class Block(nn.Module):
    """Causal attention and two products."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.o = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = heads.unbind()
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.o(mixed.transpose(1, 2).flatten(2))
        result: Tensor = x + self.down(nn.functional.gelu(self.up(self.norm2(x))))
        return result


def model() -> nn.Module:
    """Return a language model without memory."""
    with torch.device("meta"):
        blocks = [Block() for _ in range(LAYERS)]
        return nn.Sequential(
            nn.Embedding(VOCABULARY, WIDTH),
            *blocks,
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, VOCABULARY),
        ).bfloat16()


def run() -> list[str]:
    """Print the table. Returns what went wrong, in words."""
    tokens = torch.zeros(4, TOKENS, dtype=torch.int64)
    made = {target: torch_neuronx.estimate(model(), tokens, target=target) for target in TARGETS}
    for target, found in made.items():
        low, high = found.interval_us
        print(
            f"  a small GPT, {tokens.numel()} tokens, on {target}: {found.step_us / 1e3:.2f} ms, "
            f"expected between {low / 1e3:.2f} and {high / 1e3:.2f}; bound by {found.bound_by}, "
            f"MFU {found.mfu:.0%}"
        )
    x = torch.empty(4096, 1024, dtype=torch.bfloat16, device="meta")
    weight = torch.empty(1024, dtype=torch.bfloat16, device="meta")
    for target in TARGETS:
        both = [
            torch_neuronx.estimate(norm, x, weight, target=target)
            for norm in (rms_norm_reference, rms_norm)
        ]
        made |= {f"{target}, a norm": both[0], f"{target}, a kernel": both[1]}
        print(
            f"  an RMS norm of {tuple(x.shape)} on {target}: {both[0].device_us:.0f} us by "
            f"operators of PyTorch, {both[1].device_us:.0f} us by a kernel of NKI"
        )
    return [
        f"the parts of the estimate for {target} are not its whole"
        for target, found in made.items()
        if abs(sum(row.us for row in found.rows) - found.step_us) > 1e-6 * found.step_us
    ]


if __name__ == "__main__":
    sys.exit(bool(run()))
