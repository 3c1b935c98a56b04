"""Which indices of tensors without elements are compared: each operator asks as the CPU's does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

_put = torch.ops.aten.index_put.default
Function = Callable[[Tensor, int, Tensor], Any]


def _at(dim: int, i: Tensor) -> tuple[Tensor | None, ...]:
    """Advanced indices that pick along a dimension."""
    return (None,) * dim + (i,)


def _slices(x: Tensor, dim: int, i: Tensor) -> Tensor:
    """As many slices as there are indices."""
    return x.new_zeros([i.numel() if d == dim else n for d, n in enumerate(x.shape)])


def _wide(x: Tensor, dim: int, i: Tensor) -> Tensor:
    """The indices for each place of a slice."""
    return i.reshape([-1 if d == dim else 1 for d in range(x.ndim)]).expand_as(_slices(x, dim, i))


CASES: dict[str, Function] = {
    "index": lambda x, d, i: x[_at(d, i)],
    "index_put": lambda x, d, i: _put(x, _at(d, i), x.new_ones(())),
    "index_put accumulated": lambda x, d, i: _put(x, _at(d, i), x.new_ones(()), accumulate=True),
    "index_select": lambda x, d, i: x.index_select(d, i),
    "index_fill": lambda x, d, i: x.index_fill(d, i, 2),
    "index_copy": lambda x, d, i: x.index_copy(d, i, _slices(x, d, i)),
    "index_add": lambda x, d, i: x.index_add(d, i, _slices(x, d, i)),
    "index_reduce": lambda x, d, i: x.index_reduce(d, i, _slices(x, d, i), "amax"),
    "gather": lambda x, d, i: x.gather(d, _wide(x, d, i)),
    "scatter": lambda x, d, i: x.scatter(d, _wide(x, d, i), 1),
    "scatter_add": lambda x, d, i: x.scatter_add(d, _wide(x, d, i), _slices(x, d, i)),
    "take": lambda x, _, i: x.take(i),
    "put": lambda x, _, i: x.put(i, x.new_ones(i.shape)),
    "embedding": lambda x, _, i: functional.embedding(i, x),
}
SHAPES = ((0, 0), (0, 3), (3, 0))


def _calls() -> Iterator[tuple[tuple[int, ...], int, list[int]]]:
    for shape, numbers in product(SHAPES, ([0], [-1], [5])):
        yield from ((shape, dim, numbers) for dim in range(len(shape)))


@pytest.mark.filterwarnings("ignore:index_reduce.. is in beta")
@pytest.mark.parametrize("name", CASES)
def test_indices_of_nothing(name: str) -> None:
    function = CASES[name]
    for shape, dim, numbers in _calls():
        index = torch.tensor(numbers, dtype=torch.int64)
        outcomes = []
        torch.compiler.reset()
        compiled = torch.compile(function, backend="neuron")
        for run, device in ((function, "cpu"), (function, "neuron"), (compiled, "neuron")):
            try:
                x = torch.zeros(shape, device=device)
                outcomes.append(run(x, dim, index.to(device)).cpu().shape)
            except (IndexError, RuntimeError):
                outcomes.append(None)
        assert len(set(outcomes)) == 1, (shape, dim, numbers, outcomes)
