"""The part of a tile that a mask leaves: a box where it cuts one, else boxes or truth values."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from nki.errors import NkiError
from nki.first_generation.indices import Booleans, Mask, Run

__all__ = [
    "Box",
    "TileRegion",
    "box_slices",
    "boxes_of",
    "region_of_mask",
    "region_of_values",
    "whole_box",
]

Box = tuple[tuple[int, int], ...]


class TileRegion(NamedTuple):
    """Elements of a tile.

    Attributes:
        box: (first, end) for each dimension; outside of it is nothing. None if there is nothing.
        inside: truth values in the shape of the box, None if all of the box takes part.
    """

    box: Box | None
    inside: Booleans | None = None

    def covers(self, shape: tuple[int, ...]) -> bool:
        """Return whether it is all of a tile of a shape."""
        return self.inside is None and self.box == whole_box(shape)


@lru_cache(maxsize=1024)
def whole_box(shape: tuple[int, ...]) -> Box:
    """Return the box of a whole tile."""
    return tuple((0, n) for n in shape)


def box_slices(box: Box) -> tuple[slice, ...]:
    """Return a box as an index."""
    return tuple(slice(low, high) for low, high in box)


def region_of_mask(mask: Mask | bool | None, shape: tuple[int, ...]) -> TileRegion:
    """Return what a mask leaves of a tile of some shape.

    Raises:
        NkiError: the mask is for tiles of another shape (NKI262).
    """
    if mask is None or mask is True:
        return TileRegion(whole_box(shape))
    if mask is False:
        return TileRegion(None)
    if not isinstance(mask, Mask):
        raise NkiError(
            "NKI262",
            f"a mask was given as {type(mask).__name__}",
            "compare index expressions: mask=(i_p < n) & (i_f < m)",
        )
    found: TileRegion | None = mask.regions.get(shape)
    if found is None:
        found = mask.regions[shape] = _region(mask, shape)
    return found


def _region(mask: Mask, shape: tuple[int, ...]) -> TileRegion:
    try:
        conditions = list(mask.conditions(shape))
    except NkiError as error:
        raise NkiError(
            "NKI262",
            f"a mask of shape {mask.shape} was given for a tile of shape {shape}",
            "make it of index expressions with the sizes of the tile, or of size 1",
        ) from error
    box = list(whole_box(shape))
    rest: list[Booleans] = []
    for condition in conditions:
        if isinstance(condition, Run):
            if condition.first >= condition.end:
                return TileRegion(None)
            if condition.axis is not None:
                low, high = box[condition.axis]
                box[condition.axis] = (max(low, condition.first), min(high, condition.end))
            continue
        long = [axis for axis, n in enumerate(condition.shape) if n > 1]
        if len(long) > 1:
            rest.append(condition)
            continue
        if not condition.any():
            return TileRegion(None)
        if not long:
            continue
        line = np.flatnonzero(condition)
        low, high = int(line[0]), int(line[-1]) + 1
        axis = long[0]
        box[axis] = (max(box[axis][0], low), min(box[axis][1], high))
        if high - low != line.size:
            rest.append(condition)
    return _remaining(tuple(box), rest)


def _remaining(box: Box, conditions: list[Booleans]) -> TileRegion:
    """Return the region of a box where further conditions hold, with the smallest box."""
    if any(low >= high for low, high in box):
        return TileRegion(None)
    if not conditions:
        return TileRegion(box)
    inside = np.ones(tuple(high - low for low, high in box), bool)
    for condition in conditions:
        key = tuple(
            slice(None) if n == 1 else slice(low, high)
            for n, (low, high) in zip(condition.shape, box, strict=True)
        )
        inside &= condition[key]
    if not inside.any():
        return TileRegion(None)
    tight = []
    for axis, (low, _) in enumerate(box):
        others = tuple(k for k in range(inside.ndim) if k != axis)
        line = np.flatnonzero(inside.any(axis=others))
        tight.append((low + int(line[0]), low + int(line[-1]) + 1))
    key = tuple(
        slice(new[0] - old[0], new[1] - old[0]) for new, old in zip(tight, box, strict=True)
    )
    inside = inside[key]
    return TileRegion(tuple(tight), None if inside.all() else inside)


def region_of_values(values: Booleans) -> TileRegion:
    """Return the region where truth values hold."""
    return _remaining(whole_box(values.shape), [values])


def boxes_of(region: TileRegion) -> Iterator[Box]:
    """Iterate over boxes that make up a region: equal neighbouring rows are taken together."""
    if region.box is None:
        return
    if region.inside is None:
        yield region.box
        return
    yield from _split(region.inside, region.box)


def _split(inside: Booleans, box: Box) -> Iterator[Box]:
    low, _ = box[0]
    rows = inside.reshape(inside.shape[0], -1)
    start = 0
    for row in range(1, len(rows) + 1):
        if row < len(rows) and np.array_equal(rows[row], rows[start]):
            continue
        first = inside[start]
        span = (low + start, low + row)
        if first.all():
            yield (span, *box[1:])
        elif first.any():
            yield from ((span, *inner) for inner in _split(first, box[1:]))
        start = row
