"""Movement by index or mask: local_gather, nc_n_gather, nc_stream_shuffle, sequence_bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nki.errors import NkiError
from nki.isa import convert, cost
from nki.isa.cast import Array
from nki.isa.rows.common import SBUF, Arrays, flat, on, raw, source, target
from nki.isa.rules import legal_starts, requires, same_dtype, same_free, same_partitions
from nki.isa.spec import ANY_DTYPE, Attribute, Call, Instruction, Role
from nki.isa.state import Step

__all__ = ["ROWS"]

Attributes = Mapping[str, Any]

_GROUP = 16
_QUADRANT = 32
_KEEP = 255
_ELEMENTS = (1, 2, 4, 8, 16, 32)
_MOST_INDICES = 4096


def _in_bounds(name: str, operand: str, positions: Array, length: int) -> None:
    bad = positions[(positions < 0) | (positions >= length)]
    if bad.size:
        raise NkiError(
            "NKI132",
            f"{name} {operand} holds {int(bad[0])}, but there are {length} elements per partition",
            "hardware does not check: keep indices inside, for instance with nl.minimum",
        )


# local_gather


def _valid(call: Call) -> int:
    index = call.tile("index")
    given = call.attributes["num_valid_indices"]
    return int(given) if given is not None else index.free * _GROUP


def _local_gather(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    data, index = raw(step, operands, "src_buffer"), flat(operands["index"]).astype(np.int64)
    count = attributes["num_valid_indices"]
    count = index.shape[1] * _GROUP if count is None else count
    width = attributes["num_elem_per_idx"]
    result = np.empty((data.shape[0], count * width), data.dtype)
    for first in range(0, data.shape[0], _GROUP):
        group = slice(first, first + _GROUP)
        starts = index[group].T.reshape(-1)[:count]  # along partitions first
        columns = (starts[:, None] + np.arange(width)).reshape(-1)
        _in_bounds("local_gather", "index", columns, data.shape[1])
        result[group] = data[group][:, columns]
    return {"dst": result}


def _local_gather_cycles(call: Call) -> float:
    width = int(call.attributes["num_elem_per_idx"])
    itemsize = call.tile("src_buffer").info.itemsize
    per_cycle = ((28 + 4 * width) / (4 * width)) / min(4 / itemsize, width)
    return cost.GPSIMD_START + _valid(call) * width / per_cycle


# nc_n_gather


def _n_gather(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    del attributes
    data, indices = raw(step, operands, "data"), flat(operands["indices"]).astype(np.int64)
    _in_bounds("nc_n_gather", "indices", indices, data.shape[1])
    return {"dst": np.take_along_axis(data, indices, axis=1)}


# nc_stream_shuffle


def _mask(given: Any) -> tuple[int, ...]:
    values = convert.integers(_QUADRANT)(given)
    bad = [value for value in values if not (0 <= value < _QUADRANT or value == _KEEP)]
    if bad:
        raise ValueError(
            f"holds {bad[0]}; each element is a partition 0 to 31 of the quadrant, "
            "or 255 to keep the destination"
        )
    return tuple(values)


def _shuffle(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    result, src = raw(step, operands, "dst").copy(), raw(step, operands, "src")
    before = src.copy()  # dst may be src
    for lane in range(result.shape[0]):
        choice = attributes["shuffle_mask"][lane % _QUADRANT]
        if choice != _KEEP:
            result[lane] = before[lane // _QUADRANT * _QUADRANT + choice]
    return {"dst": result}


def _shuffle_sources(call: Call) -> list[int]:
    """Return partitions that the mask asks for and that src does not have."""
    mask, have = call.attributes["shuffle_mask"], call.tile("src").partitions
    asked = (
        lane // _QUADRANT * _QUADRANT + mask[lane % _QUADRANT]
        for lane in range(call.tile("dst").partitions)
        if mask[lane % _QUADRANT] != _KEEP
    )
    return [partition for partition in asked if partition >= have]


def _active(call: Call) -> int:
    most = max(call.tile("src").partitions, call.tile("dst").partitions)
    return -(-most // _QUADRANT) * _QUADRANT


def _shuffle_starts(call: Call) -> bool:
    starts = legal_starts(_active(call))
    return all(t.partition is None or t.partition in starts for _, _, t in call.tiles())


# sequence_bounds


def _bounds(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    del step, attributes
    segments = flat(operands["segment_ids"])[0]
    n = segments.size
    start, end = np.full(n, n, np.float32), np.full(n, -1, np.float32)
    first = 0
    for position in range(n):
        if position and segments[position] != segments[position - 1]:
            first = position
        if segments[position] != 0:
            start[position] = first
            end[first : position + 1] = position + 1
    return {"dst": np.stack([start, end])}


_BOUNDS_DTYPES = frozenset({"float32", "int32"})

ROWS = (
    Instruction(
        "local_gather",
        (
            target(dtypes=ANY_DTYPE, regions=SBUF),
            source("src_buffer", ANY_DTYPE, regions=SBUF),
            source("index", frozenset({"uint16"}), regions=SBUF),
            Attribute("num_elem_per_idx", convert.integer(), 1),
            Attribute("num_valid_indices", convert.optional(convert.integer(1)), None),
            convert.NAME,
        ),
        on("gpsimd"),
        _local_gather,
        cost.by(_local_gather_cycles),
        (
            same_partitions("src_buffer", "index", "dst"),
            same_dtype("src_buffer", "dst"),
            requires(
                "NKI105",
                "local_gather has {got} partitions, it needs a multiple of 16",
                "a GpSimd core works on 16 partitions: pad the tensors",
                lambda call: call.tile("index").partitions % _GROUP == 0,
                got=lambda call: call.tile("index").partitions,
            ),
            requires(
                "NKI116",
                "local_gather num_elem_per_idx must be 1, 2, 4, 8, 16 or 32, got {got}",
                "gather more elements with several indices",
                lambda call: call.attributes["num_elem_per_idx"] in _ELEMENTS,
                got=lambda call: call.attributes["num_elem_per_idx"],
            ),
            requires(
                "NKI104",
                "local_gather has {got} indices per core, allowed: {most}",
                "an index tensor holds 16 times its elements per partition, and at most 4096",
                lambda c: _valid(c) <= min(_MOST_INDICES, c.tile("index").free * _GROUP),
                got=_valid,
                most=lambda c: min(_MOST_INDICES, c.tile("index").free * _GROUP),
            ),
            requires(
                "NKI106",
                "local_gather dst has {got} elements per partition, the indices give {want}",
                "num_valid_indices * num_elem_per_idx must be the size of a partition of dst",
                lambda c: c.tile("dst").free == _valid(c) * c.attributes["num_elem_per_idx"],
                got=lambda c: c.tile("dst").free,
                want=lambda c: _valid(c) * c.attributes["num_elem_per_idx"],
            ),
        ),
    ),
    Instruction(
        "nc_n_gather",
        (
            target(dtypes=ANY_DTYPE, regions=SBUF),
            source("data", ANY_DTYPE, regions=SBUF),
            source("indices", frozenset({"uint32"}), regions=SBUF),
            convert.NAME,
        ),
        on("gpsimd"),
        _n_gather,
        cost.by(
            lambda c: -(-c.tile("dst").free // 512) * cost.GPSIMD_START + c.tile("dst").free,
            "unpublished; one GpSimd start for each documented group of 512, " + cost.OCTOBER,
        ),
        (
            same_partitions("dst", "data", "indices"),
            same_free("dst", "indices"),
            same_dtype("dst", "data"),
        ),
    ),
    Instruction(
        "nc_stream_shuffle",
        (
            target(dtypes=ANY_DTYPE, role=Role.READWRITE, any_start=True),
            source("src", ANY_DTYPE, any_start=True),
            Attribute("shuffle_mask", _mask),
            convert.NAME,
        ),
        on("vector"),
        _shuffle,
        cost.streaming("src"),
        (
            same_dtype("dst", "src"),
            same_free("dst", "src"),
            requires(
                "NKI117",
                "nc_stream_shuffle of {active} active partitions starts at {starts}",
                "both tensors start at {allowed}",
                _shuffle_starts,
                active=_active,
                starts=lambda c: " and ".join(str(t.partition) for _, _, t in c.tiles()),
                allowed=lambda c: " or ".join(map(str, legal_starts(_active(c)))),
            ),
            requires(
                "NKI130",
                "nc_stream_shuffle shuffle_mask asks for partition {got} of src, which has {have}",
                "use 255 for the partitions of dst that have no source",
                lambda call: not _shuffle_sources(call),
                got=lambda call: _shuffle_sources(call)[0],
                have=lambda call: call.tile("src").partitions,
            ),
        ),
    ),
    Instruction(
        "sequence_bounds",
        (
            target(dtypes=_BOUNDS_DTYPES, regions=SBUF),
            source("segment_ids", _BOUNDS_DTYPES, regions=SBUF),
            convert.NAME,
        ),
        on("gpsimd"),
        _bounds,
        cost.by(
            lambda call: cost.GPSIMD_START + call.tile("segment_ids").free,
            "unpublished; as the other GpSimd instructions of " + cost.OCTOBER,
        ),
        (
            same_dtype("dst", "segment_ids"),
            requires(
                "NKI105",
                "sequence_bounds segment_ids has {got} partitions, it must have 1",
                "put the sequence into one partition",
                lambda call: call.tile("segment_ids").partitions == 1,
                got=lambda call: call.tile("segment_ids").partitions,
            ),
            requires(
                "NKI128",
                "sequence_bounds dst has shape {got}, it must be {want}",
                "dst holds the starts, then the ends",
                lambda c: c.tile("dst").shape == (1, 2, c.tile("segment_ids").free),
                got=lambda call: call.tile("dst").shape,
                want=lambda call: (1, 2, call.tile("segment_ids").free),
            ),
        ),
    ),
)
