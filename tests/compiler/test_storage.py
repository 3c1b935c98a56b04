"""`as_strided` and `resize` look at memory, whatever view they are asked of: against the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

aten = torch.ops.aten
Step = Callable[[torch.Tensor], torch.Tensor]


def strided(size: tuple[int, ...], stride: tuple[int, ...], offset: int | None) -> Step:
    return lambda x: x.as_strided(size, stride, offset)


@st.composite
def views(draw: st.DrawFn, x: torch.Tensor, least: int) -> list[Step]:
    """A chain of views, at least one of them by strides, within the storage."""
    chain: list[Step] = []
    room = x.untyped_storage().nbytes() // x.itemsize
    for number in range(draw(st.integers(least, 4))):
        last = number == 0 and least > 0
        kind = "as_strided" if last else draw(st.sampled_from(KINDS))
        made = _view(draw, x, kind, room)
        if made is not None:
            chain.append(made)
            x = made(x)
    return chain


KINDS = (
    *("as_strided", "slice", "transpose", "expand", "unfold", "select", "step", "split", "view"),
    *("conj", "neg"),
)


def _view(draw: st.DrawFn, x: torch.Tensor, kind: str, room: int) -> Step | None:
    if kind == "as_strided":
        return _strided(draw, room)
    if not x.dim() or not x.numel():
        return lambda x: x.expand(2, *x.shape)
    dim = draw(st.integers(0, x.dim() - 1))
    extent = x.shape[dim]
    start = draw(st.integers(0, extent - 1))
    length = draw(st.integers(1, extent))
    steps: dict[str, Step] = {
        "conj": torch.conj,
        "neg": torch._neg_view,
        "slice": lambda x: x.narrow(dim, start, extent - start),
        "step": lambda x: x[(slice(None),) * dim + (slice(start, None, 2),)],
        "select": lambda x: x.select(dim, start),
        "transpose": lambda x: x.transpose(0, dim),
        "unfold": lambda x: x.unfold(dim, length, 1),
        "split": lambda x: x.tensor_split(2, dim)[0],
        "view": lambda x: x.view(-1) if x.is_contiguous() else x,
        "expand": lambda x: x.unsqueeze(dim).expand(*x.shape[:dim], 2, *x.shape[dim:]),
    }
    return steps[kind]


def _strided(draw: st.DrawFn, room: int) -> Step | None:
    rank = draw(st.integers(0, 3))
    size = tuple(draw(st.integers(0 if rank == 3 else 1, 4)) for _ in range(rank))
    stride = tuple(draw(st.integers(0, 5)) for _ in range(rank))
    reach = sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if 0 not in size else 0
    return None if reach >= room else strided(size, stride, draw(st.integers(0, room - 1 - reach)))


def layouts() -> st.SearchStrategy[Callable[[torch.Tensor], torch.Tensor]]:
    """What makes a tensor with memory of its own of 24 elements."""
    return st.sampled_from(
        [
            lambda x: x + 1,
            lambda x: (x + 1).view(4, 6),
            lambda x: x.view(4, 6).t() * 2,
            lambda x: (x - 1).view(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
            lambda x: x,
        ]
    )


def of_other_types() -> st.SearchStrategy[Callable[[torch.Tensor], torch.Tensor]]:
    """The same, whose memory was made as elements of another type."""
    return st.sampled_from(
        [
            lambda x: (x + 1).view(torch.int32),
            lambda x: (x + 1).view(4, 6).view(torch.int32).t(),
            lambda x: torch.view_as_real(torch.complex(x[:12], x[12:] * 2)),
            lambda x: torch.view_as_real(torch.complex(x[::2], x[1::2])).view(4, 6),
            lambda x: torch.cat([x, x]).bfloat16().view(torch.int32),
            lambda x: x.view(torch.int32),
            lambda x: torch.complex(x, x * 2),
            lambda x: torch.complex(x, x * 2).view(4, 6).mH,
            lambda x: torch.complex(x, x * 2).conj().imag,
        ]
    )


def outcome(function: Callable[..., Any], x: torch.Tensor) -> tuple[Any, ...]:
    """Values, layout of the result, and what became of the argument."""
    result = function(x)
    kept = [s for s, n in zip(result.stride(), result.shape, strict=True) if n > 1]
    # What shows little of a large tensor is given memory of its own.
    most = 2 * result.numel() >= x.numel() and x.numel() == x.untyped_storage().nbytes() // 4
    layout = kept, result.storage_offset() if most else None, result.shape
    return result.detach().cpu().tolist(), layout, x.detach().cpu().tolist()


def compare(function: Callable[..., Any]) -> None:
    torch.compiler.reset()
    x = torch.arange(24.0)
    expected = outcome(function, x.clone())
    compiled = torch.compile(function, backend="neuron", fullgraph=True)
    assert outcome(compiled, x.to("neuron")) == expected


@pytest.mark.slow
@given(st.data())
@settings(max_examples=25)
def test_chains_of_views(data: st.DataObject) -> None:
    make = data.draw(layouts() | of_other_types())
    chain = data.draw(views(make(torch.arange(24.0)), 0))
    size, stride = data.draw(st.sampled_from([((2, 3), (3, 1)), ((3, 2), (1, 7)), ((5,), (2,))]))
    offset = data.draw(st.integers(0, 10))

    def function(x: torch.Tensor) -> torch.Tensor:
        y = make(x)
        for step in chain:
            y = step(y)
        return y.as_strided(size, stride, offset) * 2 + 1

    compare(function)


@given(st.data())
@settings(max_examples=15)
def test_views_that_are_returned(data: st.DataObject) -> None:
    make = data.draw(layouts())
    chain = data.draw(views(make(torch.arange(24.0)), 1))

    def function(x: torch.Tensor) -> torch.Tensor:
        y = make(x)
        for step in chain:
            y = step(y)
        return y

    compare(function)


@given(st.data())
@settings(max_examples=15)
def test_writes_through_strides(data: st.DataObject) -> None:
    # PyTorch refuses to capture writes through a view of a view.
    make = data.draw(layouts().filter(lambda make: make(torch.arange(24.0)).dim() != 4))
    if make(torch.arange(24.0)).is_contiguous():
        make = data.draw(st.sampled_from([lambda x: x + 1, lambda x: x]))
    # Elements apart: what a write to overlapping ones gives is undefined.
    size, stride = data.draw(st.sampled_from([((2, 3), (7, 2)), ((3, 2), (1, 9)), ((5,), (2,))]))
    offset = data.draw(st.integers(0, 10))
    how = data.draw(st.sampled_from(["mul_", "copy_", "fill_", "scatter", "as_strided_"]))

    def function(x: torch.Tensor) -> torch.Tensor:
        y = make(x)
        new = torch.arange(float(math.prod(size)), device=x.device).view(size)
        if how == "scatter":
            return torch.as_strided_scatter(y, new, size, stride, offset)
        if how == "as_strided_":
            # Captured, what is changed in place is a tensor of its own.
            return (y + 1).as_strided_(size, stride, offset).mul_(2) + 0
        z = y.as_strided(size, stride, offset)
        if how == "mul_":
            z.mul_(2)
        elif how == "copy_":
            z.copy_(new)
        else:
            z.fill_(7.0)
        return y + z.sum()

    compare(function)


@given(st.data())
@settings(max_examples=12)
def test_writes_to_a_row_whose_elements_other_rows_show_too(data: st.DataObject) -> None:
    size, stride = data.draw(
        st.sampled_from([((3, 4), (2, 1)), ((4, 3), (1, 2)), ((2, 5), (1, 1)), ((3, 2), (2, 3))])
    )
    offset, row = data.draw(st.integers(0, 8)), data.draw(st.integers(0, size[0] - 1))
    begin, value = data.draw(st.integers(0, size[1] - 1)), data.draw(st.sampled_from([5.0, -0.0]))
    how = data.draw(st.sampled_from(["add_", "fill_", "mul_"]))
    computed = data.draw(st.booleans())

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x - 3 if computed else x
        z = y.as_strided(size, stride, offset)
        getattr(z[row, begin:], how)(value)
        return torch.cat([z.flatten(), y.flatten()])

    compare(function)


def test_writes_to_shared_elements_of_a_tensor_with_gaps_are_refused() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x.as_strided((3, 3), (2, 2), 0)[0].add_(1)
        return x + 0

    x = torch.arange(24.0, device="neuron").view(4, 6)[:, ::2]
    with pytest.raises(Exception, match=r"NCC_ICAP001.* share memory, of a tensor with gaps"):
        torch.compile(function, backend="neuron")(x)


RESIZED = [
    ((4, 6), torch.contiguous_format),
    ((1, 2, 3, 4), torch.channels_last),
    ((2, 3, 2, 2), torch.channels_last),
    ((1, 2, 3, 2, 2), torch.channels_last_3d),
    ((5,), torch.contiguous_format),
    ((), torch.contiguous_format),
    ((0, 3), torch.contiguous_format),
]


@given(layouts(), st.sampled_from(RESIZED), st.booleans())
@settings(max_examples=15)
def test_resizing(
    make: Callable[[torch.Tensor], torch.Tensor],
    wanted: tuple[tuple[int, ...], torch.memory_format],
    sliced: bool,
) -> None:
    size, memory_format = wanted

    def function(x: torch.Tensor) -> torch.Tensor:
        y = make(x)
        if sliced and y[1:].numel() >= math.prod(size):  # what is beyond has no values
            y = y[1:]
        result: torch.Tensor = aten.resize(y, size, memory_format=memory_format)
        return result

    compare(function)


def test_arguments_with_gaps() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.as_strided((2, 2), (2, 4), 2) * 2

    compiled = torch.compile(function, backend="neuron", fullgraph=True)
    base = torch.arange(12.0)
    assert torch.equal(compiled(base.to("neuron")[::2]).cpu(), function(base[::2]))
