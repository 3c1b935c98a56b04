"""What a prediction says: a time, where it comes from, and how far it may be off."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from neuronxcc.perf.dependences import Flat
from neuronxcc.perf.model import CoreModel
from neuronxcc.perf.stream import Ints, Stream
from neuronxcc.perf.timeline import Timeline

__all__ = ["LineShare", "Prediction", "Skipped"]

_BOUND: Final = 0.5  # an engine that is busy for less does not bind a program
_LINES = 8  # of the user's that a summary shows


class LineShare(NamedTuple):
    """What the instructions of one of the user's lines cost.

    Attributes:
        file: where it is.
        line: its number.
        instructions: how many ran.
        busy_us: microseconds that they kept engines or the DMA engines busy, all together.
        share: of what all lines did.
    """

    file: str
    line: int
    instructions: int
    busy_us: float
    share: float


class Skipped(NamedTuple):
    """Iterations of a loop that were not simulated, because they repeat what was.

    Attributes:
        at_us: where they belong in what was simulated, in microseconds.
        times: how often a period is left out.
        period_us: how long it is.
    """

    at_us: float
    times: int
    period_us: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """How long a program would take.

    Attributes:
        name: of the program.
        target: name of the chip.
        cores: physical cores that it ran on.
        model: version of the model.
        calibrated: the model's parameters were fitted to measurements of this chip.
        device_us: microseconds from the first instruction's start to the last one's end.
        launch_us: what running a program costs besides.
        interval_us: where the truth is expected, of `latency_us`.
        instructions: how many ran.
        busy_us: by engine, and "dma": microseconds that it worked, of the busiest core.
        moved_bytes: by DMA, all cores together.
        hbm_bytes: of these, those that HBM gave or took.
        spilled_bytes: of these, those that are there because memory on the chip was too small.
        flops: multiplications and additions of products.
        critical: by engine, "dma" and "waiting", share of the time of the chain of instructions
            that the end waited for; the three together are 1.
        lines: what the user's lines cost, the most expensive first.
        notes: what is not modelled of this program.
        stream: what was timed.
        timeline: when what was simulated happened.
        flat: what was simulated; a loop that repeats itself is cut short.
        left_out_us: microseconds that were not simulated, because they repeat.
        skipped: where they belong, in the order of time.
        machine: what it was timed on.
        counts: how often each work of the stream runs.
    """

    name: str
    target: str
    cores: int
    model: int
    calibrated: bool
    device_us: float
    launch_us: float
    interval_us: tuple[float, float]
    instructions: int
    busy_us: dict[str, float]
    moved_bytes: int
    hbm_bytes: int
    spilled_bytes: int
    flops: int
    critical: dict[str, float]
    lines: tuple[LineShare, ...]
    notes: tuple[str, ...]
    stream: Stream
    timeline: Timeline
    flat: Flat
    left_out_us: float
    skipped: tuple[Skipped, ...]
    machine: CoreModel
    counts: Ints

    @property
    def latency_us(self) -> float:
        """Microseconds from asking for the program until it has ended."""
        return self.device_us + self.launch_us

    @property
    def facts(self) -> dict[str, Any]:
        """What a picture of it says of itself, as JSON takes it."""
        return {
            "target": self.target,
            "cores": self.cores,
            "model": self.model,
            "calibrated": self.calibrated,
            "is_simulation": True,
            "device_us": self.device_us,
            "latency_us": self.latency_us,
            "interval_us": list(self.interval_us),
            "left_out_us": self.left_out_us,
        }

    def get_latency_percentile(self, percentile: float) -> float:
        """Return `latency_us`, whatever the percentile: the model has no chance in it.

        Raises:
            ValueError: it is none of 0 to 100.
        """
        if not 0 <= percentile <= 100:
            raise ValueError(f"percentile {percentile} was asked for: use one from 0 to 100")
        return self.latency_us

    @property
    def utilisation(self) -> dict[str, float]:
        """By engine, and "dma": the share of the device's time that it worked."""
        total = self.device_us
        return {name: busy / total if total else 0.0 for name, busy in self.busy_us.items()}

    @property
    def bound_by(self) -> str:
        """The busiest engine or "dma"; "latency" where none works half of the time."""
        name, most = max(self.utilisation.items(), key=lambda pair: pair[1], default=("", 0.0))
        return name if most >= _BOUND else "latency"

    def __str__(self) -> str:
        """Summarise for people."""
        low, high = self.interval_us
        kind = "calibrated" if self.calibrated else "not calibrated"
        cores = "1 core" if self.cores == 1 else f"{self.cores} cores"
        where = f"{self.name} on {self.target}, {cores}"
        spilled = f", {_bytes(self.spilled_bytes)} spilled" if self.spilled_bytes else ""
        count, hbm = self.instructions, _bytes(self.hbm_bytes)
        rows = [
            f"{where}: {_us(self.device_us)}, {_us(self.latency_us)} with the launch",
            f"  expected between {_us(low)} and {_us(high)}; model {self.model}, {kind}",
            f"  bound by {self.bound_by}; {count} instructions, {hbm} of HBM{spilled}",
            "  busy: " + ", ".join(f"{n} {share:.0%}" for n, share in self.utilisation.items()),
            "  the end waited for: " + ", ".join(f"{n} {x:.0%}" for n, x in self.critical.items()),
        ]
        if self.left_out_us:
            rows.append(f"  {_us(self.left_out_us)} repeat what was simulated")
        rows += [
            f"  {share.share:6.1%} {_us(share.busy_us):>12} {share.instructions:>8} x "
            f"{os.path.basename(share.file)}:{share.line}"  # noqa: PTH119 (a text, no path)
            for share in self.lines[:_LINES]
        ]
        rows += [f"  not modelled: {note}" for note in self.notes]
        return "\n".join(rows)


def _us(value: float) -> str:
    return f"{value / 1000:.3f} ms" if value >= 1000 else f"{value:.1f} us"


def _bytes(value: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value} bytes"
