"""What it costs a training job that the tools watch it: at most a hundredth of a step.

    python -m benchmarks.watching [--pairs N] [--seconds S] [--alone]

One job trains all the time, one thread wide. In every other stretch of time neuron-monitor, its
exporter (scraped every second), neuron-top and neuron-sysfs watch it, each with a period of a
second; with `--alone` neuron-monitor does by itself, every 5 s, which is its own period. A pair
is a stretch without them and one with them; what counts is the ratio of their mean steps, and
the median of the pairs' ratios is printed, by the clock and by the processor time that the job
used. The same ratio of two halves of a stretch without tools says what noise there is. On a
busy machine neither says much; the processor time that the tools use is what they can take from
a job that would use all processors.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

LIMIT = 1.01
SETTLES = 1.5  # seconds until tools have started
PORT = 18427
NAMES = ("neuron-monitor", "exporter", "neuron-top", "neuron-sysfs")
TICKS: int = os.sysconf("SC_CLK_TCK")
JOB = """
import sys, time, torch
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256))
model = model.to("neuron")
step = torch.compile(model, backend="neuron")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
x = torch.randn(128, 256, device="neuron")
def train():
    optimizer.zero_grad()
    loss = (step(x) - x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()
for _ in range(20):
    train()
print("ready", flush=True)
rows = []
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    wall, cpu = time.monotonic(), time.process_time()
    train()
    rows.append(f"{wall} {time.monotonic() - wall} {time.process_time() - cpu}")
print("\\n".join(rows))
"""


class Stretch(NamedTuple):
    """A time that is looked at, by the clock that processes share."""

    begin: float
    end: float
    watched: bool


class Watching(NamedTuple):
    """The processes of the tools, and a look at what they show: whether they see the job."""

    pids: list[int]
    look: Callable[[], bool]


class Step(NamedTuple):
    """When a step began, and how long it took, in seconds: by the clock, and of the processor."""

    begin: float
    wall: float
    cpu: float


def _read_all(descriptor: int) -> None:
    """Take what a terminal's program writes, so that it does not wait."""
    with suppress(OSError):
        while os.read(descriptor, 1 << 16):
            pass


def _monitor(folder: Path, period: str, stdout: int) -> subprocess.Popen[bytes]:
    """neuron-monitor with all groups."""
    file = folder / "monitor.json"
    groups = ("neuroncore_counters", "execution_stats", "memory_used", "neuron_runtime_vcpu_usage")
    system = ("vcpu_usage", "memory_info", "neuron_hw_counters")
    document = {
        "period": period,
        "neuron_runtimes": [{"metrics": [{"type": name} for name in groups]}],
        "system_metrics": [{"type": name} for name in system],
    }
    file.write_text(json.dumps(document))
    command = [sys.executable, "-m", "neuron_tools.monitor.command", "-c", str(file)]
    return subprocess.Popen(command, stdout=stdout)  # noqa: S603


@contextmanager
def _ended(running: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    """End the processes with the block."""
    with ExitStack() as stack:
        for process in running:
            stack.callback(process.wait, 20)
            stack.callback(process.terminate)
        yield


@contextmanager
def tools(folder: Path) -> Iterator[Watching]:
    """All tools that watch, scraped every second."""
    python = [sys.executable, "-m"]
    controller, terminal = pty.openpty()
    os.set_blocking(controller, False)
    monitor = _monitor(folder, "1s", subprocess.PIPE)
    exporter = subprocess.Popen(  # noqa: S603
        [*python, "neuron_tools.prometheus", "--port", str(PORT), "--address", "127.0.0.1"],
        stdin=monitor.stdout,
    )
    assert monitor.stdout is not None
    monitor.stdout.close()
    top = subprocess.Popen(  # noqa: S603
        [*python, "neuron_tools.top.command"], stdin=terminal, stdout=terminal,
        stderr=terminal, env={**os.environ, "TERM": "xterm"},
    )  # fmt: skip
    tree = subprocess.Popen(  # noqa: S603
        [*python, "neuron_tools.sysfs.command", "--root", str(folder / "sys"), "--period", "1"]
    )

    def look() -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics") as answer:
            found = answer.read()
        _read_all(controller)
        return b"neuroncore_utilization_ratio{" in found

    running = [monitor, exporter, top, tree]
    with _ended(running):
        yield Watching([process.pid for process in running], look)
    os.close(controller)
    os.close(terminal)


@contextmanager
def by_itself(folder: Path) -> Iterator[Watching]:
    """neuron-monitor alone, with its own period."""
    with (folder / "said").open("wb") as file:
        monitor = _monitor(folder, "5s", file.fileno())
        with _ended([monitor]):
            said = folder / "said"
            yield Watching([monitor.pid], lambda: b"neuroncore_utilization" in said.read_bytes())


def seconds_of(pid: int) -> float:
    """Processor seconds that a process has used."""
    parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(parts[11]) + int(parts[12])) / TICKS


def watch(
    folder: Path, seconds: float, watching: Callable[[Path], AbstractContextManager[Watching]]
) -> tuple[Stretch, list[float]]:
    """A stretch with tools, and how many processors each of them used."""
    with watching(folder) as (pids, look):
        time.sleep(SETTLES)
        begin, before = time.monotonic(), [seconds_of(pid) for pid in pids]
        seen = False
        while time.monotonic() < begin + seconds:
            seen = look()
            time.sleep(1.0)
        end = time.monotonic()
        assert seen, "the tools do not see the job"
        used = [
            (seconds_of(pid) - at) / (end - begin) for pid, at in zip(pids, before, strict=True)
        ]
        return Stretch(begin, end, watched=True), used


def alone(seconds: float) -> Stretch:
    """A stretch without tools."""
    begin = time.monotonic()
    time.sleep(seconds)
    return Stretch(begin, time.monotonic(), watched=False)


def ratios(stretches: list[Stretch], steps: list[Step], field: str) -> tuple[float, float]:
    """The median ratio of watched to unwatched steps, and of halves of unwatched stretches."""

    def mean(begin: float, end: float) -> float:
        return statistics.fmean(getattr(s, field) for s in steps if begin <= s.begin < end)

    watched, noise = [], []
    for free, seen in zip(stretches[::2], stretches[1::2], strict=True):
        watched.append(mean(seen.begin, seen.end) / mean(free.begin, free.end))
        middle = (free.begin + free.end) / 2
        noise.append(mean(middle, free.end) / mean(free.begin, middle))
    return statistics.median(watched), statistics.median(noise)


def main() -> int:
    """Print the ratios; returns 1 if the limit is missed by the processor time of a step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of a stretch")
    parser.add_argument("--alone", action="store_true", help="neuron-monitor, and no other tool")
    options = parser.parse_args()
    watching = by_itself if options.alone else tools
    whole = options.pairs * (2 * options.seconds + SETTLES + 3) + 2
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["TORCH_NEURONX_REGISTRY_DIR"] = str(folder / "registry")
        job = subprocess.Popen(  # noqa: S603
            [sys.executable, "-c", JOB, str(whole)], stdout=subprocess.PIPE, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n"
        stretches, used = [], []
        for _ in range(options.pairs):
            stretches.append(alone(options.seconds))
            stretch, processors = watch(folder, options.seconds, watching)
            stretches.append(stretch)
            used.append(processors)
        steps = [Step(*map(float, line.split())) for line in job.stdout]
        job.wait()
    found = {field: ratios(stretches, steps, field) for field in ("wall", "cpu")}
    print(f"median step alone: {1e3 * statistics.median(s.wall for s in steps):.2f} ms")
    for field, (ratio, noise) in found.items():
        print(f"watched / alone, {field:<4}: {ratio:.4f} (alone / alone: {noise:.4f})")
    by_tool = [statistics.fmean(values) for values in zip(*used, strict=True)]
    each = zip(NAMES, by_tool, strict=False)  # alone is the first
    said = ", ".join(f"{name} {100 * share:.2f}" for name, share in each)
    print(f"percent of a processor that the tools use: {100 * sum(by_tool):.2f} ({said})")
    return int(found["cpu"][0] > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
