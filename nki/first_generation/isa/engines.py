"""Instructions of the Vector, Scalar and GpSimd engines, as the first generation called them.

Every function returns the tile that it computes, unless it names a destination. The instruction
itself is today's: `nki.isa` checks it and says what it means.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nki.dtypes import info
from nki.errors import NkiError, NkiTypeError
from nki.first_generation.boxes import Box, Region, box_slices, region_of_mask, region_of_values
from nki.first_generation.compute import LANES, WHOLE, Operand, compute, compute_into, tile_of
from nki.first_generation.dtypes import dtype_name, promote
from nki.first_generation.indices import Index, Mask
from nki.first_generation.isa.common import (
    kind_of,
    lanes,
    lanes_float32,
    no_more,
    reduced,
    reduction_axes,
    unsigned,
)
from nki.first_generation.isa.constants import engine as engines
from nki.first_generation.isa.constants import reduce_cmd as commands
from nki.first_generation.state import issue, new_tile
from nki.first_generation.tensors import Tensor
from nki.first_generation.writes import copy, fill, merge, on_sbuf
from nki.isa.alu import ALU, op_name
from nki.tensor import NkiTensor

FP32_MIN = float(np.finfo(np.float32).min)


def activation(
    op: Any,
    data: Tensor,
    *,
    bias: Any = None,
    scale: Any = 1.0,
    reduce_op: Any = None,
    reduce_res: Tensor | None = None,
    reduce_cmd: Any = commands.idle,
    mask: Any = None,
    dtype: Any = None,
    buffer: Any = None,
    **more: Any,
) -> Tensor:
    """Return ``op(data * scale + bias)`` (Scalar Engine)."""
    no_more("activation", more)
    tile = tile_of(data, "activation data", mask)
    return compute(
        "activation",
        tile.shape,
        kind_of(dtype, tile.dtype),
        {
            "data": Operand(tile),
            "bias": lanes(bias),
            "scale": lanes(scale),
            "reduce_res": lanes(reduce_res),
        },
        attributes={"op": op, "reduce_op": reduce_op, "reduce_cmd": reduce_cmd},
        mask=mask,
        buffer=buffer,
    )


def activation_reduce(
    op: Any,
    data: Tensor,
    *,
    reduce_op: Any,
    reduce_res: Tensor,
    bias: Any = None,
    scale: Any = 1.0,
    mask: Any = None,
    dtype: Any = None,
    **more: Any,
) -> Tensor:
    """Return ``op(data * scale + bias)`` and write its reduction to `reduce_res`."""
    no_more("activation_reduce", more)
    tile = tile_of(data, "activation_reduce data", mask)
    return compute(
        "activation_reduce",
        tile.shape,
        kind_of(dtype, tile.dtype),
        {
            "data": Operand(tile),
            "bias": lanes(bias),
            "scale": lanes(scale),
            "reduce_res": lanes(reduce_res),
        },
        attributes={"op": op, "reduce_op": reduce_op},
        mask=mask,
    )


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


def bn_aggr(data: Tensor, *, mask: Any = None, dtype: Any = None, **more: Any) -> Tensor:
    """Return mean and variance of each partition from results of `bn_stats`."""
    no_more("bn_aggr", more)
    return _per_lane("bn_aggr", data, 2, mask, dtype)


def bn_stats(data: Tensor, *, mask: Any = None, dtype: Any = None, **more: Any) -> Tensor:
    """Return count, mean and variance * count of the even, then of the odd elements."""
    no_more("bn_stats", more)
    return _per_lane("bn_stats", data, 6, mask, dtype)


def _per_lane(
    name: str, data: Tensor, count: int, mask: Any, dtype: Any, operand: str = "data"
) -> Tensor:
    tile = tile_of(data, f"{name} {operand}", mask)
    return compute(
        name,
        (tile.shape[0], count),
        kind_of(dtype, tile.dtype),
        {operand: Operand(tile)},
        domain=tile.shape,
        follows=LANES,
        mask=mask,
    )


def dropout(data: Tensor, prob: Any, *, mask: Any = None, dtype: Any = None, **more: Any) -> Tensor:
    """Return the tile with elements set to 0 with a probability."""
    no_more("dropout", more)
    tile = tile_of(data, "dropout data", mask)
    return compute(
        "dropout",
        tile.shape,
        kind_of(dtype, tile.dtype),
        {"data": Operand(tile), "prob": lanes(prob)},
        mask=mask,
    )


def iota(expr: Any, dtype: Any, *, mask: Any = None, **more: Any) -> Tensor:
    """Return the values of an affine index expression as a tile."""
    no_more("iota", more)
    if not isinstance(expr, Index):
        raise NkiTypeError("NKI260", f"iota was given {expr!r}", "give an expression of nl.arange")
    shape = expr.shape if expr.ndim > 1 else (1,) * (2 - expr.ndim) + expr.shape
    pattern, offset, multiplier = _affine(expr, shape, "iota")
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


def max8(*, src: Tensor, mask: Any = None, dtype: Any = None, **more: Any) -> Tensor:
    """Return the 8 largest values of each partition, in descending order."""
    no_more("max8", more)
    return _per_lane("max8", src, 8, mask, dtype, "src")


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
    number = int(value) if info(kind).is_int else float(value)
    return compute(
        "memset",
        tuple(int(n) for n in shape),
        kind,
        {},
        attributes={"value": number, "engine": engine},
        mask=mask,
    )


def nc_find_index8(
    *, data: Tensor, vals: Tensor, mask: Any = None, dtype: Any = None, **more: Any
) -> Tensor:
    """Return where each of 8 values per partition is found first."""
    no_more("nc_find_index8", more)
    tile = tile_of(data, "nc_find_index8 data", mask)
    return compute(
        "nc_find_index8",
        (tile.shape[0], 8),
        kind_of(dtype, "uint32"),
        {"data": Operand(tile), "vals": lanes(vals)},
        domain=tile.shape,
        follows=LANES,
        mask=mask,
    )


def nc_match_replace8(
    *,
    data: Tensor,
    vals: Tensor,
    imm: float,
    dst_idx: Tensor | None = None,
    mask: Any = None,
    dtype: Any = None,
    **more: Any,
) -> Tensor:
    """Return the tile with the first occurrence of each of 8 values replaced."""
    no_more("nc_match_replace8", more)
    tile = tile_of(data, "nc_match_replace8 data", mask)
    return compute(
        "nc_match_replace8",
        tile.shape,
        kind_of(dtype, tile.dtype),
        {"data": Operand(tile), "vals": lanes(vals), "dst_idx": lanes(dst_idx)},
        attributes={"imm": float(imm)},
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


def range_select(
    *,
    on_true_tile: Tensor,
    comp_op0: Any,
    comp_op1: Any,
    bound0: Tensor,
    bound1: Tensor,
    reduce_cmd: Any = commands.idle,
    reduce_res: Tensor | None = None,
    reduce_op: Any = np.amax,
    range_start: int = 0,
    on_false_value: float = FP32_MIN,
    mask: Any = None,
    dtype: Any = None,
    **more: Any,
) -> Tensor:
    """Return the tile where its column numbers are within bounds, else the smallest float32."""
    no_more("range_select", more)
    tile = tile_of(on_true_tile, "range_select on_true_tile", mask)
    return compute(
        "range_select",
        tile.shape,
        kind_of(dtype, tile.dtype),
        {
            "on_true_tile": Operand(tile),
            "bound0": lanes(bound0),
            "bound1": lanes(bound1),
            "reduce_res": lanes(reduce_res),
        },
        attributes={
            "comp_op0": comp_op0,
            "comp_op1": comp_op1,
            "reduce_cmd": reduce_cmd,
            "reduce_op": reduce_op,
            "range_start": int(range_start),
            "on_false_value": on_false_value,
        },
        mask=mask,
    )


def reciprocal(data: Tensor, *, dtype: Any = None, mask: Any = None, **more: Any) -> Tensor:
    """Return ``1 / data`` (Vector Engine)."""
    no_more("reciprocal", more)
    tile = tile_of(data, "reciprocal data", mask)
    return compute(
        "reciprocal", tile.shape, kind_of(dtype, tile.dtype), {"data": Operand(tile)}, mask=mask
    )


def scalar_tensor_tensor(
    *,
    data: Tensor,
    op0: Any,
    operand0: Any,
    op1: Any,
    operand1: Tensor,
    reverse0: bool = False,
    reverse1: bool = False,
    dtype: Any = None,
    mask: Any = None,
    **more: Any,
) -> Tensor:
    """Return ``(data <op0> operand0) <op1> operand1``: a number or lanes, then a tile."""
    no_more("scalar_tensor_tensor", more)
    tile = tile_of(data, "scalar_tensor_tensor data", mask)
    other = tile_of(operand1, "scalar_tensor_tensor operand1", mask)
    return compute(
        "scalar_tensor_tensor",
        tile.shape,
        kind_of(dtype, promote(tile.dtype, other.dtype)),
        {"data": Operand(tile), "operand0": lanes(operand0), "operand1": Operand(other)},
        attributes={"op0": op0, "op1": op1, "reverse0": reverse0, "reverse1": reverse1},
        mask=mask,
    )


def select_reduce(
    *,
    dst: Tensor,
    predicate: Tensor,
    on_true: Tensor,
    on_false: Any,
    reduce_res: Tensor | None = None,
    reduce_cmd: Any = commands.idle,
    reduce_op: Any = np.amax,
    reverse_pred: bool = False,
    mask: Any = None,
    dtype: Any = None,
    **more: Any,
) -> None:
    """Write `on_true` to `dst` where a predicate holds, else `on_false`."""
    no_more("select_reduce", more)
    del dtype  # documented, and without a meaning beside a destination
    compute_into(
        "select_reduce",
        dst,
        {
            "predicate": Operand(unsigned(predicate)),
            "on_true": Operand(on_true),
            "on_false": lanes(on_false),
            "reduce_res": lanes(reduce_res),
        },
        attributes={
            "reduce_cmd": reduce_cmd,
            "reduce_op": reduce_op,
            "reverse_pred": reverse_pred,
        },
        mask=mask,
    )


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


def tensor_copy(
    src: Tensor,
    *,
    mask: Any = None,
    dtype: Any = None,
    engine: Any = engines.unknown,
    buffer: Any = None,
    **more: Any,
) -> Tensor:
    """Return a copy of a tile."""
    no_more("tensor_copy", more)
    tile = tile_of(src, "tensor_copy src", mask)
    return compute(
        "tensor_copy",
        tile.shape,
        kind_of(dtype, tile.dtype),
        {"src": Operand(tile)},
        attributes={"engine": engine},
        mask=mask,
        buffer=buffer,
    )


def tensor_copy_dynamic_src(
    src: Tensor,
    *,
    mask: Any = None,
    dtype: Any = None,
    engine: Any = engines.unknown,
    **more: Any,
) -> Tensor:
    """Return a copy of a part that a tile's value chooses."""
    return tensor_copy(src, mask=mask, dtype=dtype, engine=engine, **more)


