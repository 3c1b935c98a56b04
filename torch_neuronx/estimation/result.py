"""What an estimate says."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from torch_neuronx.estimation.advice import Advice
from torch_neuronx.estimation.schedule import Mode, Row, device_us

__all__ = ["By", "Estimate", "Share"]

By = Literal["section", "layer", "operator", "line", "engine", "how"]
_VERSION: Final = 1  # of the JSON document
_MOST = 12  # lines of a table


class Share(NamedTuple):
    """Rows that have something in common.

    Attributes:
        name: what.
        us: microseconds of the step.
        share: of it.
        bytes: of HBM and collectives.
        flops: of products.
    """

    name: str
    us: float
    share: float
    bytes: int
    flops: int


def _alike(names: Collection[str]) -> dict[str, str]:
    """Return names of modules with a star for the number of each block.

    >>> sorted(_alike({"h.0", "h.0.fc", "h.1.fc", "0", "1"}).values())
    ['0', '1', 'h.*', 'h.*.fc', 'h.*.fc']
    """
    paths = {name: name.split(".") for name in names}
    above = {tuple(path[:n]) for path in paths.values() for n in range(1, len(path))}

    def shown(path: list[str]) -> str:
        parts = [
            "*" if part.isdigit() and tuple(path[: n + 1]) in above else part
            for n, part in enumerate(path)
        ]
        return ".".join(parts)

    return {name: shown(path) for name, path in paths.items()}


@dataclass(frozen=True, slots=True)
class Estimate:
    """How long a step takes on hardware, as the model says.

    Attributes:
        name: of what was timed.
        target: name of the chip.
        lnc: physical cores of a logical one.
        mode: "compiled" or "eager".
        training: gradients and an optimizer's step belong to it.
        world_size: ranks of the job.
        rank: the one that was timed.
        instance: type of the instances that the job is on, "" for one core.
        instances: how many.
        era: of the collectives' times.
        model: version of the model.
        calibrated: measurements of this chip chose the model's parameters.
        calibrated_on: what they were chosen by, and of what.
        step_us: microseconds of a step.
        error: the truth is expected between `step_us` divided and multiplied by 1 plus this.
        rows: what the step is made of; they add up to `step_us`.
        sections: microseconds by part of the step.
        busy_us: microseconds by engine, "dma", "cc" and "host".
        bound_us: microseconds by what binds.
        read_bytes: that HBM gives in a step.
        written_bytes: that HBM takes.
        flops: of products.
        peak_tflops: of the core's Tensor Engines in bfloat16.
        hbm_gbps: the core's share of HBM.
        hbm_in_use: bytes at the peak, 0 if it is not known.
        hbm_bytes: of the core.
        programs: that the host starts in a step.
        tokens: that a step of the whole job handles, 0 if nobody said.
        price_per_hour: of an instance in dollars, 0 if nobody said.
        advice: what would make it faster.
        notes: what is not modelled.
    """

    name: str
    target: str
    lnc: int
    mode: Mode
    training: bool
    world_size: int
    rank: int
    instance: str
    instances: int
    era: str
    model: int
    calibrated: bool
    calibrated_on: str
    step_us: float
    error: float
    rows: tuple[Row, ...]
    sections: dict[str, float]
    busy_us: dict[str, float]
    bound_us: dict[str, float]
    read_bytes: int
    written_bytes: int
    flops: int
    peak_tflops: float
    hbm_gbps: float
    hbm_in_use: int
    hbm_bytes: int
    programs: int
    tokens: int
    price_per_hour: float
    advice: tuple[Advice, ...]
    notes: tuple[str, ...]

    @property
    def interval_us(self) -> tuple[float, float]:
        """Where the truth is expected."""
        return self.step_us / (1 + self.error), self.step_us * (1 + self.error)

    @property
    def device_us(self) -> float:
        """The step without what the core waits for of the host."""
        return device_us(self.step_us, self.rows)

    @property
    def utilisation(self) -> dict[str, float]:
        """By engine, "dma", "cc" and "host": the share of the step that it works."""
        whole = self.step_us or 1.0
        return {
            name: us / whole
            for name, us in sorted(self.busy_us.items(), key=lambda item: -item[1])
            if name != "latency"
        }

    @property
    def mfu(self) -> float:
        """Share of the Tensor Engines' bfloat16 peak that the products of the step use."""
        return self.flops / (self.step_us * self.peak_tflops * 1e6) if self.step_us else 0.0

    @property
    def mbu(self) -> float:
        """Share of the core's part of HBM's bandwidth that the step uses."""
        moved = self.read_bytes + self.written_bytes
        return moved / (self.step_us * self.hbm_gbps * 1e3) if self.step_us else 0.0

    @property
    def bound_by(self) -> str:
        """What binds the largest part of the step: an engine, "dma", "cc", "host", "latency"."""
        return max(self.bound_us, key=lambda name: self.bound_us[name], default="latency")

    @property
    def simulated(self) -> float:
        """Share of the step whose time is that of instructions: of kernels and device programs."""
        us = sum(row.us for row in self.rows if row.how == "simulated")
        return us / self.step_us if self.step_us else 0.0

    @property
    def tokens_per_second(self) -> float | None:
        """Of the whole job; None if nobody said how many a step handles."""
        return self.tokens / self.step_us * 1e6 if self.tokens and self.step_us else None

    @property
    def dollars_per_million_tokens(self) -> float | None:
        """At the price that was given; None without a price or tokens."""
        rate = self.tokens_per_second
        if not rate or not self.price_per_hour:
            return None
        return self.price_per_hour * max(1, self.instances) / 3600 / rate * 1e6

    def by(self, what: By, *, alike: bool = False) -> tuple[Share, ...]:
        """Sum up the rows, the longest first.

        Args:
            what: a column of the rows.
            alike: layers that differ in the number of a part that has parts of its own are one:
                the blocks of a model, and not the layers of an `nn.Sequential`.
        """
        sums: dict[str, list[float]] = {}
        names = {getattr(row, what) for row in self.rows}
        shown = _alike(names) if alike else {name: name for name in names}
        for row in self.rows:
            found = sums.setdefault(shown[getattr(row, what)], [0.0, 0.0, 0.0])
            for at, more in enumerate((row.us, row.bytes, row.flops)):
                found[at] += more
        whole = self.step_us or 1.0
        made = [Share(n, us, us / whole, int(b), int(f)) for n, (us, b, f) in sums.items()]
        return tuple(sorted(made, key=lambda share: -share.us))

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain data; docs/estimate.md lists the keys."""
        found = asdict(self)
        found["rows"] = [row._asdict() for row in self.rows]
        found["advice"] = [one._asdict() for one in self.advice]
        for name in (
            "device_us",
            "interval_us",
            "utilisation",
            "mfu",
            "mbu",
            "bound_by",
            "simulated",
        ):
            found[name] = getattr(self, name)
        found["tokens_per_second"] = self.tokens_per_second
        found["dollars_per_million_tokens"] = self.dollars_per_million_tokens
        return {"version": _VERSION, "is_simulation": True, **found}

    def to_json(self) -> str:
        """The same as a JSON document."""
        return json.dumps(self.as_dict(), indent=1)

    def table(self, what: By, most: int = _MOST) -> str:
        """The sums of `by` as text."""
        shares = self.by(what, alike=what == "layer")
        lines = [f"{'share':>7} {'time':>11} {'HBM':>10}  {what}"]
        for one in shares[:most]:
            name = _short(one.name) if what == "line" else one.name
            lines.append(
                f"{one.share:7.1%} {_time(one.us):>11} {_bytes(one.bytes):>10}  {name or '-'}"
            )
        if len(shares) > most:
            rest = sum(one.us for one in shares[most:])
            lines.append(f"{rest / (self.step_us or 1):7.1%} {_time(rest):>11} {'':>10}  (rest)")
        return "\n".join(lines)

    def __str__(self) -> str:
        return "\n".join([*self._head(), "", *self._tables(), *self._foot()])

    def _head(self) -> Iterable[str]:
        low, high = self.interval_us
        where = f"{self.target}, LNC {self.lnc}"
        if self.world_size > 1:
            several = f"{self.instances} x " if self.instances > 1 else ""
            where = f"rank {self.rank} of {self.world_size} on {several}{self.instance}, {where}"
        what = "a training step" if self.training else "a step"
        host = "" if self.device_us == self.step_us else f" ({_time(self.device_us)} on the core)"
        yield f"{self.name}: {_time(self.step_us)}{host} for {what}, {self.mode}, on {where}"
        kind = "calibrated" if self.calibrated else "not calibrated for this chip"
        yield (
            f"  expected between {_time(low)} and {_time(high)}; model {self.model}, {kind}: "
            f"{self.calibrated_on}"
        )
        rate = self.tokens_per_second
        if rate is not None:
            cost = self.dollars_per_million_tokens
            money = "" if cost is None else f", ${cost:.3g} for a million tokens"
            yield f"  {rate:,.0f} tokens/s ({self.tokens} a step){money}"
        bound = ", ".join(
            f"{name} {us / (self.step_us or 1):.0%}"
            for name, us in sorted(self.bound_us.items(), key=lambda item: -item[1])[:4]
        )
        yield f"  bound by {self.bound_by} ({bound})"
        busy = ", ".join(f"{name} {share:.0%}" for name, share in self.utilisation.items())
        yield f"  busy: {busy}"
        memory = ""
        if self.hbm_in_use:
            fits = "" if self.hbm_in_use <= self.hbm_bytes else " (DOES NOT FIT)"
            memory = f"; HBM {_bytes(self.hbm_in_use)} of {_bytes(self.hbm_bytes)}{fits}"
        yield f"  MFU {self.mfu:.1%}, MBU {self.mbu:.1%}{memory}"
        if self.world_size > 1:
            yield f"  collectives as {self.era}"
        yield f"  of instructions {self.simulated:.0%} of the time, the rest by bytes and flops"

    def _tables(self) -> Iterable[str]:
        tables: tuple[By, ...] = ("section", "layer", "operator", "line")
        for what in tables:
            if len(self.by(what, alike=what == "layer")) > 1 or what == "operator":
                yield self.table(what)
                yield ""

    def _foot(self) -> Iterable[str]:
        for one in self.advice:
            yield f"{one.rule} ({one.share:.0%}): {one.text}"
        yield from (f"not modelled: {note}" for note in self.notes)


def _short(line: str) -> str:
    file, _, number = line.rpartition(":")
    return f"{Path(file).name}:{number}" if file else line


def _time(us: float) -> str:
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if us >= size:
            return f"{us / size:.3f} {unit}"
    return f"{us:.1f} us"


def _bytes(value: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value} B"
