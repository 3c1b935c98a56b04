"""Convolutions against float64: strides, padding and gaps that few models have.

PyTorch's own kernels for matrix tiles and AVX-512 FP16 give wrong values for some of these, and end
the process for others, where an output sees nothing but padding (csrc/conv/by_aten.h).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

CONVOLUTIONS: dict[int, Callable[..., Tensor]] = {
    1: functional.conv1d,
    2: functional.conv2d,
    3: functional.conv3d,
}


class Case(NamedTuple):
    """Sizes of the input and of the window, and how it moves; `channels` are those of a group."""

    size: tuple[int, ...]
    window: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    channels: tuple[int, int]
    groups: int

    def run(self, x: Tensor, weight: Tensor) -> Tensor:
        moves = (self.stride, self.padding, self.dilation, self.groups)
        return CONVOLUTIONS[len(self.size)](x, weight, None, *moves)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    dims = draw(st.integers(1, 3))

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(dims))

    window, dilation, padding, more = each(1, 3), each(1, 3), each(0, 2), each(0, 7)
    spans = (d * (k - 1) + 1 for k, d in zip(window, dilation, strict=True))
    size = tuple(max(1, span - 2 * p) + m for span, p, m in zip(spans, padding, more, strict=True))
    count = st.sampled_from([1, 2, 16])
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    return Case(size, window, each(1, 3), padding, dilation, (draw(count), draw(count)), groups)


def values(run: Callable[[Tensor, Tensor], Tensor], x: Tensor, weight: Tensor) -> list[Tensor]:
    """The result, and the gradients of its sum."""
    operands = [t.detach().requires_grad_() for t in (x, weight)]
    out = run(*operands)
    out.sum().backward()
    return [out.detach(), *(t.grad for t in operands if t.grad is not None)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@settings(max_examples=60, deadline=None)
@given(case=cases(), compiled=st.sampled_from([False, False, False, True]))
@example(case=Case((10, 3), (3, 3), (2, 2), (1, 0), (1, 1), (2, 2), 2), compiled=False)
@example(case=Case((4, 6), (2, 3), (1, 3), (2, 1), (1, 3), (2, 2), 2), compiled=True)
@example(case=Case((6, 1), (1, 1), (3, 2), (1, 1), (3, 3), (1, 2), 17), compiled=False)
@example(case=Case((1, 7), (2, 2), (3, 2), (2, 2), (3, 1), (16, 2), 1), compiled=True)
def test_16_bits(dtype: torch.dtype, case: Case, compiled: bool) -> None:
    ins, outs = case.channels
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, ins * case.groups, *case.size), (outs * case.groups, ins, *case.window))
    operands = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    expected = values(case.run, *(t.double() for t in operands))
    # How many terms a sum has, and what their absolute values add up to.
    taps = math.prod(case.window)
    counts = (ins * taps, outs * taps, expected[0].numel() // (outs * case.groups))
    terms = values(case.run, *(t.double().abs() for t in operands))
    torch.compiler.reset()
    run = torch.compile(case.run, backend="neuron") if compiled else case.run
    found = values(run, *(t.to("neuron") for t in operands))
    for mine, exact, count, total in zip(found, expected, counts, terms, strict=True):
        assert mine.dtype == dtype
        # Sums of float32, rounded once to the type.
        bound = count * 2.0**-24 * total
        bound += torch.finfo(dtype).eps / 2 * (exact.abs() + bound) + 2.0**-25
        assert ((mine.cpu().double() - exact).abs() <= bound).all()


# Columns that see padding alone, and one column with a step behind it: oneDNN ended the process, or
# read other memory, in all types, most often with channels last.
@settings(max_examples=100, deadline=None)
@given(case=cases(), more=st.integers(0, 2), last=st.tuples(st.booleans(), st.booleans()))
@example(case=Case((6, 1), (4, 1), (2, 3), (2, 4), (2, 2), (2, 16), 1), more=0, last=(False, True))
@example(case=Case((7, 1), (4, 1), (3, 3), (2, 2), (2, 2), (1, 2), 32), more=0, last=(True, True))
@example(case=Case((2,), (2,), (3,), (4,), (3,), (1, 2), 1), more=0, last=(False, False))
@example(case=Case((8, 6), (3, 4), (1, 3), (1, 0), (1, 1), (1, 2), 1), more=0, last=(True, True))
@example(case=Case((10, 1), (3, 5), (1, 3), (0, 2), (2, 1), (1, 1), 1), more=0, last=(False, True))
@example(
    case=Case((13, 6, 2), (3, 2, 5), (2, 1, 3), (0, 0, 2), (1, 2, 1), (1, 16), 1),
    more=0,
    last=(True, True),
)
def test_few_columns(case: Case, more: int, last: tuple[bool, bool]) -> None:
    """Float32, results alone, operands in either layout, with more padding and larger steps."""
    case = case._replace(
        padding=tuple(p + more for p in case.padding), stride=tuple(s + more for s in case.stride)
    )
    (ins, outs), dims = case.channels, len(case.size)
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, ins * case.groups, *case.size), (outs * case.groups, ins, *case.window))
    x, weight = (torch.randn(shape, generator=generator) for shape in shapes)
    if dims > 1:
        layout = torch.channels_last if dims == 2 else torch.channels_last_3d
        x, weight = (
            t.to(memory_format=layout) if is_last else t
            for t, is_last in zip((x, weight), last, strict=True)
        )
    # A sum rounds once a term, in any order.
    bound = (math.prod(case.window) * ins + 1) * 2.0**-24
    limit = bound * case.run(x.double().abs(), weight.double().abs())
    found = case.run(x.to("neuron"), weight.to("neuron")).cpu().double()
    assert ((found - case.run(x.double(), weight.double())).abs() <= limit).all()
