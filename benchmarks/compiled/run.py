"""Measure compiled programs against Inductor and XLA, all in one process, in turn.

    python -m benchmarks.compiled.run [--only REGEX] [--list]

Inductor runs as installed, and at its best: with oneDNN for float32 matrix products and, for
inference, frozen weights. XLA is `jax.jit` of an equal function on the same numbers. A ratio is the
rival's time / ours. Results are compared before they are timed. Exit code: 0 when all targets are
met, 1 when one is missed, 2 when the machine was too busy to measure.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from benchmarks import quiet, suite
from benchmarks.compiled import functions
from benchmarks.harness import SAMPLE_SECONDS, sample

if TYPE_CHECKING:
    import argparse

# XLA gives memory back in the background after a step, which cost the next one up to 10 ms.
SETTLE_SECONDS = 0.05

CPU, NEURON = torch.device("cpu"), torch.device("neuron")
F32, BF16 = torch.float32, torch.bfloat16

Step = Callable[[], Any]


@dataclass(frozen=True)
class Workload:
    """What is compiled, and the targets against Inductor, Inductor at its best, and XLA."""

    name: str
    make: Callable[[torch.device], functions.Case]
    targets: tuple[float, float, float | None]
    xla: str = ""  # name in benchmarks.compiled.jax_functions
    xla_args: tuple[Any, ...] = ()
    tolerance: float = 1e-4  # largest difference / largest result


@dataclass(frozen=True)
class Row:
    """Milliseconds of everybody and how many times slower the rivals are than `neuron`."""

    workload: str
    neuron_ms: float
    inductor_ms: float
    best_ms: float
    xla_ms: float | None
    ratios: tuple[float, float, float | None]
    targets: tuple[float, float, float | None]
    met: bool


def _gpt2(batch: int, tokens: int, dtype: torch.dtype) -> Workload:
    short = {F32: "f32", BF16: "bf16"}[dtype]
    targets = (2.5, 1.25, 1.25) if dtype == F32 else (1.4, 1.3, 3)
    make = partial(functions.gpt2, batch=batch, tokens=tokens, dtype=dtype)
    name = f"GPT-2 small forward {batch}x{tokens} {short}"
    tolerance = 1e-4 if dtype == F32 else 5e-2
    return Workload(name, make, targets, "gpt2", (batch, tokens, dtype), tolerance)


def _decode(batch: int, dtype: torch.dtype) -> Workload:
    short = {F32: "f32", BF16: "bf16"}[dtype]
    make = partial(functions.decode, batch=batch, dtype=dtype)
    name = f"GPT-2 small one token, batch {batch} {short}"
    tolerance = 1e-4 if dtype == F32 else 5e-2
    return Workload(name, make, (2, 1.5, 1.5), "decode", (batch, dtype), tolerance)


def table() -> list[Workload]:
    """All workloads in the order of the report."""
    return [
        Workload("tiny call, 16 elements", functions.tiny, (1, 1, None), "tiny"),
        Workload("gelu 4096x4096 f32", functions.gelu, (5, 2, 4), "gelu"),
        Workload("RMSNorm 4096x4096 f32", functions.norm, (5, 2, 4), "norm"),
        Workload("LayerNorm 4096x4096 f32", functions.layer_norm, (5, 2, 4), "layer_norm"),
        Workload("softmax 4096x4096 f32", functions.softmax, (5, 2, 4), "softmax"),
        Workload(
            "gelu 4096x4096 bf16",
            partial(functions.gelu, dtype=BF16),
            (8, 2, 4),
            "gelu",
            ("bfloat16",),
            1e-2,
        ),
        Workload("AdamW 50 x 1M, compiled step", functions.adamw, (1.5, 1.4, 1.5), "adamw"),
        *(_gpt2(*shape, dtype) for dtype in (F32, BF16) for shape in ((1, 256), (4, 128))),
        *(_decode(batch, dtype) for dtype in (F32, BF16) for batch in (4, 8)),
        Workload("training step 8x256 f32", functions.training, (2, 1.2, 2), "training"),
        Workload(
            "ResNet-18 shape 8x3x224x224 f32", functions.resnet, (1.15, 1.1, 2), "resnet", (), 1e-3
        ),
        Workload("MiniLM 32 x 64 tokens f32", functions.minilm, (2.2, 1.2, None)),
    ]


@contextmanager
def onednn_products() -> Iterator[None]:
    """float32 matrix products by oneDNN: twice MKL's speed on some AMD processors."""
    switch: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = switch.fp32_precision
    switch.fp32_precision = "bf16"
    try:
        yield
    finally:
        switch.fp32_precision = before


