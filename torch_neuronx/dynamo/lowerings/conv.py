"""Convolution and pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from neuronxcc.ir import build as b
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node
from torch_neuronx.dynamo import emit as e
from torch_neuronx.dynamo.dtypes import compute_dtype
from torch_neuronx.dynamo.lowerings.index import put_along, take_along
from torch_neuronx.dynamo.lowerings.pointwise import finish
from torch_neuronx.dynamo.registry import Context, lowers

aten = torch.ops.aten


def _each(value: int | Sequence[int], rank: int) -> tuple[int, ...]:
    """One integer for all dimensions, or one each; PyTorch takes a list of one for all too."""
    listed = (value,) if isinstance(value, int) else tuple(value)
    return listed * rank if len(listed) == 1 else listed


@lowers(aten.convolution.default, aten.convolution_overrideable.default)
def convolution(
    cx: Context,
    x: Node,
    weight: Node,
    bias: Node | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Node:
    rank = x.type.rank - 2
    if rank < 1:
        raise NotImplementedError("a convolution without a batch or channel dimension")
    steps, pads, holes, extra = (
        _each(v, rank) for v in (stride, padding, dilation, output_padding)
    )
    wide = compute_dtype(cx.dtype)
    if not transposed:
        result = b.convolution(
            x, weight, strides=steps, low=pads, high=pads, rhs_dilation=holes,
            feature_group_count=groups, dtype=wide,
        )  # fmt: skip
    else:
        if any(q >= max(s, d) for q, s, d in zip(extra, steps, holes, strict=True)):
            text = (
                "output padding must be smaller than either stride or dilation, but got output "
                f"padding {extra}, stride {steps}, dilation {holes}"
            )
            raise cx.refused(text)
        # The gradient of a convolution: the input is spread out, the kernel turned around and its
        # channels exchanged (within each group).
        reach = [d * (n - 1) for d, n in zip(holes, weight.shape[2:], strict=True)]
        result = b.convolution(
            x, _turned(weight, groups),
            low=[r - p for r, p in zip(reach, pads, strict=True)],
            high=[r - p + q for r, p, q in zip(reach, pads, extra, strict=True)],
            lhs_dilation=steps, rhs_dilation=holes, feature_group_count=groups, dtype=wide,
        )  # fmt: skip
        if 0 in result.shape[2:]:
            given, found = (" x ".join(map(str, t.shape[2:])) for t in (x, result))
            text = (
                f"Given input size per channel: ({given}). Calculated output size per channel: "
                f"({found}). Output size is too small"
            )
            raise cx.refused(text)
    if bias is not None:
        result = b.add(result, b.broadcast_in_dim(b.convert(bias, wide), result.shape, (1,)))
    return finish(cx, result)


def _turned(weight: Node, groups: int) -> Node:
    """(in, out / groups, ...) to (out, in / groups, ...), space reversed."""
    inputs, outputs, *space = weight.shape
    spatial = range(2, weight.type.rank)
    grouped = b.reshape(
        b.reverse(weight, tuple(spatial)), (groups, inputs // groups, outputs, *space)
    )
    swapped = b.transpose(grouped, (0, 2, 1, *(d + 1 for d in spatial)))
    return b.reshape(swapped, (groups * outputs, inputs // groups, *space))


# Images' pixels from which on turning the filters around in every call is paid for.
_LEAST_PIXELS = 1024
_LEAST_CHANNELS = 16


def _slides_back(
    grad: Node,
    x: Node,
    weight: Node,
    stride: int | Sequence[int],
    padding: int | Sequence[int],
    dilation: int | Sequence[int],
    transposed: bool,
    groups: int,
) -> bool:
    """Return whether Winograd's method suits the gradient of the input: see csrc/conv."""
    return (
        not transposed
        and groups == 1
        and weight.shape[2:] == (3, 3)
        and {*_each(stride, 2), *_each(dilation, 2)} == {1}
        and max(_each(padding, 2)) <= 2
        and min(weight.shape[:2]) >= _LEAST_CHANNELS
        and grad.dtype is x.dtype is weight.dtype
        and x.dtype in (DType.F32, DType.BF16, DType.F16)
        and math.prod(x.shape) >= _LEAST_PIXELS * x.shape[1]
    )


