"""Matrix products of the native core against torch on cpu, over a long list of shapes.

    python -m benchmarks.gemm [--only REGEX] [--threads N]

Each row is one product, timed in turn by both, in one process, keeping the fastest sample of each.
`ratio` is cpu time / our time. A row whose shape is left to ATen runs the same code on both sides
and shows as `aten`, ratio 1. Nothing is reported from a busy machine unless --allow-load is given,
which marks the result. Exit code: 0 when all targets are met, 1 when one is missed, 2 when the
machine was too busy to measure.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from benchmarks import quiet, report

if TYPE_CHECKING:
    from collections.abc import Callable

LEAST = 0.95  # of every row that has no target of its own
SAMPLE_SECONDS = 0.002
FLOAT32, BFLOAT16, FLOAT16 = torch.float32, torch.bfloat16, torch.float16


@dataclass(frozen=True)
class Case:
    """a @ b with b of the layout's second letter; T: that operand is a transposed view."""

    m: int
    k: int
    n: int
    dtype: torch.dtype = FLOAT32
    layout: str = "NT"  # as F.linear: x @ w.t()
    batch: int = 0
    target: float = LEAST
    weight: bool = False  # b is the same in every call and may be kept packed

    @property
    def name(self) -> str:
        batch = f"{self.batch}x" if self.batch else ""
        kept = " kept" if self.weight else ""
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{dtype} {batch}{self.m}x{self.k}x{self.n} {self.layout}{kept}"


@dataclass
class Row:
    name: str
    method: str
    cpu_us: float
    ours_us: float
    ratio: float
    gflops: float
    percent_of_peak: float
    target: float
    met: bool


LINEAR = [(256, 768, 3072), (256, 3072, 768), (1024, 1024, 1024)]
SMALL_M = [(1, 768, 3072), (2, 768, 3072), (8, 768, 3072), (16, 768, 3072), (32, 768, 3072)]
ODD = [
    (1, 1, 1),
    (7, 13, 5),
    (2, 3, 2),
    (16, 16, 16),
    (17, 33, 65),
    (64, 64, 64),
    (100, 100, 100),
    (127, 129, 131),
    (333, 77, 555),
    (512, 1, 512),
    (1, 4096, 1),
    (512, 512, 1),
    (1, 512, 512),
    (4096, 16, 4096),
    (16, 4096, 16),
    (64, 20000, 64),
    (3000, 64, 10),
    (10, 64, 3000),
    (1000, 1000, 24),
    (24, 1000, 1000),
]
BATCHED = [(48, 256, 64, 256), (48, 256, 256, 64), (96, 128, 32, 128), (8, 512, 64, 512)]


def cases() -> list[Case]:
    """The targets of the project first, then what must not become slower."""
    found = [Case(*s, weight=w, target=2.2) for s in LINEAR for w in (False, True)]
    found += [Case(4, 768, 3072, weight=w, target=4.0) for w in (False, True)]
    for dtype in (BFLOAT16, FLOAT16):
        found += [Case(*s, dtype, target=1.1) for s in [*LINEAR, (4, 768, 3072)]]
    for layout in ("NN", "TN"):  # dX = dY W and dW = dY^T X
        found += [Case(*s, layout=layout, target=1.5) for s in LINEAR]
        found += [Case(*s, BFLOAT16, layout) for s in LINEAR]
    for b, m, k, n in BATCHED:
        found += [Case(m, k, n, layout=la, batch=b, target=1.5) for la in ("NT", "NN", "TN")]
        found += [Case(m, k, n, BFLOAT16, la, b) for la in ("NT", "NN", "TN")]
    found += [Case(1, 64, 128, layout=la, batch=96) for la in ("NT", "NN")]
    for dtype in (FLOAT32, BFLOAT16, FLOAT16):
        for layout in ("NT", "NN", "TN", "TT"):
            found += [Case(*s, dtype, layout) for s in [*SMALL_M, *ODD]]
    for dtype in (FLOAT32, BFLOAT16):
        for layout in ("NT", "NN"):
            found += [Case(m, 768, 50257, dtype, layout) for m in (1, 256)]
    return found


def operand(case: Case, rows: int, cols: int, transposed: bool) -> torch.Tensor:
    batch = [case.batch] if case.batch else []
    if transposed:
        return torch.randn(*batch, cols, rows).to(case.dtype).transpose(-1, -2)
    return torch.randn(*batch, rows, cols).to(case.dtype)


