"""The elementwise, norm, random and optimizer kernels of the native core against torch on cpu.

    python -m benchmarks.kernels [--only REGEX] [--threads N]

Each row runs torch's operator on CPU tensors (which allocates its result, as eager mode does) and
our kernel into reused memory (as the device's allocator gives it) in turn, in one process, keeping
the fastest sample of each. `ratio` is cpu time / our time. Nothing is reported from a busy machine
unless --allow-load is given, which marks the result. Exit code: 0 when all targets are met, 1 when
one is missed, 2 when the machine was too busy to measure.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from benchmarks import quiet, report

SIZE = 4096  # rows and columns
RANDOM = 1 << 22  # elements
PARAMETERS, ELEMENTS = 50, 1_000_000
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LR, BETA1, BETA2, EPS, DECAY = 1e-3, 0.9, 0.999, 1e-8, 1e-2
# Numbers of enum class Op in csrc/kernels/multi_tensor.h.
SQRT, ADD_SCALAR, MUL_SCALAR, DIV_SCALAR, LERP, ADDCMUL, ADDCDIV = 3, 8, 9, 10, 20, 22, 23

Step = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """One kernel: what torch runs, what we run, and how many times faster we should be."""

    name: str
    cpu: Step
    ours: Step
    target: float


@dataclass(frozen=True)
class Row:
    """The fastest sample of each, in milliseconds."""

    name: str
    cpu_ms: float
    ours_ms: float
    ratio: float
    target: float
    met: bool


def pointwise(core: Any, dtype: torch.dtype) -> Iterator[Case]:
    x, y = torch.randn(SIZE, SIZE).to(dtype), torch.randn(SIZE, SIZE).to(dtype)
    row, out = torch.randn(SIZE).to(dtype), torch.empty_like(x)
    name = str(dtype).removeprefix("torch.")
    unary: list[tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = [
        ("gelu", functional.gelu),
        ("gelu tanh", lambda t: functional.gelu(t, approximate="tanh")),
        ("silu", functional.silu),
        ("sigmoid", torch.sigmoid),
        ("tanh", torch.tanh),
        ("relu", torch.relu),
        ("exp", torch.exp),
    ]
    for number, (op, reference) in enumerate(unary):

        def cpu(reference: Callable[[torch.Tensor], torch.Tensor] = reference) -> object:
            return reference(x)

        def ours(number: int = number) -> None:
            core.kernel_unary(number, x, out)

        target = 4.0 if op == "gelu" else 1.0
        yield Case(f"{name} {op}", cpu, ours, target)
    yield Case(
        f"{name} gelu backward",
        lambda: torch.ops.aten.gelu_backward(y, x),
        lambda: core.kernel_unary_grad(0, y, x, out),
        1.0,
    )
    yield Case(f"{name} add", lambda: x + y, lambda: core.kernel_binary(0, x, y, out, 1.0), 4.0)
    yield Case(
        f"{name} mul by row",
        lambda: x * row,
        lambda: core.kernel_binary_row(2, x, row, out, 1.0, reverse=False),
        1.0,
    )


def norms(core: Any, dtype: torch.dtype) -> Iterator[Case]:
    x, y = torch.randn(SIZE, SIZE).to(dtype), torch.randn(SIZE, SIZE).to(dtype)
    weight, soft, out = torch.randn(SIZE).to(dtype), x.softmax(1), torch.empty_like(x)
    mean, rstd = torch.empty(SIZE), torch.empty(SIZE)
    name = str(dtype).removeprefix("torch.")
    column = [t.to(dtype).reshape(SIZE, 1) for t in (x.float().mean(1), x.float().std(1))]
    grads = [torch.empty_like(weight), torch.empty_like(weight)]
    yield Case(
        f"{name} softmax",
        lambda: x.softmax(1),
        lambda: core.kernel_softmax(x, out, log=False),
        4.0,
    )
    yield Case(
        f"{name} log_softmax",
        lambda: x.log_softmax(1),
        lambda: core.kernel_softmax(x, out, log=True),
        1.0,
    )
    yield Case(
        f"{name} softmax backward",
        lambda: torch.ops.aten._softmax_backward_data(y, soft, 1, dtype),  # noqa: SLF001
        lambda: core.kernel_softmax_backward(y, soft, out, log=False),
        1.0,
    )
    yield Case(
        f"{name} layer_norm",
        lambda: functional.layer_norm(x, (SIZE,), weight, weight),
        lambda: core.kernel_layer_norm(x, weight, weight, 1e-5, out, mean, rstd),
        4.0,
    )
    yield Case(
        f"{name} layer_norm backward",
        lambda: torch.ops.aten.native_layer_norm_backward(
            y, x, [SIZE], *column, weight, weight, [True] * 3
        ),
        lambda: core.kernel_layer_norm_backward(y, x, mean, rstd, weight, out, *grads),
        1.0,
    )
    yield Case(
        f"{name} rms_norm",
        lambda: functional.rms_norm(x, (SIZE,), weight),
        lambda: core.kernel_rms_norm(x, weight, 1e-5, out, rstd),
        1.0,
    )


def random(core: Any, dtype: torch.dtype) -> Iterator[Case]:
    out, mask = torch.empty(RANDOM, dtype=dtype), torch.empty(RANDOM, dtype=torch.bool)
    x = torch.randn(RANDOM).to(dtype)
    name = str(dtype).removeprefix("torch.")
    fills: list[tuple[str, Step, tuple[float, float]]] = [
        ("uniform", out.uniform_, (0.0, 1.0)),
        ("normal", out.normal_, (0.0, 1.0)),
        ("exponential", out.exponential_, (1.0, 0.0)),
        ("bernoulli", lambda: out.bernoulli_(0.3), (0.3, 0.0)),
        ("random_full", out.random_, (0.0, 0.0)),
    ]
    for fill, cpu, (a, b) in fills:
        kernel = getattr(core, f"kernel_philox_{fill}")

        def ours(kernel: Any = kernel, a: float = a, b: float = b) -> object:
            return kernel(1, 0, out, a, b)

        yield Case(f"{name} {fill}", cpu, ours, 1.0)
    yield Case(
        f"{name} dropout",
        lambda: torch.native_dropout(x, 0.1, train=True),
        lambda: core.kernel_philox_dropout(1, 0, x, out, mask, 0.1, 1 / 0.9),
        1.0,
    )


def adamw(core: Any) -> Iterator[Case]:
    """A step of AdamW over many tensors, in torch's default form and its fused one."""
    start = [torch.randn(ELEMENTS) for _ in range(PARAMETERS)]
    groups: list[list[torch.Tensor | None]] = [
        [p.clone(), p * 0.1, torch.zeros_like(p), torch.zeros_like(p), None] for p in start
    ]
    steps = [
        (MUL_SCALAR, 0, 0, 0, 0, 1 - LR * DECAY),
        (LERP, 2, 2, 1, 0, 1 - BETA1),
        (MUL_SCALAR, 3, 3, 0, 0, BETA2),
        (ADDCMUL, 3, 3, 1, 1, 1 - BETA2),
        (SQRT, 4, 3, 0, 0, 0.0),
        (DIV_SCALAR, 4, 4, 0, 0, (1 - BETA2) ** 0.5),
        (ADD_SCALAR, 4, 4, 0, 0, EPS),
        (ADDCDIV, 0, 0, 2, 4, -LR / (1 - BETA1)),
    ]
    for name, fused, target in (("default", None, 4.0), ("fused", True, 0.7)):
        parameters = [torch.nn.Parameter(p.clone()) for p in start]
        for p in parameters:
            p.grad = p.detach() * 0.1
        optimizer = torch.optim.AdamW(parameters, lr=LR, fused=fused)
        yield Case(
            f"AdamW {PARAMETERS} x 1M, cpu {name}",
            optimizer.step,
            lambda: core.kernel_run_program(steps, 5, groups, []),
            target,
        )


