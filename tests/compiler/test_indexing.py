"""Index expressions, read and written, in eager mode and compiled: the values are the CPU's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

TYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64)


def _plus(x: Tensor) -> Tensor:
    return ~x if x.dtype is torch.bool else x + 1


def _written(x: Tensor, at: Any, value: Any) -> Tensor:
    y = x.clone()
    y[at] = value
    return y


def _in_place(x: Tensor, at: Any) -> tuple[Tensor, Tensor]:
    x[at] = _plus(x[at])
    return x, _plus(x)


def _accumulated(x: Tensor, at: Any, value: Tensor) -> Tensor:
    tensors = tuple(i for i in at if isinstance(i, Tensor))
    return x.clone().index_put_(tensors, value, accumulate=True) if tensors else x.clone()


#: Functions of a tensor, an index and a number.
USES: dict[str, Callable[[Tensor, Any, Tensor], Any]] = {
    "read": lambda x, at, _: _plus(x[at]),
    "written": _written,
    "number": lambda x, at, _: _written(x, at, 1),
    "own": lambda x, at, _: _written(x, at, x[at].flip(0) if x[at].dim() else x[at]),
    "view": lambda x, at, v: (y := x.clone(), y[at].fill_(v))[0],
    "in place": lambda x, at, _: _in_place(x, at),
    "accumulated": _accumulated,
}


@st.composite
def indices(draw: Callable[..., Any], shape: tuple[int, ...]) -> tuple[Any, ...]:
    """An index of a tensor of this shape, which may be out of shape but not out of range."""
    found: list[Any] = []
    many = draw(st.sampled_from([(), (1,), (3,), (2, 1), (0,)]))
    dim = 0
    while dim < len(shape) and not (found and draw(st.integers(0, 5)) == 0):
        n = shape[dim]
        kinds = ["slice", "none", "mask", "all"] + ["number", "tensor", "tensor"] * bool(n)
        kind = draw(st.sampled_from(kinds))
        if kind == "none":
            found.append(None)
            continue
        dim += 1
        if kind == "all":
            found.append(... if ... not in found and draw(st.booleans()) else slice(None))
        elif kind == "slice":
            edge = st.none() | st.integers(-n - 1, n + 1)
            found.append(slice(draw(edge), draw(edge), draw(st.sampled_from([None, 1, 2]))))
        elif kind == "number":
            found.append(draw(st.integers(-n, n - 1)))
        elif kind == "mask":
            rank = draw(st.integers(1, len(shape) - dim + 1))
            extents = shape[dim - 1 : dim - 1 + rank]
            dim += rank - 1
            size = math.prod(extents)
            bits = draw(st.lists(st.booleans(), min_size=size, max_size=size))
            found.append(torch.tensor(bits, dtype=torch.bool).reshape(extents))
        else:
            size = math.prod(many)
            places = draw(st.lists(st.integers(-n, n - 1), min_size=size, max_size=size))
            found.append(torch.tensor(places, dtype=torch.int64).reshape(many))
    return tuple(found)


def _result(use: Callable[..., Any], x: Tensor, at: Any, value: Tensor, device: str) -> Any:
    given = x.to(device) if device == "neuron" else x.clone()
    moved = tuple(i.to(device) if isinstance(i, Tensor) else i for i in at)
    try:
        made = use(given, moved, value.to(device))
    except (IndexError, RuntimeError, ValueError) as error:
        return error
    return [y.cpu() for y in (made if isinstance(made, tuple) else (made,))]


def _agree(mine: Any, theirs: Any) -> None:
    if isinstance(theirs, Exception):
        assert isinstance(mine, Exception), f"accepted, the CPU: {theirs}"
        return
    assert not isinstance(mine, Exception), mine
    for ours, cpus in zip(mine, theirs, strict=True):
        torch.testing.assert_close(ours, cpus, equal_nan=True)


shapes = st.lists(st.integers(0, 4), min_size=1, max_size=4).map(tuple)
cases = shapes.flatmap(lambda shape: st.tuples(st.just(shape), indices(shape)))


def _tensor(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    numbers = torch.arange(float(math.prod(shape))).reshape(shape) - 3
    return (numbers > 2) if dtype is torch.bool else numbers.to(dtype)


@given(cases, st.sampled_from(TYPES), st.sampled_from(sorted(USES)))
def test_indices(case: tuple[tuple[int, ...], Any], dtype: torch.dtype, use: str) -> None:
    shape, at = case
    x, value = _tensor(shape, dtype), torch.tensor(5).to(dtype)
    theirs = _result(USES[use], x, at, value, "cpu")
    _agree(_result(USES[use], x, at, value, "neuron"), theirs)


@given(cases, st.sampled_from(TYPES), st.sampled_from(sorted(USES)))
@settings(max_examples=25)
def test_indices_compiled(case: tuple[tuple[int, ...], Any], dtype: torch.dtype, use: str) -> None:
    shape, at = case
    x, value = _tensor(shape, dtype), torch.tensor(5).to(dtype)
    theirs = _result(USES[use], x, at, value, "cpu")
    torch.compiler.reset()
    compiled = torch.compile(USES[use], backend="neuron")
    mine = _result(compiled, x, at, value, "neuron")
    if 0 in x.shape and isinstance(theirs, Exception):
        return  # that masks and places go together is asked where something is looked up
    _agree(mine, theirs)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("number", [0, 1])
def test_a_mask_accumulates(dtype: torch.dtype, number: int) -> None:
    x, value = _tensor((3, 4), dtype), torch.tensor(number).to(dtype)
    at = (torch.tensor([[True, False, False, True]] * 3),)
    compiled = torch.compile(_accumulated, backend="neuron")
    _agree(_result(compiled, x, at, value, "neuron"), _result(_accumulated, x, at, value, "cpu"))
