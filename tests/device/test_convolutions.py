"""Convolutions against float64: strides, padding and gaps that few models have.

PyTorch's own kernels give wrong values for some of these, and end the process for others
(csrc/conv/by_aten.cpp).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

CONVOLUTIONS: dict[int, Callable[..., Tensor]] = {
    1: functional.conv1d,
    2: functional.conv2d,
    3: functional.conv3d,
}
TRANSPOSED: dict[int, Callable[..., Tensor]] = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
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
    transposed: bool = False

    def run(self, x: Tensor, weight: Tensor) -> Tensor:
        dims, slide, groups = len(self.size), (self.stride, self.padding), self.groups
        if self.transposed:
            return TRANSPOSED[dims](x, weight, None, *slide, 0, groups, self.dilation)
        return CONVOLUTIONS[dims](x, weight, None, *slide, self.dilation, groups)

    def operands(self, dtype: torch.dtype) -> list[Tensor]:
        ins, outs = self.channels
        filters = (ins * self.groups, outs) if self.transposed else (outs * self.groups, ins)
        shapes = ((2, ins * self.groups, *self.size), (*filters, *self.window))
        generator = torch.Generator().manual_seed(0)
        return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]

    def with_more(self, padding: int, stride: int) -> Case:
        return self._replace(
            padding=tuple(p + padding for p in self.padding),
            stride=tuple(s + stride for s in self.stride),
        )


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


def values(run: Callable[[Tensor, Tensor], Tensor], *given: Tensor) -> list[Tensor]:
    """The result for input and weight, and the gradients for what is `given` as its own."""
    *operands, grad = given
    operands = [t.detach().requires_grad_() for t in operands]
    out = run(*operands)
    out.backward(grad)
    return [out.detach(), *(t.grad for t in operands if t.grad is not None)]


def laid_out(tensors: Sequence[Tensor], last: Sequence[bool]) -> list[Tensor]:
    """Those in `last` with their channels last."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return [
        t.to(memory_format=formats.get(t.dim(), torch.preserve_format)) if is_last else t
        for t, is_last in zip(tensors, last, strict=True)
    ]


def check_values(case: Case, dtype: torch.dtype, last: Sequence[bool], *, compiled: bool) -> None:
    operands = case.operands(dtype)
    out = case.run(*(t.double() for t in operands))
    generator = torch.Generator().manual_seed(1)
    given = laid_out([*operands, torch.randn(out.shape, generator=generator).to(dtype)], last)
    expected = values(case.run, *(t.double() for t in given))
    # How many terms a sum has, and what their absolute values add up to.
    (ins, outs), taps = case.channels, math.prod(case.window)
    places = max(t[:, 0].numel() for t in (operands[0], out))
    counts = (ins * taps, outs * taps, places)
    terms = values(case.run, *(t.double().abs() for t in given))
    torch.compiler.reset()
    run = torch.compile(case.run, backend="neuron") if compiled else case.run
    found = values(run, *(t.to("neuron") for t in given))
    for mine, exact, count, total in zip(found, expected, counts, terms, strict=True):
        assert mine.dtype == dtype
        # Sums of float32, rounded once to the type.
        bound = count * 2.0**-24 * total
        bound += torch.finfo(dtype).eps / 2 * (exact.abs() + bound) + 2.0**-25
        assert ((mine.cpu().double() - exact).abs() <= bound).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@settings(max_examples=60, deadline=None)
@given(case=cases(), compiled=st.sampled_from([False, False, False, True]))
@example(case=Case((10, 3), (3, 3), (2, 2), (1, 0), (1, 1), (2, 2), 2), compiled=False)
@example(case=Case((4, 6), (2, 3), (1, 3), (2, 1), (1, 3), (2, 2), 2), compiled=True)
@example(case=Case((6, 1), (1, 1), (3, 2), (1, 1), (3, 3), (1, 2), 17), compiled=False)
@example(case=Case((1, 7), (2, 2), (3, 2), (2, 2), (3, 1), (16, 2), 1), compiled=True)
def test_16_bits(dtype: torch.dtype, case: Case, compiled: bool) -> None:
    check_values(case, dtype, (False,) * 3, compiled=compiled)


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
    case = case.with_more(more, more)
    x, weight = laid_out(case.operands(torch.float32), last)
    # A sum rounds once a term, in any order.
    bound = (math.prod(case.window) * case.channels[0] + 1) * 2.0**-24
    limit = bound * case.run(x.double().abs(), weight.double().abs())
    found = case.run(x.to("neuron"), weight.to("neuron")).cpu().double()
    assert ((found - case.run(x.double(), weight.double())).abs() <= limit).all()


