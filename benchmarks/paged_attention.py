"""Attention over a paged cache, as a server's step of one token a sequence calls it.

    python -m benchmarks.paged_attention [--only REGEX] [--threads N] [--repeats N]

In one process, in turn, the fastest of the samples: our operator, which reads keys and values where
their pages are; the same after gathering each sequence's pages into one tensor (`index_select` on
the device, then attention over packed sequences); and attention over keys that lie packed already,
which is what reading pages could cost at best. Beside them how long the processor takes to read as
many bytes: a sum of the same cache by PyTorch. Exit code 0, or 2 when the machine was too busy to
measure; nothing is judged.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from benchmarks import quiet, report
from benchmarks.attention import Step, fastest
from torch_neuronx.kernels import paged_attention


@dataclass(frozen=True)
class Case:
    """Sequences of `keys` tokens each, of which the last `tokens` are computed."""

    sequences: int
    keys: int
    tokens: int = 1
    heads: int = 12
    kv_heads: int = 12
    width: int = 64
    size: int = 16
    dtype: torch.dtype = torch.float32

    @property
    def name(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        heads = f"{self.heads}/{self.kv_heads}x{self.width}"
        return f"{dtype} {self.sequences} x {self.keys} keys, {self.tokens} new, {heads}"


@dataclass
class Row:
    name: str
    paged_us: float
    gathered_us: float
    packed_us: float
    read_us: float


CASES = [
    Case(sequences, keys, tokens, *heads, dtype=dtype)
    for dtype in (torch.float32, torch.bfloat16)
    for heads in ((12, 12, 64), (32, 8, 64))
    for sequences, keys, tokens in ((8, 96, 1), (8, 1024, 1), (8, 4096, 1), (1, 4096, 128))
]


def steps(case: Case) -> list[Step]:
    """By pages, gathered, packed, and a sum."""
    pages = -(-case.keys // case.size)
    shape = (case.sequences * pages, case.size, case.kv_heads, case.width)
    caches = [torch.randn(shape, device="neuron").to(case.dtype) for _ in "kv"]
    query = torch.randn(case.sequences * case.tokens, case.heads, case.width, device="neuron")
    query = query.to(case.dtype)
    on_host = torch.randperm(shape[0], generator=torch.Generator().manual_seed(0))
    table = on_host.view(case.sequences, pages).int().to("neuron")
    rows = table.flatten().long()
    lengths = torch.full((case.sequences,), case.keys).int().to("neuron")
    starts, ends = (
        (torch.arange(case.sequences + 1) * n).int().to("neuron") for n in (case.tokens, case.keys)
    )
    packed = [gathered(cache, rows, case) for cache in caches]
    readable = [t.cpu() for t in packed]

    def over(keys: Tensor, values: Tensor) -> object:
        return varlen_attn(
            query, keys, values, starts, ends, case.tokens, case.keys, window_size=(-1, 0),
            enable_gqa=case.heads > case.kv_heads,
        )  # fmt: skip

    return [
        lambda: paged_attention(query, caches[0], caches[1], table, lengths, starts),
        lambda: over(*(gathered(cache, rows, case) for cache in caches)),
        lambda: over(*packed),
        lambda: [t.view(torch.int32).sum(dtype=torch.int32) for t in readable],
    ]


def gathered(cache: Tensor, rows: Tensor, case: Case) -> Tensor:
    pages = cache.index_select(0, rows).view(case.sequences, -1, *cache.shape[2:])
    return pages[:, : case.keys].flatten(0, 1)


@torch.no_grad()
def measure_all(options: argparse.Namespace, watch: quiet.Watch) -> int:
    rows = []
    print(f"{'microseconds':45} {'paged':>9} {'gathered':>9} {'packed':>9} {'read':>9}")
    for case in CASES:
        if re.search(options.only, case.name) is None:
            continue
        took = fastest(steps(case), options.repeats, 0.3, time.perf_counter)
        rows.append(Row(case.name, *(1e6 * t for t in took)))
        print(f"{case.name:45} " + " ".join(f"{1e6 * t:9.1f}" for t in took), flush=True)
    print(f"written to {report.write(rows, {**report.machine(), **watch.facts()})}")
    return 0


def main() -> int:
    options = quiet.parser(__doc__, repeats=7).parse_args()
    return quiet.main(options, lambda watch: measure_all(options, watch))


if __name__ == "__main__":
    sys.exit(main())
