"""Recommendations from a profile, by rules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from neuron_tools.explorer.session import Event, Session
from neuron_tools.explorer.tables import covered, summary_of

_SMALL_COPY = 32 << 10  # bytes: the average that Explorer's documents call good
_SHORT = 20_000  # nanoseconds


class Advice(NamedTuple):
    """What was found, in numbers, and what to do."""

    rule: str
    found: str
    remedy: str


class Work(NamedTuple):
    """What one core did: intervals but those of programs; from the first to the last, in ns."""

    core: int
    events: Sequence[Event]
    total: int


def _idle(work: Work) -> Advice | None:
    idle = 1 - covered(work.events) / work.total
    if idle <= 0.5:
        return None
    return Advice(
        "idle",
        f"the core does nothing {idle:.0%} of the time",
        "the host doesn't give it work fast enough: torch.compile, a larger batch, DataLoader "
        "workers, TORCH_NEURONX_EAGER_MODE=strict",
    )


def _short(work: Work) -> Advice | None:
    kernels = [e.end - e.start for e in work.events if e.kind == "kernel"]
    if len(kernels) < 100 or sorted(kernels)[len(kernels) // 2] >= _SHORT:
        return None
    return Advice(
        "short operators",
        f"half of {len(kernels)} operators take less than {_SHORT // 1000} us",
        "calls cost more than their work: torch.compile, or TORCH_NEURONX_EAGER_MODE=fused",
    )


def _copies(work: Work) -> Advice | None:
    copies = [e for e in work.events if e.kind == "copy"]
    active = covered(work.events)
    share = covered(copies) / active if active else 0
    if share <= 0.1:
        return None
    return Advice(
        "copies",
        f"{len(copies)} copies between cores and the host take {share:.0%} of the active time",
        "keep tensors on the device; .item() and .cpu() in a loop wait for each value",
    )


def _small_copies(work: Work) -> Advice | None:
    sizes = [int(e.facts.get("bytes", 0)) for e in work.events if e.kind == "copy"]
    if len(sizes) < 20 or sum(sizes) / len(sizes) >= _SMALL_COPY:
        return None
    return Advice(
        "small copies",
        f"{len(sizes)} copies move {sum(sizes) / len(sizes):.0f} bytes on average",
        f"join them: {_SMALL_COPY >> 10} KiB and more are moved well",
    )


def _communication(work: Work) -> Advice | None:
    messages = [e for e in work.events if e.kind == "communication"]
    others = [e for e in work.events if e.kind != "communication"]
    alone = covered(work.events) - covered(others)
    share = alone / work.total
    if not messages or share <= 0.25:
        return None
    return Advice(
        "communication",
        f"{share:.0%} of the time only collectives go on",
        "overlap them with work (FSDP2's prefetching, DDP's buckets), or send less",
    )


def _dominant(work: Work) -> Advice | None:
    times: defaultdict[str, int] = defaultdict(int)
    for event in work.events:
        times[event.name] += event.end - event.start
    name, most = max(times.items(), key=lambda item: item[1], default=("", 0))
    share = most / sum(times.values()) if times else 0
    if share <= 0.5 or len(times) < 3:
        return None
    return Advice(
        "dominant operator", f"{name} takes {share:.0%} of the time of all", "begin with this one"
    )


RULES: tuple[Callable[[Work], Advice | None], ...] = (
    _idle, _short, _copies, _small_copies, _communication, _dominant,
)  # fmt: skip


def advice(events: Sequence[Event]) -> dict[int, list[Advice]]:
    """Return what the rules find, by core."""
    found = {}
    for core in sorted({e.core for e in events if e.source == "neuron_hw"}):
        mine = [
            e for e in events if e.core == core and e.source == "neuron_hw" and e.kind != "program"
        ]
        total = round(summary_of(events, core)["total_time"] * 1e9)
        if mine and total:
            work = Work(core, mine, total)
            found[core] = [a for rule in RULES if (a := rule(work)) is not None]
    return found


def recommendations(session: Session) -> list[list[str]]:
    """Return what there is to say of a session, each with what was found and what to do.

    Of a prediction it is what the model's own rules found, which know instructions and transfers.
    """
    if session.is_simulation:
        return [[f"{rule}: {text}"] for rule, text in session.recommended]
    return [
        [f"nc_idx {core}: {item.rule}: {item.found}.", item.remedy]
        for core, items in advice(session.events).items()
        for item in items
    ]