@lowers(aten.convolution_backward.default, aten.convolution_backward_overrideable.default)
def convolution_backward(cx: Context, grad: Node, x: Node, weight: Node, *rest: object) -> object:
    """ATen's kernels for the two large gradients; that of the bias is a sum.

    The input's gradient is a convolution itself, and one of ours where `_slides_back`.
    """
    # convolution_backward has the sizes of the bias before the stride, the other overload has not.
    sizes = rest[0] if len(rest) == 8 else None
    stride, padding, dilation, transposed, output_padding, groups, mask = rest[-7:]
    assert isinstance(mask, list | tuple)
    parts: list[Node | None] = [None, None, None]
    moves = (stride, padding, dilation, transposed, groups)
    if mask[0] and _slides_back(grad, x, weight, *moves):  # type: ignore[arg-type]
        edges = [2 - p for p in _each(padding, 2)]  # type: ignore[arg-type]
        wide = compute_dtype(x.dtype)
        turned = _turned(weight, 1)
        parts[0] = b.convert(
            b.convolution(grad, turned, low=edges, high=edges, dtype=wide), x.dtype
        )
        mask = (False, *mask[1:])
    places = {0: 0, 1: 1} if mask[0] and mask[1] else {1 if mask[1] else 0: 0}
    types = [s.type for s, wanted in zip((x, weight), mask, strict=False) if wanted]
    if types:
        calls = cx.call(
            aten.convolution_backward.default,
            (grad, x, weight, sizes, stride, padding, dilation, transposed, output_padding, groups,
             (bool(mask[0]), bool(mask[1]), False)),
            types=types,
            outs=(places.get(0), places.get(1), None),
        )  # fmt: skip
        for position, number in places.items():
            parts[position] = calls[number]
    if mask[2]:
        wide = compute_dtype(grad.dtype)
        over = [d for d in range(grad.type.rank) if d != 1]
        parts[2] = b.convert(b.reduce(b.convert(grad, wide), "add", over), grad.dtype)
    return tuple(parts)


# ---- pooling ------------------------------------------------------------------------------------


