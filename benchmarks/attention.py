"""Fused attention of the native core against PyTorch's flash kernel on cpu.

    python -m benchmarks.attention [--only REGEX] [--threads N] [--cpu-time]

Each row is one pass (forward or backward), timed in turn by both, in one process, on CPU tensors,
keeping the fastest sample of each. `ratio` is cpu time / our time. Operands are laid out as the
projections of a model leave them, [batch, length, heads, width] in memory, but for decoding, where
keys and values are a cache [batch, heads, length, width]. Nothing is reported from a busy machine
unless --allow-load is given; with --cpu-time, which measures the processor time of one thread,
other programs disturb little. Exit code: 0 when all targets are met, 1 when one is missed, 2 when
the machine was too busy to measure.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks import quiet, report

LEAST = 0.95  # of every row that has no target of its own
SAMPLE_SECONDS = 0.003
FLOAT32, BFLOAT16, FLOAT16 = torch.float32, torch.bfloat16, torch.float16
FLASH = "_scaled_dot_product_flash_attention_for_cpu"
CPU_FORWARD: Any = getattr(torch.ops.aten, FLASH)
CPU_BACKWARD: Any = getattr(torch.ops.aten, FLASH + "_backward")

Step = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """Queries [batch, heads, queries, width] against keys [batch, kv_heads, keys, width]."""

    batch: int
    heads: int
    queries: int
    keys: int
    width: int
    dtype: torch.dtype = FLOAT32
    causal: bool = False
    mask: bool = False
    kv_heads: int = 0  # 0: as many as heads
    target: float = LEAST

    @property
    def name(self) -> str:
        grouped = f"/{self.kv_heads}" if self.kv_heads else ""
        size = f"{self.batch}x{self.heads}{grouped}x{self.queries}x{self.keys}x{self.width}"
        flags = " causal" * self.causal + " mask" * self.mask
        return f"{str(self.dtype).removeprefix('torch.')} {size}{flags}"


@dataclass
class Row:
    name: str
    cpu_us: float
    ours_us: float
    ratio: float
    gflops: float
    target: float
    met: bool


# batch, heads, queries, keys, width
PLAIN = [
    (1, 12, 256, 256, 64),
    (32, 12, 64, 64, 32),  # MiniLM
    (1, 12, 512, 512, 64),
    (2, 8, 300, 300, 128),
    (2, 4, 77, 77, 80),
    (16, 8, 16, 16, 32),
    (8, 12, 197, 197, 64),  # a vision transformer
    (1, 8, 2048, 2048, 64),
    (1, 4, 512, 512, 256),
    (1, 1, 64, 4096, 64),
    (2, 5, 33, 65, 40),
    (1, 12, 9, 512, 64),
    (1, 12, 16, 512, 64),
    (1, 12, 24, 512, 64),
    (64, 4, 2, 2, 8),
    (1, 1, 1, 1, 1),
]
CAUSAL = [
    (4, 12, 128, 128, 64),  # GPT-2
    (1, 12, 256, 256, 64),
    (8, 6, 256, 256, 64),  # the training step of benchmarks/models.py
    (1, 12, 1024, 1024, 64),
    (1, 8, 2048, 2048, 64),
    (2, 16, 50, 50, 128),
]
DECODE = [
    (4, 12, 1, 1024, 64),
    (8, 12, 1, 1024, 64),
    (1, 12, 1, 128, 64),
    (1, 2, 1, 8192, 64),
    (1, 8, 4, 1000, 128),
    (1, 12, 8, 512, 64),
]


def cases() -> Iterator[Case]:
    for dtype in (FLOAT32, BFLOAT16, FLOAT16):
        for shape in PLAIN:
            yield Case(*shape, dtype)
        for shape in CAUSAL:
            yield Case(*shape, dtype, causal=True)
        for shape in DECODE:
            yield Case(*shape, dtype)
        yield Case(4, 12, 128, 128, 64, dtype, mask=True)
        yield Case(8, 12, 1, 1024, 64, dtype, mask=True)
        yield Case(1, 32, 256, 256, 64, dtype, causal=True, kv_heads=8)
        yield Case(1, 32, 1, 1024, 64, dtype, kv_heads=8)
        yield Case(1, 32, 1, 1024, 128, dtype, kv_heads=4)


def operands(case: Case) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Query, key, value, gradient of the result."""

    def tensor(heads: int, length: int, cache: bool) -> Tensor:
        if cache:
            return torch.randn(case.batch, heads, length, case.width).to(case.dtype)
        return torch.randn(case.batch, length, heads, case.width).to(case.dtype).transpose(1, 2)

    kv_heads, cached = case.kv_heads or case.heads, case.queries <= 8 < case.keys
    return (
        tensor(case.heads, case.queries, cache=False),
        tensor(kv_heads, case.keys, cached),
        tensor(kv_heads, case.keys, cached),
        tensor(case.heads, case.queries, cache=False),
    )


