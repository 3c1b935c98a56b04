"""Resizing of images: ResizeNearest, ResizeBilinear, ResizeNearestGrad.

Images are [batch, height, width, channels]; the declared type of the result tells the new size. The
config has two digits, also in quotes: `align_corners` and `half_pixel_centers`. Sources:
`resize_ops.cpp` of torch_xla and `ops.py` of torch_neuronx. What the two mean is TensorFlow's
definition of its operators of these names. Places are computed in exact fractions.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import floor

import numpy as np

from neuronxcc.frontends.hlo.errors import invalid, unsupported
from neuronxcc.frontends.hlo.site import Handler, Site
from neuronxcc.ir import build, indexing
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node, TensorType

_HALF = Fraction(1, 2)
_DIMS = (1, 2)  # height and width
MAX_EXTENT = 1 << 16  # every place is computed one by one


def _flags(site: Site) -> tuple[bool, bool]:
    text = site.proto.backend_config.decode("utf-8", "replace").strip().strip('"') or "00"
    if len(text) != 2 or not set(text) <= {"0", "1"}:
        raise invalid(
            f"the config of {site.proto.custom_call_target} is two digits, not {text[:40]!r}"
        )
    if text == "11":
        raise unsupported(
            f"{site.proto.custom_call_target} with align_corners and half_pixel_centers",
            "give one of the two",
        )
    return text[0] == "1", text[1] == "1"


def _sizes(site: Site, x: Node, large: tuple[int, ...], small: tuple[int, ...]) -> None:
    fits = len(large) == len(small) == 4 and (large[0], large[3]) == (small[0], small[3])
    if fits and max(*large, *small) > MAX_EXTENT:
        raise unsupported(
            f"{site.proto.custom_call_target} of images of more than {MAX_EXTENT} rows or columns",
            "cut the images into parts",
        )
    if not fits or 0 in large or 0 in small:
        raise invalid(f"{site.proto.custom_call_target} of {x.type} to {site.tensor_type}")


def _places(old: int, new: int, *, align: bool, half: bool) -> list[Fraction]:
    """Where along the old dimension each element of the new one lies."""
    step = Fraction(old - 1, new - 1) if align and new > 1 else Fraction(old, new)
    if half:
        return [(i + _HALF) * step - _HALF for i in range(new)]
    return [i * step for i in range(new)]


def _nearest(old: int, new: int, *, align: bool, half: bool) -> list[int]:
    # Of corners that are aligned the nearer one, otherwise the one at or before.
    shift = _HALF if align or half else Fraction(0)
    places = _places(old, new, align=align, half=half)
    return [min(max(floor(place + shift), 0), old - 1) for place in places]


def _indices(numbers: list[int]) -> Node:
    return build.constant(np.array(numbers, np.int32))


def _resize_nearest(site: Site) -> Node:
    x, shape = site.one, site.tensor_type.shape
    align, half = _flags(site)
    _sizes(site, x, x.shape, shape)
    for dim in _DIMS:
        numbers = _nearest(x.shape[dim], shape[dim], align=align, half=half)
        if numbers != list(range(x.shape[dim])):
            x = indexing.take(x, _indices(numbers), dim)
    return x


def _resize_bilinear(site: Site) -> Node:
    given, shape = site.one, site.tensor_type.shape
    align, half = _flags(site)
    _sizes(site, given, given.shape, shape)
    if not given.dtype.is_float:
        raise invalid(f"ResizeBilinear of {given.type}")
    x = build.convert(given, DType.F32) if given.dtype.itemsize < 4 else given
    for dim in reversed(_DIMS):
        places = _places(x.shape[dim], shape[dim], align=align, half=half)
        last = x.shape[dim] - 1
        lower = [min(max(floor(place), 0), last) for place in places]
        upper = [min(floor(place) + 1, last) for place in places]
        weights = [float(place - floor(place)) for place in places]
        first, second = (indexing.take(x, _indices(n), dim) for n in (lower, upper))
        along = build.constant(np.array(weights, x.dtype.numpy))
        weight = build.broadcast_in_dim(along, first.shape, (dim,))
        x = build.add(first, build.multiply(build.subtract(second, first), weight))
    return build.convert(x, site.tensor_type.dtype)


def _resize_nearest_grad(site: Site) -> Node:
    """Every element of the small image gets the sum of those that took its value."""
    grad, shape = site.one, site.tensor_type.shape
    align, half = _flags(site)
    _sizes(site, grad, grad.shape, shape)
    x = build.convert(grad, DType.F32) if grad.dtype.itemsize < 4 else grad
    for dim in _DIMS:
        numbers = _nearest(shape[dim], x.shape[dim], align=align, half=half)
        x = _gathered(x, numbers, shape[dim], dim)
    return build.convert(x, site.tensor_type.dtype)


def _gathered(x: Node, numbers: list[int], extent: int, dim: int) -> Node:
    """Sums along a dimension: element i is added to element numbers[i] of `extent`."""
    times, rest = divmod(x.shape[dim], extent)
    if not rest and numbers == [i // times for i in range(len(numbers))]:
        parts = build.reshape(x, (*x.shape[:dim], extent, times, *x.shape[dim + 1 :]))
        return build.reduce(parts, "add", dim + 1)
    zeros = TensorType(x.dtype, (*x.shape[:dim], extent, *x.shape[dim + 1 :]))
    return indexing.put(build.splat(0, zeros), _indices(numbers), x, dim, "add")


_RESIZES: dict[str, Callable[[Site], Node]] = {
    "ResizeNearest": _resize_nearest,
    "ResizeBilinear": _resize_bilinear,
    "ResizeNearestGrad": _resize_nearest_grad,
}
TARGETS: dict[str, Handler] = dict(_RESIZES)
