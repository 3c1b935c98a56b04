"""Random views beside the NumPy arrays that say which elements they must show.

A view is followed by an array of the same shape that holds, at each index, the number of the
element in the storage; NumPy's own indexing and copying reshapes derive it.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from nki.errors import NkiError
from nki.memory import MemoryRegion
from nki.tensor import NkiTensor, create

Model = npt.NDArray[np.int64]
Draw = Callable[..., Any]  # hypothesis' draw, of a composite strategy or of data()

ITEMS = st.sampled_from(["float32", "bfloat16", "uint8", "float4_e2m1fn_x4"])


@st.composite
def tensors(
    draw: st.DrawFn, regions: tuple[MemoryRegion, ...] = tuple(MemoryRegion)
) -> tuple[NkiTensor, Model]:
    """Return a new tensor, sometimes at an address, and the numbers of its elements."""
    region = draw(st.sampled_from(regions))
    least = 2 if region.on_chip else 1
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=least, max_size=4)))
    address = None
    if region.on_chip and draw(st.booleans()):
        bank = 2048 if region is MemoryRegion.psum else 1
        address = (draw(st.integers(0, 100)), bank * draw(st.integers(0, 3)))
    tensor = create(shape, draw(ITEMS), region, address=address)
    return tensor, np.arange(math.prod(shape)).reshape(shape)


def at_least(model: Model, tensor: NkiTensor) -> Model:
    """Give an array the dimensions that a view must keep."""
    least = 2 if tensor.buffer.on_chip else 1
    while model.ndim < least:
        model = model[..., None]
    return model


@st.composite
def keys(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Return an index for a view of this shape: integers, slices and `...`."""
    key: list[Any] = []
    for n in shape[: draw(st.integers(0, len(shape)))]:
        if draw(st.booleans()):
            key.append(draw(st.integers(-n, n - 1)))
            continue
        start = draw(st.integers(0, n - 1))
        stop = draw(st.integers(start + 1, n))
        step = draw(st.sampled_from([None, 1, 2, 3]))
        key.append(
            slice(
                draw(st.sampled_from([start, start - n] + [None] * (start == 0))),
                draw(st.sampled_from([stop] + [stop - n] * (stop < n) + [None] * (stop == n))),
                step,
            )
        )
    if draw(st.booleans()):
        left = draw(st.integers(0, len(key)))
        tail = len(key) - left
        dots = [*key[:left], ...]
        # What stands after the dots counts from the last dimension, so it must fit there.
        for n, part in zip(shape[len(shape) - tail :], key[left:], strict=True):
            fits = part if isinstance(part, slice) and part == slice(None) else slice(0, n, 2)
            dots.append(fits)
        return tuple(dots)
    return tuple(key)


def apply_key(model: Model, key: tuple[Any, ...], tensor: NkiTensor) -> Model:
    """Index an array as a view of ``tensor`` is indexed."""
    if tensor.buffer.on_chip and key and isinstance(key[0], int):
        i = key[0] % model.shape[0]
        key = (slice(i, i + 1), *key[1:])
    return at_least(model[key], tensor)


def _factors(draw: Draw, n: int) -> tuple[int, ...]:
    sizes: list[int] = []
    while n > 1 and len(sizes) < 3:
        f = draw(st.sampled_from([d for d in range(1, n + 1) if n % d == 0]))
        sizes.append(f)
        n //= f
    sizes.append(n)
    return tuple(sizes)


def _index(draw: Draw, t: NkiTensor, m: Model) -> tuple[NkiTensor, Model]:
    key = draw(keys(t.shape))
    return t[key], apply_key(m, key, t)


def _slice(draw: Draw, t: NkiTensor, m: Model) -> tuple[NkiTensor, Model]:
    dim = draw(st.integers(0, t.ndim - 1))
    n = t.shape[dim]
    start = draw(st.integers(0, n - 1))
    stop, step = draw(st.integers(start + 1, n)), draw(st.integers(1, 3))
    return (
        t.slice(dim, start, stop, step),
        m[(slice(None),) * dim + (slice(start, stop, step),)],
    )


