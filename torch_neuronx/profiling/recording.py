"""The native core's own recording of activities, without torch.profiler."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from neuron_tools.explorer.session import Event
from torch_neuronx import _C

_ALL = (1 << 64) - 1
_PROGRAM = "neuron::program "
#: Microseconds that programs of this process are predicted to take, by name; there are some with
#: TORCH_NEURONX_CLOCK=model.
PREDICTED: Final[dict[str, float]] = {}


def start(most: int, cores: Collection[int] = ()) -> None:
    """Begin, and forget an earlier one: of each core the latest `most` are kept; no cores: all."""
    _C.start_recording(most, sum(1 << core for core in set(cores)) if cores else _ALL)


def take() -> tuple[list[Event], int]:
    """End; returns the events by start, and how many were dropped."""
    rows, dropped = _C.take_recording()
    events = [
        Event(name, kind, begin, end, core, row, _numbers(facts) | predicted(name, kind))
        for name, kind, begin, end, core, row, facts in rows
    ]
    return sorted(events, key=lambda event: event.start), dropped


def _numbers(facts: dict[str, str]) -> dict[str, Any]:
    return {key: int(value) if value.isdecimal() else value for key, value in facts.items()}


def predicted(name: str, kind: str) -> dict[str, float]:
    """Return what a program's interval is predicted to be on hardware, where that is kept.

    The interval itself is this host's, whatever the clock.
    """
    us = PREDICTED.get(name.removeprefix(_PROGRAM)) if kind == "program" else None
    return {} if us is None else {"predicted_us": us}
