"""Random compositions of operators that move, split and join, with arithmetic in between."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch

Tensors = list[torch.Tensor]
Program = Callable[[torch.Tensor], torch.Tensor]
MOST = 4096  # elements of a tensor on the way


def _dim(rng: random.Random, x: torch.Tensor) -> int:
    return rng.randrange(x.dim())


def _slice(rng: random.Random, x: torch.Tensor) -> torch.Tensor:
    dim = _dim(rng, x)
    start = rng.randrange(x.shape[dim])
    end = rng.randrange(start, x.shape[dim]) + 1
    index = [slice(None)] * x.dim()
    index[dim] = slice(start, end, rng.choice((1, 1, 2, 3)))
    return x[tuple(index)]


def _unflatten(rng: random.Random, x: torch.Tensor) -> torch.Tensor:
    dim = _dim(rng, x)
    factors = [k for k in range(2, x.shape[dim]) if x.shape[dim] % k == 0]
    return x.unflatten(dim, (-1, rng.choice(factors))) if factors else x


def _flatten(rng: random.Random, x: torch.Tensor) -> torch.Tensor:
    first = _dim(rng, x)
    return x.flatten(first, rng.randrange(first, x.dim()))


def _halves(rng: random.Random, x: torch.Tensor) -> torch.Tensor:
    """Rotation, as in rotary embeddings: interleaved or by halves."""
    dim = _dim(rng, x)
    if x.shape[dim] % 2:
        return x
    if rng.random() < 0.5:
        a, b = x.chunk(2, dim)
        return torch.cat((-b, a), dim)
    a, b = x.unflatten(dim, (-1, 2)).unbind(dim + 1)
    return torch.stack((-b, a), dim + 1).flatten(dim, dim + 1)


def _parts(rng: random.Random, x: torch.Tensor) -> torch.Tensor:
    """Parts of a tensor, each computed with in its own way, joined in some order."""
    dim = _dim(rng, x)
    kind = rng.choice(("split", "chunk", "unbind", "tensor_split"))
    if kind == "split":
        parts: Tensors = list(x.split(rng.randrange(1, x.shape[dim] + 1), dim))
    elif kind == "chunk":
        parts = list(x.chunk(rng.randrange(1, 4), dim))
    elif kind == "tensor_split":
        parts = list(x.tensor_split(rng.randrange(1, 4), dim))
    else:
        parts = list(x.unbind(dim))[:6]
    parts = [p for p in parts if p.numel()][:6]
    parts = [rng.choice((torch.neg, lambda p: p * 3, lambda p: p))(p) for p in parts]
    rng.shuffle(parts)
    return torch.stack(parts, dim) if kind == "unbind" else torch.cat(parts, dim)


def _roll(rng: random.Random, x: torch.Tensor) -> torch.Tensor:
    dim = _dim(rng, x)
    return x.roll(rng.randrange(-3, 4), dim)


def _flip(rng: random.Random, x: torch.Tensor) -> torch.Tensor:
    return x.flip(_dim(rng, x))


def _transpose(rng: random.Random, x: torch.Tensor) -> torch.Tensor:
    return x.transpose(_dim(rng, x), _dim(rng, x))


def _pad(rng: random.Random, x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(x, (rng.randrange(-1, 3), rng.randrange(0, 3)), value=0.5)


def _select(rng: random.Random, x: torch.Tensor) -> torch.Tensor:
    dim = _dim(rng, x)
    return x.select(dim, rng.randrange(x.shape[dim])) if x.dim() > 1 else x


def _repeat(rng: random.Random, x: torch.Tensor) -> torch.Tensor:
    dim = _dim(rng, x)
    if rng.random() < 0.5:
        return x.repeat_interleave(2, dim)
    return x.repeat(*(2 if d == dim else 1 for d in range(x.dim())))


def _window(rng: random.Random, x: torch.Tensor) -> torch.Tensor:
    dim = _dim(rng, x)
    size = rng.randrange(1, min(x.shape[dim], 4) + 1)
    return x.unfold(dim, size, rng.randrange(1, 3))


def _whole(rng: random.Random, x: torch.Tensor) -> torch.Tensor:
    """A part computed anew, beside the rest: partial rotary embeddings, patches of images."""
    dim = _dim(rng, x)
    cut = rng.randrange(x.shape[dim] + 1)
    kept, changed = x.split((cut, x.shape[dim] - cut), dim)
    if not changed.numel():
        return x
    return torch.cat((kept, changed * 2 + _halves(rng, changed).reshape(changed.shape) * 3), dim)


def _pointwise(rng: random.Random, x: torch.Tensor) -> torch.Tensor:
    return rng.choice((lambda x: x * 2 + 1, torch.neg, lambda x: x * x, torch.relu))(x)


def _meet(rng: random.Random, x: torch.Tensor) -> torch.Tensor:
    """A tensor with a movement of itself."""
    return x + rng.choice((_roll, _flip, _halves))(rng, x).reshape(x.shape) * 0.5


def _diagonal(_rng: random.Random, x: torch.Tensor) -> torch.Tensor:
    return x.diagonal() if x.dim() > 1 else x


def _reduce(rng: random.Random, x: torch.Tensor) -> torch.Tensor:
    return x - x.mean(_dim(rng, x), keepdim=True)


def _shape(rng: random.Random, size: int) -> list[int]:
    """Some extents with a product."""
    shape: list[int] = []
    while size > 1 and len(shape) < 3:
        extent = rng.choice([k for k in range(1, size + 1) if size % k == 0])
        shape.append(extent)
        size //= extent
    return [*shape, size]


def _reshape(rng: random.Random, x: torch.Tensor) -> torch.Tensor:
    return x.reshape(_shape(rng, x.numel()))


def _flat_part(rng: random.Random, x: torch.Tensor) -> torch.Tensor:
    """A part of the elements in their order, whatever the rows were."""
    start = rng.randrange(x.numel())
    count = rng.randrange(1, x.numel() - start + 1)
    return x.reshape(-1)[start : start + count].reshape(_shape(rng, count))


def _pool(rng: random.Random, x: torch.Tensor) -> torch.Tensor:
    if x.dim() < 3 or min(x.shape[-2:]) < 2:
        return x
    size, stride = rng.randrange(1, 3), rng.randrange(1, 3)
    pool = rng.choice((torch.nn.functional.avg_pool2d, torch.nn.functional.max_pool2d))
    pooled: torch.Tensor = pool(x.reshape(1, -1, *x.shape[-2:]), size, stride)
    return pooled


def _largest(rng: random.Random, x: torch.Tensor) -> torch.Tensor:
    dim = _dim(rng, x)
    return x.topk(rng.randrange(1, x.shape[dim] + 1), dim)[0]


STEPS = (
    *(_reshape, _flat_part, _flat_part, _pool, _largest),
    *(_slice, _unflatten, _flatten, _halves, _parts, _roll, _flip, _transpose, _pad, _select),
    *(_repeat, _window, _whole, _pointwise, _meet, _diagonal, _reduce, _whole, _parts),
)


def program(seed: int) -> tuple[Program, tuple[int, ...]]:
    """A function of one tensor, the same at every call, and the tensor's shape."""
    rng = random.Random(seed)  # noqa: S311 - it makes tests
    shape = tuple(rng.choice((1, 2, 3, 4, 6, 8, 12)) for _ in range(rng.randrange(1, 5)))
    count = rng.randrange(2, 9)
    state = rng.getstate()

    def run(x: torch.Tensor) -> torch.Tensor:
        rng = random.Random(seed)  # noqa: S311 - it makes tests
        rng.setstate(state)
        for _ in range(count):
            y = rng.choice(STEPS)(rng, x)
            if 0 < y.numel() <= MOST and 0 < y.dim() <= 6:
                x = y
        # AOTAutograd gives gradients the strides of results, which is wrong if these overlap.
        return x * 1.5

    return run, shape
