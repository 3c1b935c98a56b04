"""Buckets of latencies: eight for each power of two, so that each is known to within an eighth.

The native core fills such histograms, in ticks of its clock; what keeps predicted times does, in
nanoseconds.
"""

from __future__ import annotations

from typing import Final

BUCKETS: Final = 352


def bucket(latency: int) -> int:
    """The bucket of a latency."""
    if latency < 8:
        return latency
    power = latency.bit_length() - 1
    return min(BUCKETS - 1, (power - 2) * 8 + (latency >> (power - 3) & 7))


def bounds(number: int) -> tuple[int, int]:
    """Return the shortest latency of a bucket and of the one after it."""
    return _start(number), _start(number + 1)


def _start(number: int) -> int:
    power, part = divmod(number, 8)
    return part if power == 0 else (8 + part) << (power - 1)
