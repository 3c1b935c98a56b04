"""Convolutions over images, and transposed ones: forward, and the gradients of image and filters.

All three kernels are products of tiles of channels, one for each place of the filters, that are
summed in PSUM. Images lie in SBUF with zeros around them, so that no product asks for the border:

- forward: filters [channels in, out] times the pixels that a place of the filters sees;
- gradient of the image: the same with the filters turned around and the gradient's pixels spread
  by the stride;
- gradient of the filters: pixels are the partitions, so both sides are turned by the Tensor engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import nki
import nki.isa as nisa
import nki.language as nl
from nki.errors import NkiError
from torch_neuronx.kernels.reference import wide
from torch_neuronx.kernels.tiles import PARTITIONS, spans
from torch_neuronx.nki import nki_op

__all__ = [
    "conv2d",
    "conv2d_reference",
    "conv_transpose2d",
    "conv_transpose2d_reference",
]

PIXELS = 512  # of one product: what a PSUM bank holds of float32
_WINDOW = 16384  # elements of a part of an image in one partition: 64 KiB of float32
_FILTERS = 24576  # elements of filters in one partition

Pair = tuple[int, int]
_TYPES = (torch.float32, torch.bfloat16, torch.float16)


# --- kernels -------------------------------------------------------------------------------------


@nki.jit
def forward_kernel(x: Any, weight: Any, bias: Any, stride: Pair, padding: Pair) -> Any:
    """Convolve images [n, in, h, w] with filters [out, in, kh, kw]; bias [out, 1] or None."""
    kernel = weight.shape[2], weight.shape[3]
    size = tuple(
        (x.shape[2 + d] + 2 * padding[d] - kernel[d]) // stride[d] + 1 for d in range(2)
    )  # fmt: skip
    out = nl.ndarray((x.shape[0], weight.shape[0], *size), dtype=x.dtype, buffer=nl.shared_hbm)
    corner = -padding[0], -padding[1]
    _convolve(out, x, weight, stride, (1, 1), corner, bias, outward=True)
    return out


@nki.jit
def image_kernel(grad: Any, weight: Any, size: Pair, stride: Pair, padding: Pair) -> Any:
    """The gradient [n, in, *size] of images, from that of their convolution [n, out, h, w]."""
    kernel = weight.shape[2], weight.shape[3]
    out = nl.ndarray((grad.shape[0], weight.shape[1], *size), dtype=grad.dtype,
                     buffer=nl.shared_hbm)  # fmt: skip
    corner = padding[0] - kernel[0] + 1, padding[1] - kernel[1] + 1
    _convolve(out, grad, weight, (1, 1), stride, corner, None, outward=False)
    return out


@nki.jit
def filter_kernel(grad: Any, x: Any, kernel: Pair, stride: Pair, padding: Pair) -> Any:
    """The gradient [out, in, *kernel] of filters, from images and that of their convolution."""
    channels = grad.shape[1], x.shape[1]
    out = nl.ndarray((*channels, *kernel), dtype=x.dtype, buffer=nl.shared_hbm)
    places = kernel[0] * kernel[1]
    blocks = list(_blocks(grad.shape[2:], kernel, stride, PARTITIONS))
    for a, b in spans(channels[0]):
        for c, d in spans(channels[1], _columns(kernel, 1)):
            sums = nl.ndarray((b - a, places, d - c), dtype=nl.float32, buffer=nl.sbuf)
            nisa.memset(dst=sums, value=0.0)
            for n in nl.affine_range(x.shape[0]):
                for at, shape in blocks:
                    given = _turned(_window(grad[n, a:b], at, shape, (1, 1)))
                    corner, seen = _seen(at, shape, kernel, stride, (-padding[0], -padding[1]))
                    window = _window(x[n, c:d], corner, seen, (1, 1))
                    for place in range(places):
                        pixels = _turned(_shown(window, place, kernel, shape, stride))
                        part = nl.ndarray((b - a, d - c), dtype=nl.float32, buffer=nl.psum)
                        nisa.nc_matmul(dst=part, stationary=given, moving=pixels)
                        total = sums[:, place]
                        nisa.tensor_tensor(dst=total, data1=total, data2=part, op=nl.add)
            done = nl.ndarray(sums.shape, dtype=out.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=done, src=sums)
            nisa.dma_copy(dst=_by_place(out, (a, b), (c, d), outward=False), src=done)
    return out


def _convolve(
    out: Any, x: Any, weight: Any, step: Pair, spread: Pair, corner: Pair, bias: Any, *,
    outward: bool,
) -> None:  # fmt: skip
    """Write the convolution of images [n, channels, h, w] to others, by `_correlate`.

    Outward is from the filters' second channels to their first ones.
    """
    kernel = weight.shape[2], weight.shape[3]
    parts = list(spans(x.shape[1]))
    for first, last in spans(out.shape[1], _columns(kernel, len(parts))):
        filters = [_filters(weight, (first, last), part, outward=outward) for part in parts]
        added = None
        if bias is not None:
            added = nl.ndarray((last - first, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=added, src=bias[first:last])
        for n in nl.affine_range(x.shape[0]):
            images = [x[n, a:b] for a, b in parts]
            _correlate(out[n, first:last], images, filters, kernel, step, spread, corner, added)


def _columns(kernel: Pair, parts: int) -> int:
    """How many columns of filters are taken at once, so that all parts of them fit SBUF."""
    return max(1, min(PARTITIONS, _FILTERS // (kernel[0] * kernel[1] * parts)))


def _by_place(weight: Any, outs: Pair, ins: Pair, *, outward: bool) -> Any:
    """Filters as [in, place, out] if they lead outward, else as [out, place, in]."""
    _, channels, *kernel = weight.shape
    places = kernel[0] * kernel[1]
    out = [channels * places, outs[1] - outs[0]]
    inner = [places, ins[1] - ins[0]]
    ends = (inner, out) if outward else (out, inner)
    return weight.ap([ends[0], [1, places], ends[1]], offset=(outs[0] * channels + ins[0]) * places)


def _filters(weight: Any, to: Pair, given: Pair, *, outward: bool) -> list[Any]:
    """Tiles [given, to] by place; if they lead inward, by the places in reverse order."""
    outs, ins = (to, given) if outward else (given, to)
    src = _by_place(weight, outs, ins, outward=outward)
    tile = nl.ndarray(src.shape, dtype=weight.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=src)
    found = [tile[:, place] for place in range(src.shape[1])]
    return found if outward else found[::-1]


def _correlate(
    out: Any, images: list[Any], filters: list[list[Any]], kernel: Pair, step: Pair, spread: Pair,
    corner: Pair, added: Any,
) -> None:  # fmt: skip
    """Write the sums over parts of channels and places of the filters to out [channels, h, w].

    The pixel (y, x) of the result sees those from (y, x) * step + corner on, of images whose
    pixels are `spread` apart. `added` is a number for each channel, or None.
    """
    for at, shape in _blocks(out.shape[1:], kernel, step, PIXELS):
        count = shape[0] * shape[1]
        total = nl.ndarray((out.shape[0], count), dtype=nl.float32, buffer=nl.psum)
        first, seen = _seen(at, shape, kernel, step, corner)
        for image, tiles in zip(images, filters, strict=True):
            window = _window(image, first, seen, spread)
            for place, tile in enumerate(tiles):
                pixels = _shown(window, place, kernel, shape, step)
                nisa.nc_matmul(dst=total, stationary=tile, moving=pixels)
        result = nl.ndarray(total.shape, dtype=out.dtype, buffer=nl.sbuf)
        if added is None:
            nisa.tensor_copy(dst=result, src=total)
        else:
            nisa.tensor_scalar(dst=result, data=total, op0=nl.add, operand0=added)
        there = out[:, at[0] : at[0] + shape[0], at[1] : at[1] + shape[1]]
        nisa.dma_copy(dst=there, src=result.reshape(there.shape))


def _blocks(size: Sequence[int], kernel: Pair, step: Pair, most: int) -> Any:
    """Iterate over (first pixel, height and width) of parts of an image of at most `most` pixels.

    What the filters see of a part fits `_WINDOW`.
    """
    widest = max(1, (_WINDOW // kernel[0] - kernel[1]) // step[1] + 1)
    for x0, x1 in spans(size[1], min(most, widest)):
        width = x1 - x0
        line = (width - 1) * step[1] + kernel[1]
        highest = max(1, (_WINDOW // line - kernel[0]) // step[0] + 1)
        for y0, y1 in spans(size[0], max(1, min(most // width, highest))):
            yield (y0, x0), (y1 - y0, width)


def _seen(at: Pair, shape: Pair, kernel: Pair, step: Pair, corner: Pair) -> tuple[Pair, Pair]:
    """First pixel, and height and width, of what filters see for a part of their result."""
    first = at[0] * step[0] + corner[0], at[1] * step[1] + corner[1]
    size = (shape[0] - 1) * step[0] + kernel[0], (shape[1] - 1) * step[1] + kernel[1]
    return first, size


def _window(image: Any, first: Pair, size: Pair, spread: Pair) -> Any:
    """Part of an image [channels, h, w] in SBUF, with zeros around it and between its pixels."""
    tile = nl.ndarray((image.shape[0], *size), dtype=image.dtype, buffer=nl.sbuf)
    to, source = [], []
    for d in range(2):
        begin = max(0, -(-first[d] // spread[d]))
        end = min(image.shape[1 + d], (first[d] + size[d] - 1) // spread[d] + 1)
        place = begin * spread[d] - first[d]
        to.append(slice(place, place + (end - begin - 1) * spread[d] + 1, spread[d]))
        source.append(slice(begin, end))
    counts = [max(0, part.stop - part.start) for part in source]
    if counts != list(size):
        nisa.memset(dst=tile, value=0.0)
    if all(counts):
        nisa.dma_copy(dst=tile[:, to[0], to[1]], src=image[:, source[0], source[1]])
    return tile


def _shown(window: Any, place: int, kernel: Pair, shape: Pair, step: Pair) -> Any:
    """The part of the image that one place of the filters sees: [channels, *shape]."""
    y, x = divmod(place, kernel[1])
    rows = slice(y, y + (shape[0] - 1) * step[0] + 1, step[0])
    return window[:, rows, x : x + (shape[1] - 1) * step[1] + 1 : step[1]]


def _turned(tile: Any) -> Any:
    """A view [p, h, w] of SBUF as [h * w, p]."""
    rows, height, width = tile.shape
    there = nl.ndarray((height * width, rows), dtype=tile.dtype, buffer=nl.psum)
    nisa.nc_transpose(dst=there, data=tile, engine=nisa.engine.tensor)
    here = nl.ndarray(there.shape, dtype=tile.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=here, src=there)
    return here


# --- functions of PyTorch ------------------------------------------------------------------------


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
) -> Tensor:
    """Convolve images with filters; differentiable, also twice.

    Args:
        x: [n, in, h, w], float32, bfloat16 or float16.
        weight: [out, in, kh, kw], of the same type.
        bias: [out], of the same type, or None.
        stride: Pixels from one place of the filters to the next, one number or two.
        padding: Zeros on each side of the images, one number or two.

    Raises:
        NkiError: Other shapes or types, or filters larger than the images with their zeros
            (NKI274).
    """
    steps, zeros = _pair(stride), _pair(padding)
    _check("conv2d", x, weight, bias, 1, 0, steps, zeros)
    if any(x.shape[2 + d] + 2 * zeros[d] < weight.shape[2 + d] for d in range(2)):
        raise _unfit("conv2d", x, weight, steps, zeros)
    out: Tensor = _forward(x, weight, bias, steps, zeros)
    return out


def conv2d_reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
) -> Tensor:
    """Compute the same by operators of PyTorch, with sums of float32."""
    added = None if bias is None else wide(bias)
    out = torch.conv2d(wide(x), wide(weight), added, _pair(stride), _pair(padding))
    return out.to(x.dtype)


def conv_transpose2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
) -> Tensor:
    """Return the gradient of a convolution's images as a layer of its own; differentiable.

    Args:
        x: [n, in, h, w], float32, bfloat16 or float16.
        weight: [in, out, kh, kw], of the same type.
        bias: [out], of the same type, or None.
        stride: Pixels of the result from one pixel of `x` to the next.
        padding: Pixels that the result is cut on each side.
        output_padding: Pixels more at the bottom and on the right, fewer than the stride.

    Raises:
        NkiError: Other shapes or types, or a result without pixels (NKI274).
    """
    steps, cut, more = _pair(stride), _pair(padding), _pair(output_padding)
    _check("conv_transpose2d", x, weight, bias, 0, 1, steps, cut)
    size = [
        (x.shape[2 + d] - 1) * steps[d] - 2 * cut[d] + weight.shape[2 + d] + more[d]
        for d in range(2)
    ]
    if min(size) < 1 or not all(0 <= m < s for m, s in zip(more, steps, strict=True)):
        raise _unfit("conv_transpose2d", x, weight, steps, cut, more)
    out: Tensor = _image(x, weight, size, steps, cut)
    return out if bias is None else out + bias[:, None, None]


def conv_transpose2d_reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
) -> Tensor:
    """Compute the same by operators of PyTorch, with sums of float32."""
    added = None if bias is None else wide(bias)
    out = torch.conv_transpose2d(
        wide(x), wide(weight), added, _pair(stride), _pair(padding), _pair(output_padding)
    )
    return out.to(x.dtype)


def _pair(given: int | Sequence[int]) -> list[int]:
    return [given, given] if isinstance(given, int) else list(given)


def _check(
    name: str, x: Tensor, weight: Tensor, bias: Tensor | None, ins: int, outs: int,
    stride: list[int], padding: list[int],
) -> None:  # fmt: skip
    fits = (
        x.dim() == weight.dim() == 4
        and len(stride) == len(padding) == 2
        and min(stride) >= 1
        and min(padding) >= 0
        and min(*x.shape, *weight.shape) >= 1
        and x.dtype in _TYPES
        and weight.dtype == x.dtype
        and weight.shape[ins] == x.shape[1]
        and (
            bias is None or (bias.dtype == x.dtype and bias.shape == weight.shape[outs : outs + 1])
        )
    )
    if not fits:
        raise _unfit(name, x, weight, stride, padding)


def _unfit(name: str, x: Tensor, weight: Tensor, *numbers: list[int]) -> NkiError:
    kinds = ", ".join(f"{t.dtype}{list(t.shape)}" for t in (x, weight))
    return NkiError(
        "NKI274",
        f"{name} of {kinds} with {', '.join(map(str, numbers))}",
        "its documentation says what it takes",
    )


@nki_op("torch_neuronx_kernels::conv2d", mutates_args=())
def _forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: list[int], padding: list[int]
) -> Tensor:
    added = None if bias is None else bias.float()[:, None]
    out: Tensor = forward_kernel(x, weight, added, tuple(stride), tuple(padding))
    return out


@nki_op("torch_neuronx_kernels::conv2d_image", mutates_args=())
def _image(
    grad: Tensor, weight: Tensor, size: list[int], stride: list[int], padding: list[int]
) -> Tensor:
    out: Tensor = image_kernel(grad, weight, tuple(size), tuple(stride), tuple(padding))
    return out


@nki_op("torch_neuronx_kernels::conv2d_filter", mutates_args=())
def _filter(
    grad: Tensor, x: Tensor, kernel: list[int], stride: list[int], padding: list[int]
) -> Tensor:
    out: Tensor = filter_kernel(grad, x, tuple(kernel), tuple(stride), tuple(padding))
    return out


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    del output
    first, second, _, ctx.stride, ctx.padding = inputs
    ctx.save_for_backward(first, second)


# Each is linear in both of its tensors, so the gradients of one are values of the other two.
def _of_forward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    more = ctx.stride, ctx.padding
    needed = ctx.needs_input_grad
    return (
        _image(grad, weight, list(x.shape[2:]), *more) if needed[0] else None,
        _filter(grad, x, list(weight.shape[2:]), *more) if needed[1] else None,
        grad.sum((0, 2, 3)) if needed[2] else None,
        None,
        None,
    )


def _of_image(ctx: Any, given: Tensor) -> tuple[Tensor | None, ...]:
    grad, weight = ctx.saved_tensors
    more = ctx.stride, ctx.padding
    needed = ctx.needs_input_grad
    return (
        _forward(given, weight, None, *more) if needed[0] else None,
        _filter(grad, given, list(weight.shape[2:]), *more) if needed[1] else None,
        None,
        None,
        None,
    )


def _of_filter(ctx: Any, given: Tensor) -> tuple[Tensor | None, ...]:
    grad, x = ctx.saved_tensors
    more = ctx.stride, ctx.padding
    needed = ctx.needs_input_grad
    return (
        _forward(x, given, None, *more) if needed[0] else None,
        _image(grad, given, list(x.shape[2:]), *more) if needed[1] else None,
        None,
        None,
        None,
    )


_forward.register_autograd(_of_forward, setup_context=_save)
_image.register_autograd(_of_image, setup_context=_save)
_filter.register_autograd(_of_filter, setup_context=_save)