def _select(draw: Draw, t: NkiTensor, m: Model) -> tuple[NkiTensor, Model]:
    dim = draw(st.integers(0, t.ndim - 1))
    i = draw(st.integers(0, t.shape[dim] - 1))
    keep = t.ndim <= (2 if t.buffer.on_chip else 1) or (dim == 0 and t.buffer.on_chip)
    return t.select(dim, i), np.take(m, [i] if keep else i, axis=dim)


def _permute(draw: Draw, t: NkiTensor, m: Model) -> tuple[NkiTensor, Model]:
    first = 1 if t.buffer.on_chip else 0
    order = tuple(range(first)) + tuple(draw(st.permutations(range(first, t.ndim))))
    return t.permute(order), m.transpose(order)


def _expand(draw: Draw, t: NkiTensor, m: Model) -> tuple[NkiTensor, Model]:
    dim = draw(st.integers(1 if t.buffer.on_chip else 0, t.ndim))
    return t.expand_dim(dim), np.expand_dims(m, dim)


def _broadcast(draw: Draw, t: NkiTensor, m: Model) -> tuple[NkiTensor, Model]:
    t, m = _expand(draw, t, m)
    dims = [d for d, n in enumerate(t.shape) if n == 1 and not (d == 0 and t.buffer.on_chip)]
    dim, size = draw(st.sampled_from(dims)), draw(st.integers(1, 3))
    return t.broadcast(dim, size), np.repeat(m, size, axis=dim)


def _squeeze(draw: Draw, t: NkiTensor, m: Model) -> tuple[NkiTensor, Model]:
    t, m = _expand(draw, t, m)
    dims = [d for d, n in enumerate(t.shape) if n == 1 and not (d == 0 and t.buffer.on_chip)]
    dim = draw(st.sampled_from(dims))
    return t.squeeze_dim(dim), m.squeeze(dim)


def _reshape_dim(draw: Draw, t: NkiTensor, m: Model) -> tuple[NkiTensor, Model]:
    dim = draw(st.integers(1 if t.buffer.on_chip else 0, t.ndim - 1))
    sizes = _factors(draw, t.shape[dim])
    asked = list(sizes)
    if draw(st.booleans()):
        asked[draw(st.integers(0, len(sizes) - 1))] = -1
    return t.reshape_dim(dim, asked), m.reshape(*m.shape[:dim], *sizes, *m.shape[dim + 1 :])


def _flatten(draw: Draw, t: NkiTensor, m: Model) -> tuple[NkiTensor, Model]:
    start = draw(st.integers(1 if t.buffer.on_chip else 0, t.ndim - 1))
    end = draw(st.integers(start, t.ndim - 1))
    flat = m.reshape(*m.shape[:start], -1, *m.shape[end + 1 :])
    return t.flatten_dims(start, end), flat


def _reshape(draw: Draw, t: NkiTensor, m: Model) -> tuple[NkiTensor, Model]:
    if t.buffer.on_chip:
        sizes = (t.shape[0], *_factors(draw, math.prod(t.shape[1:])))
    else:
        sizes = _factors(draw, t.size)
    return t.reshape(sizes), m.reshape(sizes)


Operation = Callable[[Draw, NkiTensor, Model], tuple[NkiTensor, Model]]
OPERATIONS: tuple[Operation, ...] = (
    _index, _slice, _select, _permute, _expand, _broadcast, _squeeze, _reshape_dim, _flatten,
    _reshape,
)  # fmt: skip


def step(draw: Draw, t: NkiTensor, m: Model) -> tuple[NkiTensor, Model]:
    """Apply a random operation to both; where the view would need a copy, to neither."""
    if t.ndim > 6:
        return t, m
    try:
        operation: Operation = draw(st.sampled_from(OPERATIONS))
        return operation(draw, t, m)
    except NkiError as error:
        if error.code != "NKI018":
            raise
        return t, m


@st.composite
def chains(
    draw: st.DrawFn, regions: tuple[MemoryRegion, ...] = tuple(MemoryRegion)
) -> tuple[NkiTensor, Model]:
    """Return a view after up to six operations, and the numbers of its elements."""
    t, m = draw(tensors(regions))
    for _ in range(draw(st.integers(0, 6))):
        t, m = step(draw, t, m)
    return t, m
