"""Measure models compiled ahead of time: latency, loading, throughput by cores.

    python -m benchmarks.inference [--only REGEX] [--list]

Latency: a traced model against the same model under torch.compile, batch 1, in one process in turn;
inputs and outputs lie on the device. Loading: torch.jit.load in a new process that has imported
torch, less the time of reading the file; both from the page cache. Throughput: `DataParallel` over
1, 2 and 4 cores, one of the host's threads for each core, so that it can grow until the host's
processors are used up; the value is the growth over one core. Serving: requests a second of
`examples.serving`, likewise. Exit code: 0 when all targets are met, 1 when one is missed, 2 when
the machine was too busy to measure.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import torch_neuronx
from benchmarks import models, quiet, suite
from benchmarks.harness import SAMPLE_SECONDS, sample

NEURON = torch.device("neuron")
MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class Row:
    """Milliseconds (of a call; of loading; of an item), the rival's, and what is judged."""

    name: str
    ms: float
    median_ms: float
    rival_ms: float | None
    rival_median_ms: float | None
    value: float
    target: str
    met: bool


@dataclass(frozen=True)
class Check:
    """A row, or rows, of the report."""

    name: str
    measure: Callable[[int], list[Row]]


def minilm(tokens: int) -> tuple[torch.nn.Module, tuple[Tensor, ...]]:
    """The real MiniLM weights and one sentence."""
    from transformers import AutoModel  # noqa: PLC0415 - seconds to import

    from examples.minilm import model_folder  # noqa: PLC0415 - imports transformers, too

    model = AutoModel.from_pretrained(model_folder()).eval()
    ids = (torch.arange(tokens) * 31 % 29000 + 999).view(1, tokens)
    return model, (ids, torch.ones_like(ids))


def resnet() -> tuple[torch.nn.Module, tuple[Tensor, ...]]:
    """A network of ResNet-18's shape and one image."""
    torch.manual_seed(0)
    image = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(1))
    return models.resnet18().eval(), (image,)


def first(result: object) -> Tensor:
    """The tensor of a result, or the first of several."""
    while not isinstance(result, Tensor):
        result = next(iter(result.values())) if isinstance(result, dict) else result[0]  # type: ignore[index]
    return result


def latency(
    name: str, make: Callable[[], tuple[torch.nn.Module, tuple[Tensor, ...]]]
) -> Callable[[int], list[Row]]:
    """A traced model against a compiled one."""

    def measure(repeats: int) -> list[Row]:
        model, args = make()
        traced = torch_neuronx.trace(model, args)
        given = tuple(arg.to(NEURON) for arg in args)
        compiled = torch.compile(model.to(NEURON), backend="neuron")
        with torch.no_grad():
            steps = [lambda: traced(*given), lambda: compiled(*given)]
            one, other = (first(step()).cpu() for step in steps)
            # The same program: one graph, one compiler.
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
            once = max(sample(step, 2) for step in steps)
            times = max(1, round(SAMPLE_SECONDS / once))
            columns: list[list[float]] = [[], []]
            for _ in range(3 * repeats):
                for step, column in zip(steps, columns, strict=True):
                    column.append(1000 * sample(step, times))
        ours, theirs = columns
        ratio = min(theirs) / min(ours)
        return [
            Row(
                name,
                min(ours),
                statistics.median(ours),
                min(theirs),
                statistics.median(theirs),
                ratio,
                ">= 1.00x",
                round(ratio, 2) >= 1,
            )  # fmt: skip
        ]

    return measure


_LOAD = """
import json, sys, time, torch
start = time.perf_counter()
with open(sys.argv[1], "rb") as file:
    file.read()
read = time.perf_counter() - start
start = time.perf_counter()
model = torch.jit.load(sys.argv[1])
print(json.dumps([read, time.perf_counter() - start]))
"""


def loading(repeats: int) -> list[Row]:
    """torch.jit.load in a new process."""
    model, args = minilm(32)
    # Bytecode is kept, as an installation has it.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pt"
        torch.jit.save(torch_neuronx.trace(model, args), path)
        for _ in range(repeats + 1):  # the first writes the bytecode
            done = subprocess.run(  # noqa: S603 - our own interpreter
                [sys.executable, "-W", "ignore", "-c", _LOAD, str(path)],
                check=True, capture_output=True, text=True, env=environment,
            )  # fmt: skip
            pairs.append([1000 * seconds for seconds in json.loads(done.stdout)])
        size = path.stat().st_size // MEBIBYTE
    reads, loads = zip(*pairs[1:], strict=True)
    beyond = min(load - read for read, load in pairs[1:])
    return [
        Row(
            f"loading a traced MiniLM, {size} MiB",
            min(loads),
            statistics.median(loads),
            min(reads),
            statistics.median(reads),
            beyond / 1000,
            "<= 0.3 s more",
            beyond <= 300,
        )  # fmt: skip
    ]


