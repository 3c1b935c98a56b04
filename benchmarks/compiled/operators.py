"""Single operators, compiled, against the device's eager mode: what is taken apart must not lose.

    python -m benchmarks.compiled.operators [--only REGEX] [--list]

Whole models hide an operator whose compiled form is slow, or whose cost grows faster than its
input. Each operator that PyTorch or the compiler takes apart runs on a large input, forward and, if
it has one, with its gradient. A ratio is compiled time / eager time, of the fastest samples, which
are taken in turn.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor

from benchmarks import quiet, suite
from benchmarks.harness import SAMPLE_SECONDS, sample

if TYPE_CHECKING:
    import argparse

Step = Callable[[], object]
#: Most that an operator may take, as a multiple of eager mode's time.
MOST = 2.0
SORTS = 6.0  # it sorts where eager mode selects
SCALAR = 16.0  # its loop calls the C library for every element, where ATen has vectors
SCATTERS = 4.0  # it adds up element by element here
GATHERS = 4.0  # small enough that calling a program with its gather shows

SHAPES = {
    "image": (4, 32, 64, 64),
    "volume": (2, 16, 16, 32, 32),
    "sequence": (8, 64, 1024),
    "matrix": (1024, 1024),
    "vector": (1 << 18,),
}


@dataclass(frozen=True)
class Operator:
    """One operator, the shape that it gets, and the most that it may take of eager mode's time."""

    name: str
    shape: str
    function: Callable[[Tensor], Tensor]
    most: float = MOST
    training: float | None = MOST


@dataclass(frozen=True)
class Row:
    """Milliseconds of a call, and the largest ratio that is allowed."""

    operator: str
    eager_ms: float
    compiled_ms: float
    most: float

    @property
    def ratio(self) -> float:
        return self.compiled_ms / self.eager_ms

    @property
    def met(self) -> bool:
        return self.ratio <= self.most


def _numbers(x: Tensor, most: int, *shape: int) -> Tensor:
    """Indices below `most`, scattered, the same ones every time."""
    count = torch.Size(shape).numel()
    return (torch.arange(count, device=x.device) * 7919 % most).view(shape)


def _grid(x: Tensor, mode: str) -> Tensor:
    across = torch.linspace(-1.1, 1.1, 64, device=x.device)
    grid = torch.stack(torch.meshgrid(across, across, indexing="ij"), -1).expand(4, 64, 64, 2)
    return F.grid_sample(x, grid, mode=mode, align_corners=False)


def _resized(mode: str, factor: float = 2) -> Callable[[Tensor], Tensor]:
    return partial(F.interpolate, scale_factor=factor, mode=mode)


