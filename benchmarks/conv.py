"""Convolutions of the native core against torch on cpu, layer by layer.

    python -m benchmarks.conv [--only REGEX] [--threads N]

Each row is one convolution, timed in turn by torch.conv2d, by ours with the filters' transformed
form kept from call to call, and by ours as in training, where the filters change. One process, the
fastest sample of each counts, and memory of results is reused on both sides (PyTorch's allocator
would otherwise return it to the operating system after every call and pay for new pages). `ratio`
is cpu time / our time, `changing` the same with changing filters. A convolution that is left to
ATen runs the same code on both sides and shows as `aten`, ratio 1. Nothing is reported from a busy
machine unless --allow-load is given, which marks the result. Exit code: 0 when all targets are met,
1 when one is missed, 2 when the machine was too busy to measure.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from benchmarks import quiet, report
from benchmarks.gemm import fastest

if TYPE_CHECKING:
    import argparse

LEAST = 0.95  # of every row that has no target of its own
# Of glibc's malloc.h: keep freed memory, however large the blocks.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


@dataclass(frozen=True)
class Case:
    """A square convolution; `padding` keeps the size if `side` is odd and `stride` is 1."""

    batch: int
    inputs: int
    size: int
    outputs: int
    side: int = 3
    stride: int = 1
    padding: int = 1
    last: bool = False  # channels last
    target: float = LEAST

    @property
    def name(self) -> str:
        last = " last" if self.last else ""
        stride = f"/{self.stride}" if self.stride > 1 else ""
        sizes = f"{self.batch}x{self.inputs}x{self.size}x{self.size}"
        return f"{self.side}x{self.side}{stride} {sizes} -> {self.outputs}{last}"


@dataclass
class Row:
    name: str
    method: str
    cpu_us: float
    ours_us: float
    changing_us: float
    ratio: float
    ratio_changing: float
    gflops: float  # of a plain sum, so that methods can be compared
    target: float
    met: bool


def cases() -> list[Case]:
    """ResNet-18's layers first, then what must not become slower."""
    resnet18 = [
        Case(8, 3, 224, 64, 7, 2, 3),
        *(Case(8, *s, target=2.0) for s in ((64, 56, 64), (128, 28, 128), (256, 14, 256))),
        Case(8, 512, 7, 512, target=1.8),
        *(Case(8, c, s, 2 * c, stride=2) for c, s in ((64, 56), (128, 28), (256, 14))),
        *(Case(8, c, s, 2 * c, 1, 2, 0) for c, s in ((64, 56), (128, 28), (256, 14))),
    ]
    resnet50 = [
        Case(8, *s, side=1, padding=0)
        for s in ((64, 56, 256), (256, 56, 64), (512, 28, 128), (1024, 14, 256), (2048, 7, 512))
    ]
    last = [Case(8, c, s, c, last=True) for c, s in ((64, 56), (128, 28), (256, 14), (512, 7))]
    last += [Case(8, 256, 56, 64, 1, padding=0, last=True)]
    sizes = (4, 5, 7, 8, 14, 28, 56)
    small = [Case(1, c, s, c) for c in (16, 64, 256) for s in sizes]
    small += [Case(1, 512, s, 512) for s in (7, 14)]
    others = [Case(1, 3, 224, 64), Case(1, 64, 224, 64), Case(32, 64, 8, 64), Case(2, 320, 64, 320)]
    others += [Case(4, 32, 28, 128), Case(4, 128, 28, 32), Case(4, 24, 30, 40)]
    return [*resnet18, *resnet50, *last, *small, *others]


def measure(core: Any, case: Case, repeats: int) -> Row:
    layout = torch.channels_last if case.last else torch.contiguous_format
    x = torch.randn(case.batch, case.inputs, case.size, case.size).to(memory_format=layout)
    weight = torch.randn(case.outputs, case.inputs, case.side, case.side) / case.inputs
    weight = weight.to(memory_format=layout)

    def cpu() -> torch.Tensor:
        return torch.conv2d(x, weight, None, case.stride, case.padding)

    out = cpu()
    stride, padding = (case.stride,) * 2, (case.padding,) * 2

    def ours() -> object:
        return core.conv_run(x, weight, out, stride=stride, padding=padding, generation=1)

    def changing() -> object:
        return core.conv_run(x, weight, out, stride=stride, padding=padding)

    method = core.conv_method(x, weight, out, stride=stride, padding=padding)
    if method == "aten":
        cpu_s = ours_s = changing_s = fastest([cpu], 3, 0.0)[0]
    else:
        ours()  # the filters are kept when they are seen for the second time
        cpu_s, ours_s, changing_s = fastest([cpu, ours, changing], repeats, 0.3)
    core.gemm_clear_packed()
    ratios = cpu_s / ours_s, cpu_s / changing_s
    gflops = 2e-9 * out.numel() * case.inputs * case.side**2 / ours_s
    met = ratios[0] >= case.target and ratios[1] >= LEAST
    times = 1e6 * cpu_s, 1e6 * ours_s, 1e6 * changing_s
    return Row(case.name, method, *times, *ratios, gflops, case.target, met)


def measure_all(options: argparse.Namespace, watch: quiet.Watch) -> int:
    module = os.environ.get("TORCH_NEURONX_GEMM_TEST_MODULE", "torch_neuronx._C")
    core: Any = importlib.import_module(module)
    malloc = ctypes.CDLL(None)
    malloc.mallopt(M_MMAP_THRESHOLD, 1 << 30)
    malloc.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)
    rows = []
    print(f"{'convolution':34} {'method':8} {'cpu us':>9} {'ours us':>9} ratio changing GFLOP/s")
    with torch.no_grad():
        for case in cases():
            if re.search(options.only, case.name) is None:
                continue
            row = measure(core, case, options.repeats)
            rows.append(row)
            verdict = "" if row.met else f"  < {row.target:g}"
            print(
                f"{row.name:34} {row.method:8} {row.cpu_us:9.1f} {row.ours_us:9.1f}"
                f" {row.ratio:5.2f} {row.ratio_changing:8.2f} {row.gflops:7.1f}{verdict}",
                flush=True,
            )
    missed = sum(not row.met for row in rows)
    facts = {**report.machine(), **watch.facts(), "threads": options.threads}
    print(f"{len(rows)} rows, {missed} below target; {options.threads} threads")
    print(f"written to {report.write(rows, facts)}")
    return 1 if missed else 0


def main() -> int:
    options = quiet.parser(__doc__, repeats=7).parse_args()
    return quiet.main(options, lambda watch: measure_all(options, watch))


if __name__ == "__main__":
    sys.exit(main())