def tensor_copy_dynamic_dst(
    *,
    dst: Tensor,
    src: Tensor,
    mask: Any = None,
    dtype: Any = None,
    engine: Any = engines.unknown,
    **more: Any,
) -> None:
    """Copy a tile to a part that a tile's value chooses."""
    no_more("tensor_copy_dynamic_dst", more)
    del dtype
    compute_into(
        "tensor_copy", dst, {"src": Operand(src)}, attributes={"engine": engine}, mask=mask
    )


def tensor_copy_predicated(
    *,
    src: Any,
    dst: Tensor,
    predicate: Tensor,
    reverse_pred: bool = False,
    mask: Any = None,
    dtype: Any = None,
    **more: Any,
) -> None:
    """Copy the elements of a tile, or a number, to `dst` where a predicate holds."""
    no_more("tensor_copy_predicated", more)
    del dtype
    if isinstance(src, Tensor) and src.kind != dst.kind:
        src = src.astype(dst.dtype)
    compute_into(
        "tensor_copy_predicated",
        dst,
        {"src": Operand(src), "predicate": Operand(unsigned(predicate))},
        attributes={"reverse_pred": reverse_pred},
        mask=mask,
        keeps=True,
    )


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


def _neutral(op: Any, tile: NkiTensor, region: Region) -> NkiTensor:
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