def table() -> list[Operator]:
    """Return all rows."""
    o = Operator
    return [
        *(
            o(f"grid_sample, {m}", "image", partial(_grid, mode=m))
            for m in ("bilinear", "nearest", "bicubic")
        ),
        *(o(f"interpolate, {m}", "image", _resized(m)) for m in ("nearest", "bilinear", "bicubic")),
        o("interpolate, bilinear, to a half", "image", _resized("bilinear", 0.5)),
        o("interpolate, trilinear", "volume", _resized("trilinear")),
        *(
            o(f"pad, {m}", "image", partial(F.pad, pad=(1, 2, 3, 4), mode=m), GATHERS)
            for m in ("reflect", "replicate", "circular")
        ),
        o("max_pool2d", "image", lambda x: F.max_pool2d(x, 3, 2, 1)),
        o("avg_pool2d", "image", lambda x: F.avg_pool2d(x, 3, 2, 1)),
        o("adaptive_avg_pool2d", "image", lambda x: F.adaptive_avg_pool2d(x, 7)),
        o("unfold", "image", lambda x: F.unfold(x, 3)),
        o("pixel_shuffle", "image", lambda x: F.pixel_shuffle(x, 2)),
        o("roll", "image", lambda x: torch.roll(x, (3, 5), (2, 3))),
        o("searchsorted", "vector",
          lambda x: torch.searchsorted(torch.linspace(-3, 3, 4096, device=x.device), x),
          training=None),
        o("bucketize, 16 bounds", "vector",
          lambda x: torch.bucketize(x, torch.linspace(-3, 3, 16, device=x.device)), training=None),
        o("isin", "vector", lambda x: torch.isin(x, x[:4096]), training=None),
        o("histc", "vector", lambda x: x.histc(100), training=None),
        o("sort", "matrix", lambda x: x.sort(1)[0]),
        o("topk", "matrix", lambda x: x.topk(10, 1)[0]),
        o("kthvalue", "matrix", lambda x: x.kthvalue(10, 1)[0], SORTS, SORTS),
        o("median", "matrix", lambda x: x.median(1)[0], SORTS, SORTS),
        *(
            o(f"{n}, {d}", "matrix", partial(getattr(torch, n), dim=d))
            for n in ("cumsum", "softmax", "logsumexp")
            for d in (0, 1)
        ),
        o("gather", "matrix",
          lambda x: x.gather(1, _numbers(x, 1024, 1024, 1024)), training=SCATTERS),
        o("scatter_add", "matrix",
          lambda x: torch.zeros_like(x).scatter_add(1, _numbers(x, 1024, 1024, 1024), x),
          SCATTERS, SCATTERS),
        o("index_add", "matrix",
          lambda x: torch.zeros_like(x).index_add(0, _numbers(x, 1024, 1024), x)),
        o("index_put", "matrix",
          lambda x: x.index_put((_numbers(x, 1024, 1024),), x[0], accumulate=True)),
        o("embedding", "matrix", lambda x: F.embedding(_numbers(x, 1024, 4096), x)),
        o("cdist", "matrix", lambda x: torch.cdist(x[:512, :64], x[512:, :64])),
        o("fmod", "vector", lambda x: x.fmod(0.7), SCALAR, SCALAR),
        o("remainder", "vector", lambda x: x.remainder(0.7), SCALAR, SCALAR),
        o("lgamma", "vector", torch.lgamma, SCALAR, SCALAR),
        *(o(n, "vector", getattr(torch, n)) for n in ("erfinv", "digamma", "sinc", "expm1", "tan")),
        o("unfold of a tensor", "sequence", lambda x: x.unfold(2, 3, 1).sum(-1)),
        o("fft", "matrix", lambda x: torch.fft.rfft(x).real),
    ]  # fmt: skip


def _step(operator: Operator, *, compiled: bool, training: bool) -> Step:
    torch.manual_seed(0)
    x = torch.randn(SHAPES[operator.shape], device="neuron", requires_grad=training)
    torch.compiler.reset()
    run = torch.compile(operator.function, backend="neuron") if compiled else operator.function

    def step() -> object:
        result = run(x)
        if training:
            x.grad = None
            result.sum().backward()
        return result

    return step


def measure(operator: Operator, repeats: int, *, training: bool) -> Row:
    """Time both in turn; the fastest samples count."""
    steps = [_step(operator, compiled=c, training=training) for c in (False, True)]
    once = max(sample(step, 2) for step in steps)
    times = max(1, round(SAMPLE_SECONDS / once))
    best = [float("inf")] * 2
    for _ in range(repeats):
        for i, step in enumerate(steps):
            best[i] = min(best[i], sample(step, times))
    most = operator.training if training else operator.most
    assert most is not None
    name = f"{operator.name}{', with its gradient' if training else ''}"
    return Row(name, best[0] * 1e3, best[1] * 1e3, most)


def rows(operators: list[Operator], repeats: int) -> Iterator[Row]:
    """Measure each operator, then with its gradient."""
    for operator in operators:
        yield measure(operator, repeats, training=False)
        if operator.training is not None:
            yield measure(operator, repeats, training=True)


def line(row: Row) -> str:
    """Return the text of a row."""
    return (
        f"{row.operator:52} {row.eager_ms:9.3f} {row.compiled_ms:9.3f} {row.ratio:7.2f}"
        f"  at most {row.most:g}"
    )


def run(operators: list[Operator], options: argparse.Namespace, watch: quiet.Watch) -> int:
    """Measure and report."""
    header = f"{'operator':52} {'eager ms':>9} {'ours ms':>9} {'ratio':>7}"
    return suite.tell(header, rows(operators, options.repeats), line, options, watch)


def main() -> int:
    """Measure the operators that are asked for."""
    return suite.main(quiet.parser(__doc__, repeats=5), table(), run)


if __name__ == "__main__":
    sys.exit(main())
