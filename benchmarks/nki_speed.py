"""Kernels of NKI against the device's own operators and against the NumPy reference.

    python -m benchmarks.nki_speed [--only REGEX] [--list]

A row "x / operator" is the time of a kernel on neuron tensors (recorded before) over that of the
operator that computes the same, taken in turn, the fastest sample of each. A row "reference / x" is
the time of the NumPy reference executor over the native one's, on NumPy arrays. Exit code: 0 when
all targets are met, 1 when one is missed, 2 when the machine was too busy to measure.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812 (its usual name)

from benchmarks import nki_kernels as kernels
from benchmarks import quiet, suite
from neuronxcc.environment.kernels import TORCH_NEURONX_NKI_EXECUTOR
from torch_neuronx.kernels import attention

if TYPE_CHECKING:
    import argparse

SIDE = 4096
Step = Callable[[], object]


@dataclass(frozen=True)
class Check:
    """Two ways to compute the same, and the bound of time of the first over the second.

    Attributes:
        least: the bound is a lower one.
    """

    name: str
    make: Callable[[], tuple[Step, Step]]
    bound: float
    least: bool = False


@dataclass(frozen=True)
class Row:
    """Milliseconds of both ways."""

    name: str
    first_ms: float
    second_ms: float
    ratio: float
    target: str
    met: bool


def _randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator).to(dtype).to("neuron")


def _add() -> tuple[Step, Step]:
    a, b = _randn(SIDE, SIDE), _randn(SIDE, SIDE)
    return lambda: kernels.tiled_add(a, b), lambda: a + b


def _softmax() -> tuple[Step, Step]:
    x = _randn(SIDE, SIDE)
    return lambda: kernels.softmax(x), lambda: torch.softmax(x, -1)


def _rms_norm() -> tuple[Step, Step]:
    x, weight = _randn(SIDE, SIDE), _randn(SIDE)
    return (
        lambda: kernels.rms_norm(x, weight, 1e-6),
        lambda: F.rms_norm(x, (SIDE,), weight, 1e-6),
    )


def _matmul() -> tuple[Step, Step]:
    a = _randn(2048, 2048, dtype=torch.bfloat16)
    b = _randn(2048, 2048, dtype=torch.bfloat16)
    left = a.T.contiguous()
    return lambda: kernels.blocked_matmul(a, b), lambda: left @ b


def _attention() -> tuple[Step, Step]:
    q, k, v = (_randn(1, 8, 2048, 64) for _ in range(3))
    return lambda: attention(q, k, v), lambda: F.scaled_dot_product_attention(q, k, v)


@contextmanager
def _executor(name: str) -> Iterator[None]:
    before = TORCH_NEURONX_NKI_EXECUTOR.set(name)
    try:
        yield
    finally:
        TORCH_NEURONX_NKI_EXECUTOR.set(before)


def _against_reference(kernel: Any, *arrays: Any) -> tuple[Step, Step]:
    def run(executor: str) -> Step:
        def step() -> object:
            with _executor(executor):
                return kernel(*arrays)

        return step

    return run("reference"), run("native")


def _array(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def table() -> list[Check]:
    """All rows in the order of the report."""
    square = _array(1024, 1024)
    return [
        Check("blocked matmul 2048^3 bf16 / torch.matmul", _matmul, 2),
        Check("tiled add 4096^2 / operator", _add, 3),
        Check("softmax 4096^2 / operator", _softmax, 3),
        Check("RMSNorm 4096^2 / operator", _rms_norm, 3),
        Check("flash attention 8x2048x64 / operator", _attention, 4),
        *(
            Check(f"reference / {name}", make, 20, least=True)
            for name, make in (
                ("tiled add 1024^2", lambda: _against_reference(kernels.tiled_add, square, square)),
                ("softmax 1024^2", lambda: _against_reference(kernels.softmax, square)),
                (
                    "RMSNorm 1024^2",
                    lambda: _against_reference(kernels.rms_norm, square, square[0], 1e-6),
                ),
                (
                    "blocked matmul 1024^3",
                    lambda: _against_reference(kernels.blocked_matmul, square, square, 8, 2, 8),
                ),
            )
        ),
    ]


def sample(step: Step) -> float:
    """Seconds of one call after another of the same, with the device's queue drained.

    The first one may pay for memory that the other way has given back to the operating system.
    """
    step()
    start = time.perf_counter()
    step()
    torch.accelerator.synchronize()
    return time.perf_counter() - start


def measure(check: Check, repeats: int) -> Row:
    """Time both ways in turn after a call of each."""
    steps = check.make()
    for step in steps:
        sample(step)
    samples = [[sample(step) for step in steps] for _ in range(repeats)]
    first, second = (1000 * min(column) for column in zip(*samples, strict=True))
    ratio = first / second
    met = ratio >= check.bound if check.least else ratio <= check.bound
    target = f"{'>=' if check.least else '<='} {check.bound:g}"
    return Row(check.name, first, second, ratio, target, met)


HEADER = f"{'':42} {'first ms':>9} {'second ms':>9} {'ratio':>7} target"


def line(row: Row) -> str:
    return f"{row.name:42} {row.first_ms:9.3f} {row.second_ms:9.3f} {row.ratio:7.2f} {row.target}"


def run(checks: Sequence[Check], options: argparse.Namespace, watch: quiet.Watch) -> int:
    rows = (measure(check, options.repeats) for check in checks)
    return suite.tell(HEADER, rows, line, options, watch)


def main() -> int:
    return suite.main(quiet.parser(__doc__, repeats=7), table(), run)


if __name__ == "__main__":
    sys.exit(main())