def tensor_scalar(
    data: Tensor,
    op0: Any,
    operand0: Any,
    reverse0: bool = False,
    op1: Any = None,
    operand1: Any = None,
    reverse1: bool = False,
    *,
    dtype: Any = None,
    mask: Any = None,
    engine: Any = engines.unknown,
    **more: Any,
) -> Tensor:
    """Return ``(data <op0> operand0) <op1> operand1``, operands being one per partition."""
    no_more("tensor_scalar", more)
    tile = tile_of(data, "tensor_scalar data", mask)
    return compute(
        "tensor_scalar",
        tile.shape,
        kind_of(dtype, tile.dtype),
        {
            "data": Operand(tile),
            "operand0": lanes_float32(operand0, op0),
            "operand1": lanes_float32(operand1, op1),
        },
        attributes={
            "op0": op0,
            "reverse0": reverse0,
            "op1": op1,
            "reverse1": reverse1,
            "engine": engine,
        },
        mask=mask,
    )


def tensor_scalar_cumulative(
    *,
    src: Tensor,
    dst: Tensor,
    op0: Any,
    op1: Any,
    imm0: Any,
    imm1: Any = None,
    reduce_cmd: Any = commands.reset_reduce,
    mask: Any = None,
    **more: Any,
) -> None:
    """Write the running reduction by `op1` of ``src <op0> imm0`` to `dst`."""
    no_more("tensor_scalar_cumulative", more)
    if getattr(reduce_cmd, "name", reduce_cmd) != "load_reduce":
        imm1 = None  # it was taken with other commands too, which do not read it
    compute_into(
        "tensor_scalar_cumulative",
        dst,
        {"src": Operand(src), "imm0": lanes(imm0), "imm1": lanes(imm1)},
        attributes={"op0": op0, "op1": op1, "reduce_cmd": reduce_cmd},
        mask=mask,
    )


