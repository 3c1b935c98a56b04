"""Latencies from the histograms that processes keep."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

from neuron_tools.registry.buckets import bounds
from neuron_tools.registry.reader import Values

PERCENTILES: Final = (0, 1, 25, 50, 75, 99, 100)


def running(core: Values) -> list[int]:
    """Histogram of the time that executions on a core took."""
    return [
        a + b for a, b in zip(core.series["at_call"], core.series["enqueued_running"], strict=True)
    ]


def total(core: Values) -> list[int]:
    """Histogram of the time from the call of an execution to its end."""
    return [
        a + b for a, b in zip(core.series["at_call"], core.series["enqueued_total"], strict=True)
    ]


def percentiles(histogram: Sequence[int], ticks_per_second: int) -> dict[str, float] | None:
    """Return latencies in seconds, "p0" to "p100"; None if nothing was executed.

    The latency of an execution is known to within a bucket, an eighth at most: p0 is where the
    first bucket starts, p100 where the last one ends, and others are the middle of theirs.
    """
    count = sum(histogram)
    if count == 0:
        return None
    found = {}
    for percentile in PERCENTILES:
        wanted = max(1, -(-count * percentile // 100))  # so many are not slower
        seen = itertools.accumulate(histogram)
        low, high = bounds(next(bucket for bucket, so_far in enumerate(seen) if so_far >= wanted))
        ticks = low if percentile == 0 else high if percentile == 100 else (low + high) / 2
        found[f"p{percentile}"] = ticks / ticks_per_second
    return found