def _window(
    rank: int, kernel: Sequence[int], stride: Sequence[int], padding: int | Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    sizes = _each(kernel, rank)
    return sizes, _each(stride, rank) if stride else sizes, _each(padding, rank)


def _edges(
    x: Node, out: Sequence[int], sizes: Sequence[int], steps: Sequence[int], pads: Sequence[int],
    holes: Sequence[int],
) -> list[int]:  # fmt: skip
    """Padding at the end that the windows reach; ceil_mode lets them go over the padded edge."""
    rank = len(sizes)
    extents = x.shape[x.type.rank - rank :]
    rows = zip(extents, out[len(out) - rank :], sizes, steps, pads, holes, strict=True)
    return [(o - 1) * s + h * (k - 1) + 1 - p - n for n, o, k, s, p, h in rows]


def _pool_add(
    x: Node, out: Sequence[int], sizes: Sequence[int], steps: Sequence[int], pads: Sequence[int]
) -> Node:
    lead = x.type.rank - len(sizes)
    ones, zeros = (1,) * lead, (0,) * lead
    high = _edges(x, out, sizes, steps, pads, (1,) * len(sizes))
    return b.reduce_window(
        x, "add", (*ones, *sizes), strides=(*ones, *steps), low=(*zeros, *pads),
        high=(*zeros, *high),
    )  # fmt: skip


@lowers(aten.avg_pool2d.default, aten.avg_pool3d.default, aten.avg_pool1d.default)
def avg_pool(
    cx: Context,
    x: Node,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
) -> Node:
    del ceil_mode  # the result's shape shows it
    rank = 3 if cx.fx.target is aten.avg_pool3d.default else 2
    rank = 1 if cx.fx.target is aten.avg_pool1d.default else rank
    sizes, steps, pads = _window(rank, kernel, stride, padding)
    wide = compute_dtype(cx.dtype)
    total = _pool_add(b.convert(x, wide), cx.shape, sizes, steps, pads)
    if divisor is not None:
        return finish(cx, b.divide(total, e.like(total, divisor)))
    extents = x.shape[x.type.rank - rank :]
    counts = [
        _counts(n, o, k, s, p, include=count_include_pad)
        for n, o, k, s, p in zip(extents, cx.shape[-rank:], sizes, steps, pads, strict=True)
    ]
    full = math.prod(sizes)
    if all(c == k for line, k in zip(counts, sizes, strict=True) for c in line):
        return finish(cx, b.divide(total, e.like(total, full)))
    for d, line in enumerate(counts):
        along = b.constant(np.array(line, np.float64), wide)
        spread = b.broadcast_in_dim(along, total.shape, (total.type.rank - rank + d,))
        total = b.divide(total, spread)
    return finish(cx, total)


def _counts(extent: int, out: int, size: int, step: int, pad: int, *, include: bool) -> list[int]:
    """How many elements PyTorch divides each window by, along one dimension."""
    counts = []
    for i in range(out):
        start = i * step - pad
        end = min(start + size, extent + pad)
        counts.append(end - start if include else min(end, extent) - max(start, 0))
    return counts


@lowers(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default)
def adaptive_avg_pool(cx: Context, x: Node, size: Sequence[int]) -> Node:
    rank = 3 if cx.fx.target is aten._adaptive_avg_pool3d.default else 2
    wide = compute_dtype(cx.dtype)
    extents, outs = x.shape[x.type.rank - rank :], cx.shape[-rank:]
    v = b.convert(x, wide)
    if not x.type.size or not all(outs):
        return e.number(0, cx.dtype, cx.shape)
    if all(n % o == 0 for n, o in zip(extents, outs, strict=True)):
        parts = [m for n, o in zip(extents, outs, strict=True) for m in (o, n // o)]
        lead = x.type.rank - rank
        split = b.reshape(v, (*x.shape[:lead], *parts))
        total = b.reduce(split, "add", range(lead + 1, lead + 2 * rank, 2))
        count = math.prod(n // o for n, o in zip(extents, outs, strict=True))
        return finish(cx, b.divide(total, e.like(total, count)))
    # Windows of different sizes, in each dimension by itself.
    for d, (n, o) in enumerate(zip(extents, outs, strict=True)):
        axis, windows = x.type.rank - rank + d, _windows(n, o)
        v = _divided(_summed(v, axis, windows), axis, windows)
    return finish(cx, v)


def _windows(extent: int, out: int) -> list[range]:
    """The positions that each element of an adaptive average covers, along one dimension."""
    return [range(i * extent // out, -(-(i + 1) * extent // out)) for i in range(out)]


def _summed(v: Node, axis: int, rows: Sequence[Sequence[int]]) -> Node:
    """Return sums along a dimension, one for each row of positions.

    A product with a matrix of ones and zeros would not do: it makes NaN of zero times infinity.
    """
    longest = max(map(len, rows))
    places = np.zeros((len(rows), longest), np.int64)
    there = np.zeros(places.shape, np.bool_)
    for i, row in enumerate(rows):
        places[i, : len(row)], there[i, : len(row)] = row, True
    taken = take_along(v, [(axis, b.constant(places, DType.S64))])
    if not there.all():
        mask = b.broadcast_in_dim(b.constant(there, DType.PRED), taken.shape, (axis, axis + 1))
        taken = b.select(mask, taken, e.like(taken, 0))
    return b.reduce(taken, "add", (axis + 1,))


def _divided(v: Node, axis: int, windows: Sequence[range]) -> Node:
    counts = b.constant(np.array([*map(len, windows)], np.float64), v.dtype)
    return b.divide(v, b.broadcast_in_dim(counts, v.shape, (axis,)))


@lowers(aten._adaptive_avg_pool2d_backward.default, aten._adaptive_avg_pool3d_backward.default)
def adaptive_avg_pool_backward(cx: Context, grad: Node, x: Node) -> Node:
    rank = 3 if cx.fx.target is aten._adaptive_avg_pool3d_backward.default else 2
    wide = compute_dtype(cx.dtype)
    v = b.convert(grad, wide)
    lead = x.type.rank - rank
    extents, outs = x.shape[lead:], grad.shape[lead:]
    if not grad.type.size:
        return e.number(0, cx.dtype, cx.shape)
    if all(n % o == 0 for n, o in zip(extents, outs, strict=True)):
        parts = [m for n, o in zip(extents, outs, strict=True) for m in (o, n // o)]
        count = math.prod(n // o for n, o in zip(extents, outs, strict=True))
        dims = (*range(lead), *range(lead, lead + 2 * rank, 2))
        v = b.divide(v, e.like(v, count))
        return finish(
            cx, b.reshape(b.broadcast_in_dim(v, (*x.shape[:lead], *parts), dims), x.shape)
        )
    for d, (n, o) in enumerate(zip(extents, outs, strict=True)):
        windows = _windows(n, o)
        covering = [[i for i, window in enumerate(windows) if j in window] for j in range(n)]
        v = _summed(_divided(v, lead + d, windows), lead + d, covering)
    return finish(cx, v)


@lowers(aten.avg_pool2d_backward.default, aten.avg_pool3d_backward.default)
def avg_pool_backward(
    cx: Context,
    grad: Node,
    x: Node,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
) -> Node:
    """Every window gives its share to the elements it covers: a sum of spread-out windows."""
    del ceil_mode
    rank = 3 if cx.fx.target is aten.avg_pool3d_backward.default else 2
    sizes, steps, pads = _window(rank, kernel, stride, padding)
    wide = compute_dtype(cx.dtype)
    v = b.convert(grad, wide)
    lead = x.type.rank - rank
    extents = x.shape[lead:]
    for d in range(rank):
        line = _counts(extents[d], grad.shape[lead + d], sizes[d], steps[d], pads[d],
                       include=count_include_pad)  # fmt: skip
        if divisor is None:
            along = b.constant(np.array(line, np.float64), wide)
            v = b.divide(v, b.broadcast_in_dim(along, v.shape, (lead + d,)))
    if divisor is not None:
        v = b.divide(v, e.like(v, divisor))
    # Element i of the input lies in the windows o with o*step - pad <= i < o*step - pad + size:
    # spread the windows `step` apart and add up `size` neighbours.
    low = [k - 1 - p for k, p in zip(sizes, pads, strict=True)]
    spread = [(o - 1) * s + 1 for o, s in zip(grad.shape[lead:], steps, strict=True)]
    high = [n - (w + a - k + 1) for n, w, a, k in zip(extents, spread, low, sizes, strict=True)]
    zeros, ones = (0,) * lead, (1,) * lead
    padded = b.pad(v, e.number(0, wide), (*zeros, *low), (*zeros, *high),
                   (*zeros, *(s - 1 for s in steps)))  # fmt: skip
    return finish(cx, b.reduce_window(padded, "add", (*ones, *sizes)))


@lowers(aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default)
def max_pool(
    cx: Context,
    x: Node,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
) -> tuple[Node | None, Node | None]:
    rank = 3 if cx.fx.target is aten.max_pool3d_with_indices.default else 2
    if _indices_unused(cx):
        sizes, steps, pads = _window(rank, kernel, stride, padding)
        holes = _each(dilation, rank)
        lead = x.type.rank - rank
        ones, zeros = (1,) * lead, (0,) * lead
        high = _edges(x, cx.shape, sizes, steps, pads, holes)
        values = b.reduce_window(
            x, "max", (*ones, *sizes), strides=(*ones, *steps), low=(*zeros, *pads),
            high=(*zeros, *high), window_dilation=(*ones, *holes),
        )  # fmt: skip
        return values, None
    # Both from one kernel: the native one on the device, else ATen's.
    values, indices = cx.call(
        cx.fx.target,  # type: ignore[arg-type]
        (x, kernel, stride, _each(padding, rank), _each(dilation, rank), ceil_mode),
        device=rank == 2,
    )
    return values, indices


def _indices_unused(cx: Context) -> bool:
    return all(user.args[1] == 0 or not user.users for user in cx.fx.users)


@lowers(
    aten.max_pool2d_with_indices_backward.default, aten.max_pool3d_with_indices_backward.default
)
def max_pool_backward(cx: Context, grad: Node, x: Node, *rest: object) -> Node:
    """Add every window's gradient at the place that its index names."""
    indices = rest[-1]
    assert isinstance(indices, Node)
    rank = 3 if cx.fx.target is aten.max_pool3d_with_indices_backward.default else 2
    lead = x.type.rank - rank
    planes, area = math.prod(x.shape[:lead]), math.prod(x.shape[lead:])
    if not grad.type.size or not x.type.size:
        return e.number(0, cx.dtype, cx.shape)
    wide = compute_dtype(cx.dtype)
    places = b.reshape(indices, (planes, indices.type.size // planes))
    rows = e.positions(places.shape, 0)
    updates = b.reshape(b.convert(grad, wide), places.shape)
    total = put_along(e.number(0, wide, (planes, area)), [(0, rows), (1, places)], updates, "add")
    return finish(cx, b.reshape(total, x.shape))