def tensor_scalar_reduce(
    *,
    data: Tensor,
    op0: Any,
    operand0: Any,
    reduce_op: Any,
    reduce_res: Tensor,
    reverse0: bool = False,
    dtype: Any = None,
    mask: Any = None,
    **more: Any,
) -> Tensor:
    """Return ``data <op0> operand0`` and write its reduction to `reduce_res`."""
    no_more("tensor_scalar_reduce", more)
    tile = tile_of(data, "tensor_scalar_reduce data", mask)
    return compute(
        "tensor_scalar_reduce",
        tile.shape,
        kind_of(dtype, tile.dtype),
        {
            "data": Operand(tile),
            "operand0": lanes_float32(operand0, op0),
            "reduce_res": lanes(reduce_res),
        },
        attributes={"op0": op0, "reduce_op": reduce_op, "reverse0": reverse0},
        mask=mask,
    )


def tensor_tensor(
    data1: Tensor,
    data2: Tensor,
    op: Any,
    *,
    dtype: Any = None,
    mask: Any = None,
    engine: Any = engines.unknown,
    **more: Any,
) -> Tensor:
    """Return ``data1 <op> data2``."""
    no_more("tensor_tensor", more)
    a, b = tile_of(data1, "tensor_tensor data1", mask), tile_of(data2, "tensor_tensor data2", mask)
    return compute(
        "tensor_tensor",
        a.shape,
        kind_of(dtype, promote(a.dtype, b.dtype)),
        {"data1": Operand(a), "data2": Operand(b)},
        attributes={"op": op, "engine": engine},
        mask=mask,
    )


def tensor_tensor_scan(
    data0: Tensor,
    data1: Tensor,
    initial: Any,
    op0: Any,
    op1: Any,
    reverse0: bool = False,
    reverse1: bool = False,
    *,
    dtype: Any = None,
    mask: Any = None,
    **more: Any,
) -> Tensor:
    """Return the scan whose state becomes ``(data0 <op0> state) <op1> data1``."""
    no_more("tensor_tensor_scan", more)
    a, b = (
        tile_of(data0, "tensor_tensor_scan data0", mask),
        tile_of(data1, "tensor_tensor_scan data1", mask),
    )
    return compute(
        "tensor_tensor_scan",
        a.shape,
        kind_of(dtype, promote(a.dtype, b.dtype)),
        {"data0": Operand(a), "data1": Operand(b), "initial": lanes(initial)},
        attributes={"op0": op0, "op1": op1, "reverse0": reverse0, "reverse1": reverse1},
        mask=mask,
    )
