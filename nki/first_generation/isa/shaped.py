"""Instructions of those engines whose results have shapes, or masks cuts, of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nki.arguments import as_integers, as_number
from nki.dtypes import info
from nki.errors import NkiError, NkiTypeError
from nki.first_generation.boxes import Box, TileRegion, box_slices, region_of_mask, region_of_values
from nki.first_generation.compute import LANES, WHOLE, Operand, compute, tile_of
from nki.first_generation.dtypes import dtype_name
from nki.first_generation.indices import Index, Mask, as_index
from nki.first_generation.isa.common import (
    kind_of,
    no_more,
    reduced,
    reduction_axes,
)
from nki.first_generation.isa.constants import engine as engines
from nki.first_generation.state import issue, new_tile
from nki.first_generation.tensors import Tensor
from nki.first_generation.writes import copy, fill, merge, on_sbuf
from nki.isa.alu import ALU, op_name
from nki.tensor import NkiTensor


def _affine(index: Index, shape: tuple[int, ...], name: str) -> tuple[list[list[int]], int, int]:
    """Return pattern, offset and channel multiplier of an affine expression."""
    raised = index.raised(shape)
    if not raised.affine:
        raise NkiError(
            "NKI260",
            f"{name} was given {index!r}, which is not affine",
            "write a sum of multiples of nl.arange",
        )
    free = list(zip(raised.steps[1:], shape[1:], strict=True))
    pairs = [[s, n] for s, n in free if n > 1] or [[0, 1]]
    return pairs, raised.offset, raised.steps[0]


def affine_select(
    pred: Any,
    on_true_tile: Tensor,
    on_false_value: float,
    *,
    mask: Any = None,
    dtype: Any = None,
    **more: Any,
) -> Tensor:
    """Return `on_true_tile` where one comparison of index expressions holds, else a number."""
    no_more("affine_select", more)
    tile = tile_of(on_true_tile, "affine_select on_true_tile")
    if isinstance(pred, (bool, np.bool_)):  # of counters of loops and numbers of programs alone
        pred = Mask(((Index((), int(pred), ()), "not_equal"),))
    if not isinstance(pred, Mask) or len(pred.terms) != 1 or pred.others:
        raise NkiError(
            "NKI262",
            f"affine_select was given the predicate {pred!r}",
            "compare two affine expressions once; use nl.where for anything else",
        )
    index, comparison = pred.terms[0]
    pattern, offset, multiplier = _affine(index, tile.shape, "affine_select")
    whole = _affine_tile(
        tile, kind_of(dtype, tile.dtype), pattern, offset, multiplier, comparison, on_false_value
    )
    return _where_mask(whole, mask)


def _affine_tile(
    tile: NkiTensor,
    kind: str,
    pattern: list[list[int]],
    offset: int,
    multiplier: int,
    comparison: str,
    on_false: float,
) -> Tensor:
    return compute(
        "affine_select",
        tile.shape,
        kind,
        {"on_true_tile": Operand(on_sbuf(tile))},
        attributes={
            "pattern": pattern,
            "offset": offset,
            "channel_multiplier": multiplier,
            "on_false_value": float(on_false),
            "cmp_op": comparison,
        },
    )


def _where_mask(whole: Tensor, mask: Any) -> Tensor:
    """Return a tile of which only what a mask leaves is defined."""
    if mask is None:
        return whole
    return compute(
        "tensor_copy", whole.shape, whole.kind, {"src": Operand(whole.tile())}, mask=mask
    )


def iota(expr: Any, dtype: Any, *, mask: Any = None, **more: Any) -> Tensor:
    """Return the values of an affine index expression as a tile.

    A counter of a loop and the number of a program are expressions too, of one value.
    """
    no_more("iota", more)
    index = as_index(expr)
    if index is None:
        raise NkiTypeError("NKI260", f"iota was given {expr!r}", "give an expression of nl.arange")
    shape = index.shape if index.ndim > 1 else (1,) * (2 - index.ndim) + index.shape
    pattern, offset, multiplier = _affine(index, shape, "iota")
    made = compute(
        "iota",
        shape,
        dtype_name(dtype),
        {},
        attributes={"pattern": pattern, "offset": offset, "channel_multiplier": multiplier},
    )
    return _where_mask(made, mask)


def local_gather(
    src_buffer: Tensor,
    index: Tensor,
    num_elem_per_idx: int = 1,
    num_valid_indices: int | None = None,
    *,
    mask: Any = None,
) -> Tensor:
    """Return elements of the free dimension that each group of 16 partitions has indices for."""
    source, chosen = tile_of(src_buffer, "src_buffer"), tile_of(index, "index")
    most = chosen.size // chosen.shape[0] * 16
    count = most if num_valid_indices is None else int(num_valid_indices)
    shape: tuple[int, ...] = (source.shape[0], count, num_elem_per_idx)
    if count == most:
        shape = (source.shape[0], *chosen.shape[1:], 16, num_elem_per_idx)
    return compute(
        "local_gather",
        shape,
        source.dtype,
        {"src_buffer": Operand(source, LANES), "index": Operand(chosen, LANES)},
        attributes={"num_elem_per_idx": num_elem_per_idx, "num_valid_indices": num_valid_indices},
        domain=shape,
        mask=mask,
    )


def memset(
    shape: Sequence[int],
    value: float,
    dtype: Any,
    *,
    mask: Any = None,
    engine: Any = engines.unknown,
    **more: Any,
) -> Tensor:
    """Return a new tile with a number everywhere."""
    no_more("memset", more)
    kind = dtype_name(dtype)
    number = as_number(value, "nisa.memset value")
    if info(kind).is_int:
        number = int(value)
    return compute(
        "memset",
        as_integers(shape, "nisa.memset shape"),
        kind,
        {},
        attributes={"value": number, "engine": engine},
        mask=mask,
    )


def nc_stream_shuffle(
    src: Tensor,
    dst: Tensor,
    shuffle_mask: Sequence[int],
    *,
    dtype: Any = None,
    mask: Any = None,
    **more: Any,
) -> None:
    """Move data between partitions of each quadrant, from `src` to `dst`."""
    no_more("nc_stream_shuffle", more)
    source, target = tile_of(src, "src"), tile_of(dst, "dst")
    if dtype is not None and dtype_name(dtype) != target.dtype:
        raise NkiError(
            "NKI268",
            f"nc_stream_shuffle was given dtype {dtype_name(dtype)} for a tile of {target.dtype}",
            "leave it out: the instruction does not convert",
        )
    numbers = [int(n) for n in shuffle_mask]
    if mask is None:
        issue("nc_stream_shuffle", dst=target, src=source, shuffle_mask=numbers)
        return
    region = region_of_mask(mask, target.shape)
    if region.box is None:
        return
    whole = new_tile(target.shape, target.dtype)
    copy(whole, target)
    issue("nc_stream_shuffle", dst=whole, src=source, shuffle_mask=numbers)
    merge(target, whole, region)


def sequence_bounds(*, segment_ids: Tensor, dtype: Any = None) -> Tensor:
    """Return where the segment of each element begins and ends: shape (1, 2, n)."""
    tile = tile_of(segment_ids, "sequence_bounds segment_ids")
    made = compute(
        "sequence_bounds",
        (1, 2, tile.size // tile.shape[0]),
        tile.dtype,
        {"segment_ids": Operand(tile, WHOLE)},
    )
    return made if dtype is None or dtype_name(dtype) == tile.dtype else made.astype(dtype)


def tensor_partition_reduce(
    op: Any, data: Tensor, *, mask: Any = None, dtype: Any = None, **more: Any
) -> Tensor:
    """Return the reduction over all partitions: one partition."""
    no_more("tensor_partition_reduce", more)
    tile = on_sbuf(tile_of(data, "tensor_partition_reduce data", mask))

    def first_row(box: Box) -> Box:
        return ((0, 1), *box[1:])

    return compute(
        "tensor_partition_reduce",
        (1, *tile.shape[1:]),
        kind_of(dtype, tile.dtype),
        {"data": Operand(tile)},
        attributes={"op": op},
        domain=tile.shape,
        follows=first_row,
        mask=mask,
    )


def tensor_reduce(
    op: Any,
    data: Tensor,
    axis: Any,
    *,
    mask: Any = None,
    dtype: Any = None,
    negate: bool = False,
    keepdims: bool = False,
    **more: Any,
) -> Tensor:
    """Return the reduction over free dimensions; those that are not last are moved by the view."""
    no_more("tensor_reduce", more)
    tile = tile_of(data, "tensor_reduce data", mask)
    rank = tile.ndim
    axes = reduction_axes(axis, rank)
    if not axes or axes[0] < 1 or axes[-1] >= rank or len(set(axes)) < len(axes):
        raise NkiError(
            "NKI266",
            f"tensor_reduce over the axes {axis!r} of a tile of shape {tile.shape}",
            "name free dimensions; the partition is reduced by nisa.tensor_partition_reduce",
        )
    kept = [d for d in range(rank) if d not in axes]
    shape = reduced(tile.shape, axes, keepdims=keepdims)

    def left(box: Box) -> Box:
        if keepdims:
            return tuple((0, 1) if d in axes else box[d] for d in range(rank))
        found = tuple(box[d] for d in kept)
        return found if len(found) > 1 else (*found, (0, 1))

    order = (*kept, *axes)
    arguments = {"op": op, "axis": tuple(range(len(kept), rank)), "negate": negate}
    region = region_of_mask(mask, tile.shape)
    valid = None
    if region.inside is not None:
        # Elements beyond the mask become what changes no reduction.
        tile, mask = _neutral(op, tile, region), None
        assert region.box is not None
        inside = np.zeros(tile.shape, bool)
        inside[box_slices(region.box)] = region.inside
        valid = region_of_values(inside.any(axis=axes).reshape(shape))

    def moved_box(box: Box) -> Box:
        return tuple(box[d] for d in order)

    data_operand = Operand(tile)
    if order != tuple(range(rank)):
        data_operand = Operand(tile.permute(order), moved_box)
    made = compute(
        "tensor_reduce",
        shape,
        kind_of(dtype, tile.dtype),
        {"data": data_operand},
        attributes=arguments,
        domain=tile.shape,
        follows=left,
        mask=mask,
    )
    return made if valid is None else made.only(valid)


def _neutral(op: Any, tile: NkiTensor, region: TileRegion) -> NkiTensor:
    """Return a copy of a tile with the identity of an operator wherever a mask does not hold."""
    identity = ALU[op_name(op)].identity
    if identity is None:
        raise NkiError(
            "NKI262",
            f"tensor_reduce by {op_name(op)} was given a mask that cuts no box out of its tile of "
            f"shape {tile.shape}",
            "compare each dimension with a bound",
        )
    whole = new_tile(tile.shape, tile.dtype)
    fill(whole, identity)
    merge(whole, tile, region)
    return whole
