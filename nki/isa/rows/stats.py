"""Mean and variance: bn_stats, bn_aggr."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nki.isa import convert, cost
from nki.isa.cast import Array
from nki.isa.rows.common import Arrays, on, read, source, target
from nki.isa.rules import dst_free, requires, same_partitions
from nki.isa.spec import Instruction
from nki.isa.state import Step

__all__ = ["ROWS"]

Attributes = Mapping[str, Any]

_FMAX = 512
_TUPLE = 3


def _statistics(x: Array) -> Array:
    """Return count, mean and variance * count of float32 (P, F), shape (P, 3); zeros if F is 0."""
    wide = x.astype(np.float64)
    count = wide.shape[1]
    mean = wide.sum(axis=1) / max(count, 1)
    moment = ((wide - mean[:, None]) ** 2).sum(axis=1)
    return np.stack([np.full_like(mean, count), mean, moment], axis=1).astype(np.float32)


def _bn_stats(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    del attributes
    data = read(step, operands, "data")
    return {"dst": np.concatenate([_statistics(data[:, 0::2]), _statistics(data[:, 1::2])], axis=1)}


def _bn_aggr(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    del attributes
    data = read(step, operands, "data").astype(np.float64)
    count, mean, moment = (data[:, part::_TUPLE] for part in range(_TUPLE))
    total = count.sum(axis=1)
    average = (count * mean).sum(axis=1) / total
    between = (count * (mean - average[:, None]) ** 2).sum(axis=1)
    variance = (moment.sum(axis=1) + between) / total
    return {"dst": np.stack([average, variance], axis=1).astype(np.float32)}


ROWS = (
    Instruction(
        "bn_stats",
        (target(), source("data"), convert.NAME),
        on("vector"),
        _bn_stats,
        cost.streaming("data"),
        (
            same_partitions("dst", "data"),
            dst_free("dst", 2 * _TUPLE),
            requires(
                "NKI104",
                "bn_stats data has {got} elements per partition, at most 512 are possible",
                "call it on tiles of nl.tile_size.bn_stats_fmax elements that write into one "
                "tensor, and aggregate that with one nisa.bn_aggr",
                lambda call: call.tile("data").free <= _FMAX,
                got=lambda call: call.tile("data").free,
            ),
        ),
    ),
    Instruction(
        "bn_aggr",
        (target(), source("data"), convert.NAME),
        on("vector"),
        _bn_aggr,
        cost.streaming("data", 13 / 3),
        (
            same_partitions("dst", "data"),
            dst_free("dst", 2),
            requires(
                "NKI128",
                "bn_aggr data has {got} elements per partition, it needs a multiple of 3",
                "pass results of nisa.bn_stats: (count, mean, variance * count) each",
                lambda call: call.tile("data").free % _TUPLE == 0,
                got=lambda call: call.tile("data").free,
            ),
        ),
    ),
)
