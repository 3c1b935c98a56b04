"""Reductions, normalisations, products and gathers of ``nl``."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nki.arguments import as_integers, as_number
from nki.dtypes import info
from nki.errors import NkiError
from nki.first_generation import isa
from nki.first_generation.boxes import region_of_mask
from nki.first_generation.compute import LANES, Operand, as_tensor, compute, tile_of
from nki.first_generation.dtypes import dtype_name
from nki.first_generation.isa.common import kind_of, reduction_axes
from nki.first_generation.isa.movement import load, store
from nki.first_generation.language.math import binary
from nki.first_generation.state import issue, new_tile
from nki.first_generation.tensors import Tensor
from nki.first_generation.writes import copied, copy, fill, in_sbuf, is_number, on_sbuf, stretch

__all__ = [
    "all",
    "broadcast_to",
    "dropout",
    "expand_dims",
    "gather_flattened",
    "load",
    "load_transpose2d",
    "matmul",
    "max",
    "mean",
    "min",
    "prod",
    "rand",
    "random_seed",
    "rms_norm",
    "softmax",
    "static_cast",
    "store",
    "sum",
    "transpose",
    "var",
]

_FLOAT = "float32"


def _reduce(op: str, x: Tensor, axis: Any, dtype: Any, mask: Any, keepdims: bool) -> Tensor:
    return isa.tensor_reduce(op, x, axis, dtype=dtype, mask=mask, keepdims=keepdims)


def sum(  # noqa: A001 (the documented names, as those below)
    x: Tensor, axis: Any, *, dtype: Any = None, mask: Any = None, keepdims: bool = False
) -> Tensor:
    """Return the sum over free dimensions."""
    return _reduce("add", x, axis, dtype, mask, keepdims)


def max(  # noqa: A001
    x: Tensor, axis: Any, *, dtype: Any = None, mask: Any = None, keepdims: bool = False
) -> Tensor:
    """Return the largest element over free dimensions."""
    return _reduce("maximum", x, axis, dtype, mask, keepdims)


def min(  # noqa: A001
    x: Tensor, axis: Any, *, dtype: Any = None, mask: Any = None, keepdims: bool = False
) -> Tensor:
    """Return the smallest element over free dimensions."""
    return _reduce("minimum", x, axis, dtype, mask, keepdims)


def prod(
    x: Tensor, axis: Any, *, dtype: Any = None, mask: Any = None, keepdims: bool = False
) -> Tensor:
    """Return the product over free dimensions."""
    return _reduce("multiply", x, axis, dtype, mask, keepdims)


def all(x: Tensor, axis: Any, *, dtype: Any = bool, mask: Any = None) -> Tensor:  # noqa: A001
    """Return whether all elements over free dimensions are not 0."""
    return _reduce("logical_and", x, axis, dtype, mask, keepdims=False)


def _count(x: Tensor, axis: Any, mask: Any) -> int:
    """Return how many elements are reduced to one."""
    region = region_of_mask(mask, x.shape)
    if region.inside is not None:
        raise NkiError(
            "NKI262",
            f"a mean was given a mask that cuts no box out of its tile of shape {x.shape}",
            "sum with the mask, and divide by the numbers of elements",
        )
    box = region.box or ((0, 1),) * x.ndim
    return math.prod(box[d][1] - box[d][0] for d in reduction_axes(axis, x.ndim))


def mean(
    x: Tensor, axis: Any, *, dtype: Any = None, mask: Any = None, keepdims: bool = False
) -> Tensor:
    """Return the mean over free dimensions; of integers it is float32."""
    x = as_tensor(x, "nl.mean x")
    kind = kind_of(dtype, x.kind if info(x.kind).is_float else _FLOAT)
    total = isa.tensor_reduce("add", x, axis, dtype=_FLOAT, mask=mask, keepdims=keepdims)
    return isa.tensor_scalar(total, "multiply", 1.0 / _count(x, axis, mask), dtype=kind)


def var(x: Tensor, axis: Any, *, dtype: Any = None, mask: Any = None) -> Tensor:
    """Return the variance over free dimensions: the mean of squared distances from the mean."""
    x = as_tensor(x, "nl.var x")
    kind = kind_of(dtype, x.kind if info(x.kind).is_float else _FLOAT)
    middle = mean(x, axis, dtype=_FLOAT, mask=mask, keepdims=True)
    distance = binary("subtract", x, middle, dtype=_FLOAT, mask=mask)
    squared = isa.activation("square", distance, mask=mask)
    return mean(squared, axis, dtype=kind, mask=mask)


def softmax(
    x: Tensor, axis: Any, *, dtype: Any = None, compute_dtype: Any = None, mask: Any = None
) -> Tensor:
    """Return the softmax over free dimensions, computed in float32 or in `compute_dtype`."""
    x = as_tensor(x, "nl.softmax x")
    kind = kind_of(dtype if dtype is not None else compute_dtype, x.kind)
    inner = _FLOAT if compute_dtype is None else dtype_name(compute_dtype)
    top = isa.tensor_reduce("maximum", x, axis, dtype=_FLOAT, mask=mask, keepdims=True)
    shifted = binary("subtract", x, top, dtype=_FLOAT, mask=mask)
    powers = isa.activation("exp", shifted, dtype=inner, mask=mask)
    total = isa.tensor_reduce("add", powers, axis, dtype=_FLOAT, mask=mask, keepdims=True)
    return binary("multiply", powers, isa.reciprocal(total), dtype=kind, mask=mask)


def rms_norm(
    x: Tensor,
    w: Tensor,
    axis: Any,
    n: int,
    epsilon: float = 1e-6,
    *,
    dtype: Any = None,
    compute_dtype: Any = None,
    mask: Any = None,
) -> Tensor:
    """Return ``x / sqrt(sum(x ** 2) / n + epsilon) * w``."""
    x = as_tensor(x, "nl.rms_norm x")
    kind = kind_of(dtype if dtype is not None else compute_dtype, x.kind)
    squared = isa.activation("square", x, dtype=_FLOAT, mask=mask)
    total = isa.tensor_reduce("add", squared, axis, mask=mask, keepdims=True)
    mean_square = isa.tensor_scalar(
        total,
        "multiply",
        1.0 / as_number(n, "nl.rms_norm n"),
        op1="add",
        operand1=as_number(epsilon, "nl.rms_norm epsilon"),
    )
    scaled = binary("multiply", x, isa.activation("rsqrt", mean_square), dtype=_FLOAT, mask=mask)
    return binary("multiply", scaled, w, dtype=kind, mask=mask)


def dropout(x: Tensor, rate: Any, *, dtype: Any = None, mask: Any = None) -> Tensor:
    """Return the tile with elements set to 0 with a probability."""
    x = as_tensor(x, "nl.dropout x")
    if isinstance(rate, Tensor) and rate.shape != (x.shape[0], 1):
        rate = Tensor((stretch(rate.tile(), (x.shape[0], 1)),))
    return isa.dropout(x, rate, dtype=dtype, mask=mask)


def rand(shape: Any, dtype: Any = np.float32) -> Tensor:
    """Return a tile of random numbers from 0 to below 1, multiples of 2**-24."""
    sizes = as_integers(shape, "nl.rand shape")
    bits = new_tile(sizes, "uint32")
    issue("rng", dst=bits)
    high = isa.tensor_scalar(Tensor((bits,)), "right_shift", 8)
    return isa.tensor_scalar(isa.tensor_copy(high, dtype=_FLOAT), "multiply", 2.0**-24, dtype=dtype)


def random_seed(seed: Any, *, mask: Any = None) -> None:
    """Seed the random numbers of the Vector Engine with a number or a tile of one."""
    if mask is False:
        return
    tile = new_tile((1, 1), "uint32")
    if is_number(seed):
        fill(tile, seed)
    else:
        copy(tile, tile_of(seed, "nl.random_seed seed"))
    issue("set_rng_seed", src_seeds=tile)


# --- shapes and products -------------------------------------------------------------------------


def broadcast_to(src: Tensor, *, shape: Any) -> Tensor:
    """Return a tile with dimensions of size 1 repeated."""
    tile = as_tensor(src, "nl.broadcast_to src").tile()
    sizes = as_integers(shape, "nl.broadcast_to shape")
    if tile.shape == sizes:
        return src
    if tile.shape[0] == sizes[0]:
        return copied(Tensor((stretch(tile, sizes),)))
    return Tensor((stretch(tile, sizes),))


def expand_dims(data: Tensor, axis: Any) -> Tensor:
    """Return a view with dimensions of size 1 inserted."""
    return as_tensor(data, "nl.expand_dims data").expand_dims(axis)


def transpose(x: Tensor, *, dtype: Any = None, mask: Any = None) -> Tensor:
    """Return the tile with partition and free dimension exchanged."""
    return isa.nc_transpose(x, dtype=dtype, mask=mask)


def matmul(x: Tensor, y: Tensor, *, transpose_x: bool = False, mask: Any = None) -> Tensor:
    """Return ``x @ y``, or ``x.T @ y`` where x is given transposed, in PSUM."""
    left = Tensor((in_sbuf(as_tensor(x, "nl.matmul x").tile()),))
    right = Tensor((in_sbuf(as_tensor(y, "nl.matmul y").tile()),))
    if not transpose_x:
        left = isa.tensor_copy(isa.nc_transpose(left))
    return isa.nc_matmul(left, right, mask=mask)


def load_transpose2d(src: Tensor, *, mask: Any = None, dtype: Any = None) -> Tensor:
    """Return a tile with a two-dimensional tensor in HBM transposed."""
    return isa.dma_transpose(src, mask=mask, dtype=dtype)


def gather_flattened(
    data: Tensor, indices: Tensor, *, mask: Any = None, dtype: Any = None
) -> Tensor:
    """Return for every index the element of its partition that it counts to."""
    source = on_sbuf(tile_of(data, "nl.gather_flattened data"))
    chosen = on_sbuf(tile_of(indices, "nl.gather_flattened indices"))
    if chosen.dtype != "uint32":
        wide = new_tile(chosen.shape, "uint32")
        copy(wide, chosen)
        chosen = wide
    made = compute(
        "nc_n_gather",
        chosen.shape,
        source.dtype,
        {"data": Operand(source, LANES), "indices": Operand(chosen)},
        mask=mask,
    )
    return made if dtype is None or dtype_name(dtype) == source.dtype else made.astype(dtype)


def static_cast(input_data: Any, dtype: Any) -> Any:
    """Return a number, an array or a tile in another type."""
    if isinstance(input_data, Tensor):
        return input_data.astype(dtype)
    kind = info(dtype_name(dtype)).numpy
    if isinstance(input_data, np.ndarray):
        return input_data.astype(kind)
    return kind.type(input_data)