def fastest(
    steps: list[Step], repeats: int, seconds: float, clock: Callable[[], float]
) -> list[float]:
    """Seconds per call of each step: the minimum over samples taken in turn."""
    counts = []
    for step in steps:
        step()
        start = clock()
        step()
        counts.append(max(1, round(SAMPLE_SECONDS / max(clock() - start, 1e-7))))
    best = [float("inf")] * len(steps)
    began = time.perf_counter()
    for repeat in range(1000):
        if repeat >= repeats and time.perf_counter() - began > seconds:
            break
        for i, (step, count) in enumerate(zip(steps, counts, strict=True)):
            start = clock()
            for _ in range(count):
                step()
            best[i] = min(best[i], (clock() - start) / count)
    return best


def passes(core: Any, case: Case) -> Iterator[tuple[str, float, Step, Step]]:
    """Name, matrix products, step of PyTorch's and of ours."""
    q, k, v, g = operands(case)
    mask = torch.randn(case.batch, 1, 1, case.keys).to(case.dtype) if case.mask else None
    causal = case.causal

    def cpu_forward() -> tuple[Tensor, Tensor]:
        result: tuple[Tensor, Tensor] = CPU_FORWARD(q, k, v, 0.0, causal, attn_mask=mask)
        return result

    def forward() -> tuple[Tensor, Tensor]:
        result: tuple[Tensor, Tensor] = core.attention_forward(q, k, v, mask, causal)
        return result

    yield "forward", 2, cpu_forward, forward
    if case.kv_heads:  # PyTorch's backward kernel does not share keys
        return
    out, logsumexp = forward()
    yield (
        "backward",
        5,
        lambda: CPU_BACKWARD(g, q, k, v, out, logsumexp, 0.0, causal, attn_mask=mask),
        lambda: core.attention_backward(g, q, k, v, out, logsumexp, mask, causal),
    )


def keep_freed_memory() -> None:
    """Let the allocator reuse large blocks: new pages would cost both sides more than the work."""
    libc = ctypes.CDLL(None)
    trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of malloc.h
    for parameter in (trim_threshold, mmap_threshold):
        if libc.mallopt(parameter, 1 << 30) != 1:
            raise OSError(f"mallopt refused parameter {parameter}")


def measure_all(options: argparse.Namespace, watch: quiet.Watch) -> int:
    core: Any = importlib.import_module("torch_neuronx._C")
    keep_freed_memory()
    clock = time.thread_time if options.cpu_time else time.perf_counter
    rows = []
    print(
        f"{'batch x heads x queries x keys x width':51} {'cpu us':>10} {'ours us':>10} ratio  GF/s"
    )
    for case in cases():
        for direction, products, cpu, ours in passes(core, case):
            name = f"{case.name} {direction}"
            if re.search(options.only, name) is None:
                continue
            cpu_s, ours_s = fastest([cpu, ours], options.repeats, 0.15, clock)
            work = case.batch * case.heads * case.queries * case.keys * case.width
            gflops = 2e-9 * products * work * (0.5 if case.causal else 1.0) / ours_s
            ratio = cpu_s / ours_s
            row = Row(
                name, 1e6 * cpu_s, 1e6 * ours_s, ratio, gflops, case.target, ratio >= case.target
            )
            rows.append(row)
            print(
                f"{row.name:51} {row.cpu_us:10.1f} {row.ours_us:10.1f} {row.ratio:5.2f}"
                f" {row.gflops:7.1f}{'' if row.met else f'  < {row.target:g}'}",
                flush=True,
            )
    missed = sum(not row.met for row in rows)
    facts = {**report.machine(), **watch.facts(), "cpu_time_of_one_thread": options.cpu_time}
    print(f"{len(rows)} rows, {missed} below target; {torch.get_num_threads()} threads")
    print(f"written to {report.write(rows, facts)}")
    return 1 if missed else 0


def main() -> int:
    parser = quiet.parser(__doc__, repeats=7)
    parser.add_argument(
        "--cpu-time", action="store_true", help="processor time of one thread (sets --threads 1)"
    )
    options = parser.parse_args()
    if options.cpu_time:
        options.threads, options.allow_load = 1, True
    return quiet.main(options, lambda watch: measure_all(options, watch))


if __name__ == "__main__":
    sys.exit(main())
