"""Masks of matrix products: of the contraction, and of the operands' columns."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from nki.errors import NkiError
from nki.first_generation.boxes import (
    Box,
    TileRegion,
    box_slices,
    region_of_mask,
    region_of_values,
    whole_box,
)
from nki.first_generation.compute import tile_of
from nki.first_generation.indices import Mask
from nki.first_generation.state import new_tile
from nki.first_generation.tensors import Access, Tensor
from nki.first_generation.writes import copy, fill, merge, take
from nki.tensor import NkiTensor

__all__ = [
    "Cut",
    "flat",
    "operand_within",
    "preceded",
    "product_cut",
    "product_mask",
    "shape_of",
    "valid_of",
    "zeroed",
]

# Axes of a product beside its contraction.
_STATIONARY, _MOVING = 1, 2


def flat(tensor: NkiTensor) -> NkiTensor:
    """Return a tile with its free dimensions as one."""
    return tensor if tensor.ndim == 2 else tensor.reshape((tensor.shape[0], -1))


def product_mask(mask: Any, what: str) -> NkiError:
    """Return the error of a mask that a product cannot keep (NKI262)."""
    return NkiError(
        "NKI262",
        f"nc_matmul was given a mask {mask!r} for {what}",
        "mask the contraction with its partition index, columns of one operand with its free "
        "index, or make a mask of three axes: contraction, columns of stationary, columns of "
        "moving; or mask operands: t[i_f < n]",
    )


class Cut(NamedTuple):
    """The part of a product that a mask leaves.

    Attributes:
        box: of contraction, stationary columns and moving columns; None if nothing is left.
        zeros: (number of the operand, 1 or 2, region of it): its other elements count as 0.
    """

    box: Box | None
    zeros: tuple[tuple[int, TileRegion], ...] = ()


def product_cut(mask: Any, sizes: tuple[int, int, int]) -> Cut:
    """Return what a mask leaves of contraction, stationary and moving columns.

    Each comparison of a mask of two axes is for itself: a first axis of the contraction's size is
    the contraction, else that of the result's partitions, which are stationary's columns. A second
    axis is moving's columns if it has their size, else stationary's.
    """
    if not isinstance(mask, Mask):
        return Cut(region_of_mask(mask, sizes).box)
    parts = [Mask((term,)) for term in mask.terms] + [Mask((), (v,)) for v in mask.others]
    if any(len(part.shape) > 2 for part in parts):
        region = region_of_mask(mask, sizes)
        if region.inside is not None:
            raise product_mask(mask, "no box")
        return Cut(region.box)
    box: list[tuple[int, int]] = list(whole_box(sizes))
    zeros: list[tuple[int, TileRegion]] = []
    for part in parts:
        region, height, width = _part_cut(mask, part, sizes)
        if region.box is None:
            return Cut(None)
        for axis, span in zip((height, width), region.box, strict=True):
            if span != (0, sizes[axis]):
                box[axis] = max(box[axis][0], span[0]), min(box[axis][1], span[1])
        if region.inside is not None:
            if height == _STATIONARY:
                raise product_mask(mask, "no box of the result")
            zeros += _zeros(region, width, sizes)
    empty = any(low >= high for low, high in box)
    return Cut(None if empty else tuple(box), tuple(zeros))


def _zeros(
    region: TileRegion, width: int, sizes: tuple[int, int, int]
) -> list[tuple[int, TileRegion]]:
    """Return what is to be zeroed so that only a region that is no box takes part."""
    assert region.box is not None
    assert region.inside is not None
    rows = region.inside[:, :1]
    if not (region.inside == rows).all():
        return [(width, region)]
    # Rows of the contraction that take no part must not do so by inf * 0 either.
    return [
        (
            k,
            TileRegion(
                (region.box[0], (0, sizes[k])), np.broadcast_to(rows, (len(rows), sizes[k]))
            ),
        )
        for k in (_STATIONARY, _MOVING)
    ]


def _part_cut(mask: Any, part: Mask, sizes: tuple[int, int, int]) -> tuple[TileRegion, int, int]:
    """Return what one condition leaves, and which of the three sizes its axes are."""
    rows, columns = (1, 1, *part.shape)[-2:]
    index = part.terms[0][0] if part.terms else None
    if index is not None and index.affine and index.ndim and not index.steps[-1]:
        columns = 1
    height = _STATIONARY if rows not in (1, sizes[0]) and rows == sizes[1] else 0
    width = _MOVING if height or columns in (1, sizes[_MOVING]) else _STATIONARY
    if columns not in (1, sizes[width]):
        raise product_mask(mask, f"{sizes[1]} and {sizes[2]} columns")
    if columns == 1 and index is not None and index.ndim > 1:
        part = Mask(((index.part(((0, index.shape[0]), (0, 1))), part.terms[0][1]),))
    return region_of_mask(part, (sizes[height], sizes[width])), height, width


def shape_of(operand: Any, what: str) -> tuple[int, ...]:
    """Return the shape of an operand, which may leave its tensor.

    Raises:
        NkiError: it is no tile (NKI266).
    """
    return operand.shape if isinstance(operand, Access) else tile_of(operand, what).shape


def operand_within(operand: Tensor, cut: Cut, axis: int) -> NkiTensor:
    """Return an operand of a product, which may leave its tensor where a mask leaves it out.

    Args:
        operand: stationary or moving.
        cut: what the mask leaves.
        axis: 1 for stationary, 2 for moving.
    """
    if not isinstance(operand, Access) or operand.inside() or operand.ndim > _MOVING:
        return operand.tile()
    made = new_tile(operand.shape, operand.kind)
    fill(made, 0)
    if cut.box is not None:
        box = (cut.box[0], cut.box[axis])
        copy(take(made, box), operand.part(box))
    return made


def zeroed(tensor: NkiTensor, region: TileRegion) -> NkiTensor:
    """Return a copy of an operand with 0 outside of a region."""
    made, source = new_tile(flat(tensor).shape, tensor.dtype), flat(tensor)
    fill(made, 0)
    merge(made, source, region)
    return made


def preceded(stationary: NkiTensor, count: int) -> NkiTensor:
    """Return stationary after so many columns of 0: its rows of the result begin so much later.

    That is for a result in partitions where no engine starts: those before them gain 0.
    """
    rows, columns = stationary.shape
    made = new_tile((rows, count + columns), stationary.dtype)
    fill(made[:, :count], 0)
    copy(made[:, count:], stationary)
    return made


def valid_of(cut: Cut, shape: tuple[int, ...]) -> TileRegion:
    """Return what a product writes of its result: where something of the contraction is left."""
    box = cut.box
    if box is None:
        return TileRegion(None)
    if not cut.zeros:
        if box[_MOVING] == (0, math.prod(shape[1:])):
            return TileRegion((box[_STATIONARY], *whole_box(shape[1:])))
        if len(shape) == len(box) - 1:
            return TileRegion(box[1:])
    values = np.zeros((shape[0], math.prod(shape[1:])), bool)
    values[box_slices(box[1:])] = True
    for axis, region in cut.zeros:
        assert region.box is not None
        left = np.zeros(values.shape[axis - 1], bool)
        inside = np.ones((1, 1), bool) if region.inside is None else region.inside
        left[slice(*region.box[1])] = inside.any(axis=0)
        values &= left if axis == _MOVING else left[:, None]
    return region_of_values(values.reshape(shape))
