"""Instructions of the Vector, Scalar and GpSimd engines, as the first generation called them.

Every function returns the tile that it computes, unless it names a destination. The instruction
itself is today's: `nki.isa` checks it, says what it means, and `computed` and `written` read in its
row what each argument is. Instructions that need more than that are in `shaped`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nki.arguments import as_integer, as_number
from nki.first_generation.compute import Operand
from nki.first_generation.isa.common import lanes, no_more, unsigned
from nki.first_generation.isa.constants import engine as engines
from nki.first_generation.isa.constants import reduce_cmd as commands
from nki.first_generation.isa.rows import computed, written
from nki.first_generation.tensors import Tensor

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
    return computed("activation", locals())


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
    return computed("activation_reduce", locals())


def bn_aggr(data: Tensor, *, mask: Any = None, dtype: Any = None, **more: Any) -> Tensor:
    """Return mean and variance of each partition from results of `bn_stats`."""
    return computed("bn_aggr", locals(), columns=2)


def bn_stats(data: Tensor, *, mask: Any = None, dtype: Any = None, **more: Any) -> Tensor:
    """Return count, mean and variance * count of the even, then of the odd elements."""
    return computed("bn_stats", locals(), columns=6)


def dropout(data: Tensor, prob: Any, *, mask: Any = None, dtype: Any = None, **more: Any) -> Tensor:
    """Return the tile with elements set to 0 with a probability."""
    return computed("dropout", locals())


def max8(*, src: Tensor, mask: Any = None, dtype: Any = None, **more: Any) -> Tensor:
    """Return the 8 largest values of each partition, in descending order."""
    return computed("max8", locals(), columns=8)


def nc_find_index8(
    *, data: Tensor, vals: Tensor, mask: Any = None, dtype: Any = None, **more: Any
) -> Tensor:
    """Return where each of 8 values per partition is found first."""
    return computed("nc_find_index8", {**locals(), "vals": lanes(vals)}, "uint32", columns=8)


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
    of_lanes = {"vals": lanes(vals), "dst_idx": lanes(dst_idx)}
    imm = as_number(imm, "nisa.nc_match_replace8 imm")
    return computed("nc_match_replace8", {**locals(), **of_lanes})


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
    range_start = as_integer(range_start, "nisa.range_select range_start")
    return computed("range_select", locals())


def reciprocal(data: Tensor, *, dtype: Any = None, mask: Any = None, **more: Any) -> Tensor:
    """Return ``1 / data`` (Vector Engine)."""
    return computed("reciprocal", locals())


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
    return computed("scalar_tensor_tensor", locals())


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
    written("select_reduce", {**locals(), "predicate": Operand(unsigned(predicate))})


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
    return computed("tensor_copy", locals())


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
    written("tensor_copy", locals())


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
    if isinstance(src, Tensor) and src.kind != dst.kind:
        src = src.astype(dst.dtype)
    written("tensor_copy_predicated", {**locals(), "predicate": Operand(unsigned(predicate))})


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
    return computed("tensor_scalar", locals(), operators={"operand0": op0, "operand1": op1})


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
    written("tensor_scalar_cumulative", locals())


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
    return computed("tensor_scalar_reduce", locals(), operators={"operand0": op0})


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
    return computed("tensor_tensor", locals())


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
    return computed("tensor_tensor_scan", locals())
