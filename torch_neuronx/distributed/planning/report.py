"""The report of a plan: as data, as JSON and as text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch_neuronx.distributed.planning.collectives import Collective
from torch_neuronx.distributed.planning.memory import Moment
from torch_neuronx.distributed.planning.mode import PlanMode
from torch_neuronx.distributed.planning.placement import LINKS, Placement

# The version of what `as_dict` gives; raised when a key changes its meaning or goes.
VERSION = 1

_REMEDIES = {
    "parameters": (
        "divide the parameters between more ranks (FSDP, tensor parallelism), or keep them in "
        "bfloat16"
    ),
    "gathered parameters": "wrap smaller modules in fully_shard, and reshard after forward",
    "gradients": "divide the gradients (FSDP), or accumulate fewer of them",
    "optimizer state": (
        "divide the optimizer's state (FSDP, ZeroRedundancyOptimizer), or choose an optimizer with "
        "less of it"
    ),
    "activations": (
        "recompute activations (torch.utils.checkpoint), take smaller batches or shorter "
        "sequences, or divide the sequence (tensor and context parallelism)"
    ),
    "temporaries of backward": (
        "take smaller batches, or compute the loss in parts: the largest temporaries are often "
        "the logits"
    ),
    "temporaries of the optimizer": "use the optimizer with foreach=False or fused=True",
    "communication buffers": (
        "communicate in smaller parts: smaller modules in fully_shard, a smaller bucket_cap_mb "
        "of DDP"
    ),
    "buffers": "make buffers smaller, or compute them where they are used",
    "other": "free what was made before the first forward",
}
_ESTIMATE = (
    "Estimated times are the bytes at the full published rate of the slowest link, while all ranks "
    "do the same, plus the published time of a hop for each hop of the algorithm that the runtime "
    "chooses by size. They were not measured, leave out queues and overlap, and are at best a "
    "lower bound."
)


@dataclass(frozen=True, slots=True)
class Row:
    """Collectives of one step that are alike.

    Attributes:
        kind, group, size, dtype, operation, phase: As in `Collective`; `size` is the group's.
        bytes: The payload of one.
        count: How many there are in the step.
        total: The payload of all.
        sent: Bytes that the rank sends at least for all.
        span: What the ranks share: `chip`, `instance` or only the `network`.
        seconds: Estimated time of all on hardware, `None` where too little is published.
    """

    kind: str
    group: str
    size: int
    dtype: str
    operation: str
    phase: str
    bytes: int
    count: int
    total: int
    sent: int
    span: str
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Consumer:
    """Blocks of memory that are alike, at the moment of the peak."""

    kind: str
    what: str
    dtype: str
    shape: tuple[int, ...]
    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """One rank of a job.

    Attributes:
        rank, world_size, instance, instances, lnc, ranks_per_instance: The job.
        steps: Optimizer steps that were traced.
        hbm_bytes: Memory of a core.
        peak_bytes: The most that was in use, without what an allocator loses between blocks, and
            without what the runtime itself takes on hardware (code, rings, scratchpad).
        peak_phase, peak_step: When that was.
        memory: Bytes at that moment by what they are.
        phases: The most bytes in each phase of each step: (step, phase, bytes).
        consumers: The largest at that moment.
        host_bytes: The most that tensors on the host took.
        order: Every collective, in order of issue, of all steps and of the setup.
    """

    rank: int
    world_size: int
    instance: str
    instances: int
    lnc: int
    ranks_per_instance: int
    steps: int
    hbm_bytes: int
    peak_bytes: int
    peak_phase: str
    peak_step: int
    memory: Mapping[str, int]
    phases: tuple[tuple[int, str, int], ...]
    consumers: tuple[Consumer, ...]
    host_bytes: int
    order: tuple[Collective, ...]
    placement: Placement

    @property
    def fits(self) -> bool:
        """Return whether the peak is at most a core's memory."""
        return self.peak_bytes <= self.hbm_bytes

    @property
    def last_step(self) -> int:
        """Number of the step that stands for all: the last one."""
        return max((issued.step for issued in self.order), default=-1)

    def collectives(self, step: int | None = None) -> tuple[Collective, ...]:
        """The collectives of a step in order; the last step if `None`, -1 for the setup."""
        wanted = self.last_step if step is None else step
        return tuple(issued for issued in self.order if issued.step == wanted)

    def rows(self, step: int | None = None) -> tuple[Row, ...]:
        """The collectives of a step, those that are alike in one row, in order of the first."""
        alike: dict[tuple[object, ...], list[Collective]] = {}
        for one in self.collectives(step):
            key = (one.kind, one.group, one.ranks, one.dtype, one.operation, one.phase, one.bytes)
            alike.setdefault(key, []).append(one)
        return tuple(self._row(several) for several in alike.values())

    def _row(self, alike: Sequence[Collective]) -> Row:
        one, count = alike[0], len(alike)
        seconds = self.placement.seconds(one.kind, one.bytes, one.ranks)
        return Row(
            kind=one.kind,
            group=one.group,
            size=one.size,
            dtype=one.dtype,
            operation=one.operation,
            phase=one.phase,
            bytes=one.bytes,
            count=count,
            total=one.bytes * count,
            sent=round(one.sent * count),
            span=self.placement.span(one.ranks),
            seconds=None if seconds is None else seconds * count,
        )

    def remedies(self) -> tuple[str, ...]:
        """Remedies for the largest parts of a peak that doesn't fit; empty if it fits."""
        if self.fits:
            return ()
        large = [kind for kind, size in self.memory.items() if size * 5 >= self.peak_bytes]
        return tuple(_REMEDIES[kind] for kind in large[:3])

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain data; docs/planning.md lists the keys."""
        return {
            "version": VERSION,
            "job": {
                "rank": self.rank,
                "world_size": self.world_size,
                "instance": self.instance,
                "instances": self.instances,
                "lnc": self.lnc,
                "ranks_per_instance": self.ranks_per_instance,
                "steps": self.steps,
            },
            "memory": {
                "fits": self.fits,
                "hbm_bytes": self.hbm_bytes,
                "peak_bytes": self.peak_bytes,
                "peak_phase": self.peak_phase,
                "peak_step": self.peak_step,
                "at_peak": dict(self.memory),
                "phases": [
                    {"step": step, "phase": phase, "bytes": size}
                    for step, phase, size in self.phases
                ],
                "consumers": [asdict(consumer) for consumer in self.consumers],
                "host_bytes": self.host_bytes,
                "remedies": list(self.remedies()),
            },
            "collectives": {
                "step": self.last_step,
                "rows": [asdict(row) for row in self.rows()],
                "setup": [asdict(row) for row in self.rows(-1)] if self.last_step >= 0 else [],
                "order": [asdict(issued) for issued in self.order],
            },
        }

    def to_json(self) -> str:
        """The same as a JSON document."""
        return json.dumps(self.as_dict(), indent=1)

    def __str__(self) -> str:
        return "\n".join([*self._job(), "", *self._memory(), "", *self._collectives()])

    def order_text(self) -> str:
        """The collectives of the last step, in order of issue."""
        lines = [f"Order of the collectives of {when(self.last_step, 'the step')}:"]
        for one in self.collectives():
            peer = f" with rank {one.peer}" if one.kind in {"send", "recv"} else ""
            where = f" in {one.module}" if one.module else ""
            kind = f"{one.kind} {one.operation}".strip()
            lines.append(
                f"  {one.number:6} {one.phase:9} {kind} {one.group} ({one.size}){peer} "
                f"{one.dtype} {show(one.bytes)}{where}"
            )
        return "\n".join(lines)

    def _job(self) -> list[str]:
        chips = self.placement.instance.chips
        several = f"{self.instances} x " if self.instances > 1 else ""
        line = (
            f"Plan of rank {self.rank} of {self.world_size} on {several}{self.instance} "
            f"({chips} chips, {self.ranks_per_instance} ranks each, LNC={self.lnc}), "
            f"{self.steps} optimizer steps traced"
        )
        return [line]

    def _memory(self) -> list[str]:
        verdict = "fits" if self.fits else "DOES NOT FIT"
        used = f"{show(self.peak_bytes)} of {show(self.hbm_bytes)}"
        lines = [
            f"Memory: {verdict}: {used} in use at the peak, "
            + when(self.peak_step, self.peak_phase),
            *(f"  {show(size):>12}  {kind}" for kind, size in self.memory.items()),
            "Largest at that moment:",
        ]
        for one in self.consumers:
            shape = "x".join(map(str, one.shape)) or "scalar"
            times = f"{one.count} x " if one.count > 1 else ""
            lines.append(
                f"  {show(one.bytes):>12}  {times}{shape} {one.dtype}, {one.kind}: {one.what}"
            )
        lines += [f"To make it fit: {remedy}." for remedy in self.remedies()]
        peaks = ", ".join(
            f"{when(step, phase)} {show(size)}"
            for step, phase, size in self.phases
            if step in {-1, self.last_step}
        )
        return [*lines, f"Peaks: {peaks}", f"Tensors on the host: {show(self.host_bytes)}"]

    def _collectives(self) -> list[str]:
        rows = self.rows()
        if not rows:
            return ["Collectives: none"]
        step = self.last_step
        table = [
            ("phase", "collective", "group", "type", "count", "each", "total", "link", "estimate")
        ]
        for row in rows:
            kind = f"{row.kind} {row.operation}".strip()
            estimate = "-" if row.seconds is None else f"{row.seconds * 1e3:.3g} ms"
            table.append(
                (
                    row.phase,
                    kind,
                    f"{row.group} ({row.size})",
                    row.dtype or "-",
                    str(row.count),
                    show(row.bytes),
                    show(row.total),
                    LINKS[row.span],
                    estimate,
                )
            )
        widths = [max(len(line[at]) for line in table) for at in range(len(table[0]))]
        lines = [
            "  "
            + "  ".join(
                cell.ljust(width) for cell, width in zip(line, widths, strict=True)
            ).rstrip()
            for line in table
        ]
        total = sum(row.total for row in rows)
        sent = sum(row.sent for row in rows)
        count = sum(row.count for row in rows)
        where = "the setup" if step < 0 else f"step {step + 1}"
        known = [row.seconds for row in rows if row.seconds is not None]
        ending = (
            [f"Estimated {sum(known) * 1e3:.3g} ms in all. {_ESTIMATE}"]
            if len(known) == len(rows)
            else [f"No times: too little is published about {self.placement.target.name}."]
        )
        sizes = f"payload {show(total)}, sent by this rank {show(sent)}"
        return [
            f"Collectives of {where}: {count}, {sizes}",
            *lines,
            *ending,
        ]


def show(size: float) -> str:
    """Bytes for people: `1.50 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} B" if unit == "B" else f"{size:.2f} {unit}"


def when(step: int, phase: str) -> str:
    """A moment for people: `in backward of step 2`."""
    return phase if step < 0 else f"{phase} of step {step + 1}"


def _consumers(moment: Moment, most: int = 10) -> tuple[Consumer, ...]:
    alike: dict[tuple[object, ...], list[tuple[str, int]]] = {}
    for block, size in moment.blocks:
        maker = block.maker.removesuffix(".default")
        what = block.name or (f"{maker} in {block.module}" if block.module else maker)
        kind = block.kind
        # Parameters and gradients of the same shape are one line, under the first one's name.
        key = (kind, block.dtype, block.shape, "" if kind in _NAMED else maker)
        alike.setdefault(key, []).append((what, size))
    found = [
        Consumer(
            kind=str(key[0]),
            what=several[0][0] + (" and others" if len({what for what, _ in several}) > 1 else ""),
            dtype=str(key[1]),
            shape=key[2],  # type: ignore[arg-type]
            count=len(several),
            bytes=sum(size for _, size in several),
        )
        for key, several in alike.items()
    ]
    return tuple(sorted(found, key=lambda one: -one.bytes)[:most])


_NAMED = {"parameters", "gradients", "optimizer state", "gathered parameters", "buffers"}


def make_plan(mode: PlanMode, placement: Placement, rank: int) -> Plan:
    """Put together what was noted."""
    memory = mode.progress.memory
    moment = memory.peak("neuron")
    return Plan(
        rank=rank,
        world_size=placement.world_size,
        instance=placement.instance.name,
        instances=placement.instances,
        lnc=placement.lnc,
        ranks_per_instance=placement.ranks_per_instance,
        steps=mode.progress.steps,
        hbm_bytes=placement.hbm_bytes,
        peak_bytes=moment.bytes,
        peak_phase=moment.phase,
        peak_step=moment.step,
        memory=moment.by_kind(),
        phases=tuple((*key, size) for key, size in memory.peaks("neuron").items()),
        consumers=_consumers(moment),
        host_bytes=memory.peak("cpu").bytes,
        order=tuple(mode.issued),
        placement=placement,
    )