def cases(core: Any) -> Iterator[Case]:
    for dtype in DTYPES:
        yield from pointwise(core, dtype)
        yield from norms(core, dtype)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        yield from random(core, dtype)
    out = torch.empty(1 << 20, dtype=torch.int64)
    yield Case(
        "randperm 1M",
        lambda: torch.randperm(1 << 20),
        lambda: core.kernel_philox_randperm(1, 0, out, 0.0, 0.0),
        1.0,
    )
    yield from adamw(core)


def measure(case: Case, repeats: int) -> Row:
    best = [float("inf")] * 2
    for _ in range(repeats + 1):  # the first is the warm-up, never the fastest
        for i, step in enumerate((case.cpu, case.ours)):
            start = time.perf_counter()
            step()
            best[i] = min(best[i], 1000 * (time.perf_counter() - start))
    ratio = best[0] / best[1]
    return Row(case.name, best[0], best[1], ratio, case.target, ratio >= case.target)


def measure_all(options: argparse.Namespace, watch: quiet.Watch) -> int:
    module = os.environ.get("TORCH_NEURONX_KERNELS_TEST_MODULE", "torch_neuronx._C")
    core: Any = importlib.import_module(module)
    rows = []
    print(f"{'kernel':32} {'cpu ms':>9} {'ours ms':>9} ratio")
    for case in cases(core):
        if re.search(options.only, case.name) is None:
            continue
        row = measure(case, options.repeats)
        rows.append(row)
        verdict = "" if row.met else f"  < {row.target:g}"
        print(
            f"{row.name:32} {row.cpu_ms:9.2f} {row.ours_ms:9.2f} {row.ratio:5.2f}{verdict}",
            flush=True,
        )
    missed = sum(not row.met for row in rows)
    facts = {**report.machine(), **watch.facts(), "instruction_set": core.kernel_isa()}
    print(f"{len(rows)} rows, {missed} below target; {options.threads} threads")
    print(f"written to {report.write(rows, facts)}")
    return 1 if missed else 0


def main() -> int:
    options = quiet.parser(__doc__, repeats=10).parse_args()
    return quiet.main(options, lambda watch: measure_all(options, watch))


if __name__ == "__main__":
    sys.exit(main())