def throughput(repeats: int) -> list[Row]:
    """Sentences through `DataParallel`: milliseconds of one."""
    model, args = minilm(32)
    batch = tuple(arg.expand(32, -1).contiguous() for arg in args)
    traced = torch_neuronx.trace(model, tuple(arg[:4] for arg in batch))
    before = torch.get_num_threads()
    rows: list[Row] = []
    try:
        for cores in (1, 2, 4):
            torch.set_num_threads(cores)
            parallel = torch_neuronx.DataParallel(traced, list(range(cores)))
            parallel.split_size = 4
            parallel.num_workers = cores

            def step(parallel: torch_neuronx.DataParallel = parallel) -> object:
                return parallel(*batch)

            for _ in range(3):
                step()
            samples = [1000 * sample(step, 1) / len(batch[0]) for _ in range(repeats)]
            rows.append(_growth(f"DataParallel, MiniLM, cores: {cores}", cores, samples, rows))
    finally:
        torch.set_num_threads(before)
    return rows


def serving(repeats: int) -> list[Row]:
    """Requests through the server of examples/serving: milliseconds of one, several under way."""
    from transformers import AutoModel, AutoTokenizer  # noqa: PLC0415 - seconds to import

    from examples.minilm import SENTENCES, model_folder  # noqa: PLC0415
    from examples.serving import load  # noqa: PLC0415
    from examples.serving.embedder import Embedder, Embedding, save  # noqa: PLC0415
    from examples.serving.server import Limits, Server  # noqa: PLC0415

    rows: list[Row] = []
    before = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pt"
        save(Embedding(AutoModel.from_pretrained(model_folder()).eval()), path)
        tokenizer = AutoTokenizer.from_pretrained(model_folder())
        for cores in (1, 2, 4):
            torch.set_num_threads(1)
            server = Server(("127.0.0.1", 0), Embedder(path, tokenizer, cores), cores, Limits())
            thread = threading.Thread(target=server.run)
            thread.start()
            try:
                runs = [load.run(server.server_port, SENTENCES, 16, 8) for _ in range(repeats)]
            finally:
                server.stop()
                thread.join()
                torch.set_num_threads(before)
            samples = [1000 * run.seconds / len(run.latencies) for run in runs]
            rows.append(_growth(f"served MiniLM, cores: {cores}", cores, samples, rows))
    return rows


def _growth(name: str, cores: int, samples: Sequence[float], rows: Sequence[Row]) -> Row:
    """Throughput over that of one core; it should grow while the host has processors."""
    host = len(os.sched_getaffinity(0))
    value = rows[0].ms / min(samples) if rows else 1.0
    most = min(cores, host)
    wanted = 1 if cores == 1 else 0.7 * most
    target = "" if cores == 1 else f">= {wanted:.1f}x"
    return Row(name, min(samples), statistics.median(samples), None, None, value, target,
               value >= wanted)  # fmt: skip


def table() -> list[Check]:
    """All rows in the order of the report."""
    return [
        Check("traced MiniLM, 1x32", latency("traced MiniLM, 1x32", lambda: minilm(32))),
        Check("traced MiniLM, 1x128", latency("traced MiniLM, 1x128", lambda: minilm(128))),
        Check("traced ResNet-18", latency("traced ResNet-18 shape, 1x3x224x224", resnet)),
        Check("loading", loading),
        Check("DataParallel", throughput),
        Check("serving", serving),
    ]


HEADER = f"{'':38} {'ms':>8} {'median':>8} {'rival':>8} {'median':>8} {'value':>6} target"


def line(row: Row) -> str:
    rival = "".join(
        f" {'' if ms is None else f'{ms:.2f}':>8}" for ms in (row.rival_ms, row.rival_median_ms)
    )
    return f"{row.name:38} {row.ms:8.2f} {row.median_ms:8.2f}{rival} {row.value:6.2f} {row.target}"


def run(checks: Sequence[Check], options: argparse.Namespace, watch: quiet.Watch) -> int:
    # PyTorch says with every use that TorchScript is deprecated.
    warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
    rows = (row for check in checks for row in check.measure(options.repeats))
    return suite.tell(HEADER, rows, line, options, watch)


def main() -> int:
    return suite.main(quiet.parser(__doc__, repeats=7), table(), run)


if __name__ == "__main__":
    start = time.perf_counter()
    code = main()
    print(f"{time.perf_counter() - start:.0f} s")
    sys.exit(code)