# Much padding with a step: oneDNN wrote behind its memory (planes of three dimensions, float32), or
# read other memory for numbers.
PLANES = Case((9, 5, 2), (5, 3, 2), (2, 1, 1), (3, 1, 0), (1, 1, 1), (1, 4), 1)
FEW = Case((2,), (3,), (3,), (2,), (1,), (16, 32), 1)
ONE_COLUMN = Case((8, 1), (4, 4), (1, 2), (2, 1), (2, 1), (16, 1), 1, transposed=True)
SPREAD = Case((9, 2), (3, 3), (1, 3), (2, 2), (2, 1), (32, 2), 16, transposed=True)
PADDING_ALONE = Case((1, 1), (1, 1), (3, 3), (4, 2), (1, 1), (2, 3), 1)
# One result, whose filter lies in the zeros before the input.
BEFORE_ALL = Case((1, 1, 2), (1, 1, 1), (3, 1, 1), (1, 0, 0), (1, 1, 1), (1, 1), 1)
ALONE_IN_SPACE = Case((1, 6, 1), (1, 4, 1), (3, 2, 3), (2, 2, 4), (1, 2, 2), (2, 16), 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@settings(max_examples=100, deadline=None)
@given(
    case=cases(), transposed=st.booleans(), more=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    last=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    compiled=st.sampled_from([False, False, False, False, True]),
)  # fmt: skip
@example(case=PLANES, transposed=False, more=(0, 0), last=(False,) * 3, compiled=False)
@example(case=PLANES, transposed=True, more=(0, 0), last=(True,) * 3, compiled=False)
@example(case=PLANES, transposed=False, more=(0, 0), last=(True, False, True), compiled=True)
@example(case=FEW, transposed=False, more=(0, 0), last=(False,) * 3, compiled=True)
@example(case=FEW, transposed=False, more=(0, 0), last=(False,) * 3, compiled=False)
@example(case=ONE_COLUMN, transposed=True, more=(0, 0), last=(False, True, True), compiled=False)
@example(case=ONE_COLUMN, transposed=True, more=(0, 0), last=(True,) * 3, compiled=True)
@example(case=SPREAD, transposed=True, more=(0, 0), last=(False, True, True), compiled=False)
@example(case=PADDING_ALONE, transposed=False, more=(0, 0), last=(True,) * 3, compiled=True)
@example(case=ALONE_IN_SPACE, transposed=False, more=(0, 0), last=(True,) * 3, compiled=True)
@example(case=BEFORE_ALL, transposed=False, more=(0, 0), last=(False,) * 3, compiled=False)
@example(case=BEFORE_ALL, transposed=False, more=(2, 4), last=(True,) * 3, compiled=True)
@example(case=BEFORE_ALL, transposed=True, more=(0, 0), last=(False,) * 3, compiled=False)
def test_gradients(
    dtype: torch.dtype, case: Case, transposed: bool, more: tuple[int, int],
    last: tuple[bool, bool, bool], compiled: bool,
) -> None:  # fmt: skip
    """Of ordinary and transposed convolutions, operands and gradient in either layout."""
    case = case.with_more(*more)._replace(transposed=transposed)
    if transposed:
        rows = zip(case.size, case.stride, case.padding, case.dilation, case.window, strict=True)
        assume(all((n - 1) * s - 2 * p + d * (k - 1) >= 0 for n, s, p, d, k in rows))
    check_values(case, dtype, last, compiled=compiled)