def fastest(steps: list[Callable[[], object]], repeats: int, seconds: float) -> list[float]:
    """Seconds per call of each step: the minimum over samples taken in turn."""
    counts = []
    for step in steps:
        step()
        start = time.perf_counter()
        step()
        counts.append(max(1, round(SAMPLE_SECONDS / max(time.perf_counter() - start, 1e-7))))
    best = [float("inf")] * len(steps)
    began = time.perf_counter()
    for repeat in range(1000):
        if repeat >= repeats and time.perf_counter() - began > seconds:
            break
        for i, (step, count) in enumerate(zip(steps, counts, strict=True)):
            start = time.perf_counter()
            for _ in range(count):
                step()
            best[i] = min(best[i], (time.perf_counter() - start) / count)
    return best


def measure(core: Any, case: Case, repeats: int, peak: float) -> Row:
    a = operand(case, case.m, case.k, case.layout[0] == "T")
    b = operand(case, case.k, case.n, case.layout[1] == "T")
    batch = [case.batch] if case.batch else []
    out = torch.empty(*batch, case.m, case.n, dtype=case.dtype)
    generation = int(case.weight)
    method = core.gemm_method(a, b, out)

    def ours() -> object:
        return core.gemm_run(a, b, out, None, 1.0, 0.0, generation)

    def cpu() -> object:
        return torch.matmul(a, b, out=out)

    if method == "aten":
        cpu_s = ours_s = fastest([cpu], 3, 0.0)[0]
    else:
        cpu_s, ours_s = fastest([cpu, ours], repeats, 0.1)
    core.gemm_clear_packed()
    gflops = 2e-9 * max(case.batch, 1) * case.m * case.n * case.k / ours_s
    # bfloat16 pairs double the arithmetic of an instruction; float16 is computed in float32.
    percent = 100 * gflops / (peak * (2 if case.dtype == BFLOAT16 else 1))
    ratio = cpu_s / ours_s
    met = ratio >= case.target
    return Row(
        case.name, method, 1e6 * cpu_s, 1e6 * ours_s, ratio, gflops, percent, case.target, met
    )


def measured_peak(core: Any) -> float:
    """GFLOP/s of float32 on all threads, operands in the first cache: the micro-kernel alone."""
    m, k, n = 48, 256, 64
    copies = 64 * torch.get_num_threads()
    a, b = torch.randn(1, m, k).expand(copies, m, k), torch.randn(1, k, n).expand(copies, k, n)
    out = torch.empty(1, m, n).repeat(copies, 1, 1)
    a.is_contiguous()

    def step() -> object:
        return core.gemm_run_method(a, b, out, None, 1.0, 0.0, "panel")

    return 2e-9 * copies * m * n * k / fastest([step], 20, 0.3)[0]


def measure_all(options: argparse.Namespace, watch: quiet.Watch) -> int:
    module = os.environ.get("TORCH_NEURONX_GEMM_TEST_MODULE", "torch_neuronx._C")
    core: Any = importlib.import_module(module)
    peak = measured_peak(core)
    rows = []
    print(
        f"{'product (MxKxN)':38} {'method':7} {'cpu us':>10} {'ours us':>10} ratio  GFLOP/s %peak"
    )
    for case in cases():
        if re.search(options.only, case.name) is None:
            continue
        row = measure(core, case, options.repeats, peak)
        rows.append(row)
        verdict = "" if row.met else f"  < {row.target:g}"
        print(
            f"{row.name:38} {row.method:7} {row.cpu_us:10.1f} {row.ours_us:10.1f} {row.ratio:5.2f}"
            f" {row.gflops:8.1f} {row.percent_of_peak:5.0f}{verdict}",
            flush=True,
        )
    missed = sum(not row.met for row in rows)
    facts = {
        **report.machine(),
        **watch.facts(),
        "peak_gflops_float32": peak,
        "kernels": core.gemm_kernels(),
    }
    print(f"{len(rows)} rows, {missed} below target; {options.threads} threads, micro-kernel peak")
    print(f"{peak:.0f} GFLOP/s float32")
    print(f"written to {report.write(rows, facts)}")
    return 1 if missed else 0


def main() -> int:
    options = quiet.parser(__doc__, repeats=7).parse_args()
    return quiet.main(options, lambda watch: measure_all(options, watch))


if __name__ == "__main__":
    sys.exit(main())