def neuron_step(workload: Workload, backend: str) -> Step:
    case = workload.make(NEURON)
    return partial(case.call, torch.compile(case.function, backend=backend))


def inductor_step(workload: Workload) -> Step:
    case = workload.make(CPU)
    return partial(case.call, torch.compile(case.function))


def best_inductor_step(workload: Workload) -> Step:
    case = workload.make(CPU)
    compiled = torch.compile(case.function, options={"freezing": True})

    def step() -> object:
        with onednn_products():
            return case.call(compiled)

    return step


def xla_step(workload: Workload) -> Step | None:
    if not workload.xla:
        return None
    from benchmarks.compiled import jax_functions  # noqa: PLC0415 - jax is optional

    step: Step = getattr(jax_functions, workload.xla)(*workload.xla_args)
    return step


def largest_difference(ours: Any, theirs: Any) -> float:
    """Over the largest magnitude of `theirs`; tensors only."""
    a, b = ours.detach().cpu().float(), theirs.detach().cpu().float()
    return float((a - b).abs().max() / b.abs().max())


def measure(workload: Workload, options: argparse.Namespace) -> Row:
    torch.compiler.reset()
    steps = [
        neuron_step(workload, options.backend),
        inductor_step(workload),
        best_inductor_step(workload),
        *filter(None, [xla_step(workload)]),
    ]
    results = [step() for step in steps]
    for theirs in results[1:3]:
        if isinstance(theirs, torch.Tensor):
            difference = largest_difference(results[0], theirs)
            if not difference <= workload.tolerance:
                raise AssertionError(f"{workload.name}: results differ by {difference:.2g}")
    if len(results) == 4 and isinstance(results[0], torch.Tensor):
        theirs = torch.tensor(results[3].astype("float32").tolist())
        difference = largest_difference(results[0], theirs)
        if not difference <= workload.tolerance:
            raise AssertionError(f"{workload.name}: XLA differs by {difference:.2g}")
    for step in steps:
        sample(step, 2)
    times = [max(1, round(SAMPLE_SECONDS / sample(step, 1))) for step in steps]
    samples: list[list[float]] = [[] for _ in steps]
    for repeat in range(options.repeats):
        for turn in range(len(steps)):
            chosen = (repeat + turn) % len(steps)  # everybody follows everybody
            time.sleep(SETTLE_SECONDS)
            samples[chosen].append(sample(steps[chosen], times[chosen]))
    ours, inductor, best, *others = (1000 * min(column) for column in samples)
    xla = others[0] if others else None
    ratios = (inductor / ours, best / ours, None if xla is None else xla / ours)
    met = all(
        target is None or ratio is None or ratio >= target
        for ratio, target in zip(ratios, workload.targets, strict=True)
    )
    return Row(workload.name, ours, inductor, best, xla, ratios, workload.targets, met)


def line(row: Row) -> str:
    def pair(ratio: float | None, target: float | None) -> str:
        return "       -     " if ratio is None else f"{ratio:6.2f} ({target or 0:4.4g})"

    xla = "       -" if row.xla_ms is None else f"{row.xla_ms:8.3f}"
    times = f"{row.neuron_ms:8.3f} {row.inductor_ms:8.3f} {row.best_ms:8.3f} {xla}"
    ratios = " ".join(pair(*both) for both in zip(row.ratios, row.targets, strict=True))
    return f"{row.workload:34} {times} {ratios}"


COLUMNS = " ".join(f"{name:>8}" for name in ("neuron", "inductor", "its best", "XLA"))
HEADER = f"{'workload (ms; times slower, target)':34} {COLUMNS}"


def run(chosen: list[Workload], options: argparse.Namespace, watch: quiet.Watch) -> int:
    def rows() -> Iterator[Row]:
        for workload in chosen:
            yield measure(workload, options)
            gc.collect()

    return suite.tell(HEADER, rows(), line, options, watch)


def main() -> int:
    parser = quiet.parser(__doc__, repeats=9)
    parser.add_argument("--backend", default="neuron", help="what to compile with (%(default)s)")
    return suite.main(parser, table(), run)


if __name__ == "__main__":
    sys.exit(main())
