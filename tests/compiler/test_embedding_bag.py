"""Bags of embeddings in training: eager and compiled as on the CPU, in the stated shapes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

ROWS, WIDTH = 7, 3
INTEGERS = [(a, b) for a in (torch.int32, torch.int64) for b in (torch.int32, torch.int64)]


@dataclass(frozen=True)
class Bags:
    """One call: which bags, and how they are given."""

    mode: str
    lengths: tuple[int, ...] = (2, 0, 3)
    weighted: bool = False
    padding: int | None = None
    last: bool = False
    matrix: bool = False
    by_frequency: bool = False
    dtype: torch.dtype = torch.float32
    integers: tuple[torch.dtype, torch.dtype] = (torch.int64, torch.int64)

    def tensors(self) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Weight, indices, offsets, weights of the indices."""
        torch.manual_seed(len(self.lengths) + sum(self.lengths))
        weight = torch.randn(ROWS, WIDTH).to(self.dtype)
        count = sum(self.lengths)
        ends = list(itertools.accumulate(self.lengths, initial=0))
        indices = torch.randint(ROWS, (count,)).to(self.integers[0])
        weights = torch.randn(count).to(self.dtype) if self.weighted else None
        if not self.matrix:
            starts = torch.tensor(ends if self.last else ends[:-1]).to(self.integers[1])
            return weight, indices, starts, weights
        shape = (len(self.lengths), -1)
        return (
            weight, indices.reshape(shape), None,
            None if weights is None else weights.reshape(shape),
        )  # fmt: skip

    def __call__(
        self, weight: Tensor, indices: Tensor, offsets: Tensor | None, weights: Tensor | None
    ) -> Tensor:
        return functional.embedding_bag(
            indices, weight * 2, offsets, mode=self.mode, padding_idx=self.padding,
            scale_grad_by_freq=self.by_frequency, include_last_offset=self.last,
            per_sample_weights=None if weights is None else weights * 3,
        )  # fmt: skip


def results(function: Any, tensors: Any, device: str) -> list[Tensor]:
    """The bags and the gradients of the weight and of the indices' weights, on the CPU."""
    mine = [None if t is None else t.to(device, copy=True) for t in tensors]
    trained = [t.requires_grad_() for t in mine if t is not None and t.is_floating_point()]
    out = function(*mine)
    scale = torch.arange(1, out.numel() + 1, dtype=out.dtype, device=device).reshape(out.shape)
    (out * scale).sum().backward()
    return [t.detach().cpu() for t in (out, *(t.grad for t in trained if t.grad is not None))]


def check(bags: Bags) -> None:
    tensors = bags.tensors()
    expected = results(bags, tensors, "cpu")
    torch.compiler.reset()
    compiled = torch.compile(bags, backend="neuron")
    for function, device in ((bags, "neuron"), (compiled, "neuron"), (compiled, "cpu")):
        got = results(function, tensors, device)
        assert len(got) == len(expected)
        # Sums of few terms; halves are rounded once or twice more on the way.
        eps = 16 * torch.finfo(bags.dtype).eps
        for mine, theirs in zip(got, expected, strict=True):
            bound = eps * max(1.0, float(theirs.abs().max())) if theirs.numel() else 0.0
            torch.testing.assert_close(mine, theirs, rtol=eps, atol=bound)


def table() -> Iterator[Bags]:
    for dtype in (torch.float16, torch.float64):
        yield Bags("sum", dtype=dtype, weighted=True)
        yield Bags("mean", dtype=dtype, last=True)
    types = [torch.float32, torch.bfloat16]
    for mode, dtype, padding in itertools.product(("sum", "mean", "max"), types, (None, 1)):
        yield Bags(mode, dtype=dtype, padding=padding)
        yield Bags(mode, dtype=dtype, padding=padding, last=True)
        yield Bags(mode, (2, 2), dtype=dtype, padding=padding, matrix=True)
        if mode == "sum":
            yield Bags(mode, dtype=dtype, padding=padding, weighted=True)
            yield Bags(mode, (3, 3), dtype=dtype, padding=padding, weighted=True, matrix=True)
        else:
            yield Bags(mode, dtype=dtype, padding=padding, by_frequency=mode == "mean")
    for mode, last in itertools.product(("sum", "mean", "max"), (False, True)):
        for integers in INTEGERS:
            yield Bags(mode, last=last, integers=integers)


@pytest.mark.every(3)
@pytest.mark.parametrize("bags", list(table()), ids=str)
def test_training_is_that_of_the_cpu(bags: Bags) -> None:
    check(bags)


@pytest.mark.slow
@given(
    mode=st.sampled_from(["sum", "mean", "max"]),
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=6).map(tuple),
    last=st.booleans(),
    weighted=st.booleans(),
    padding=st.sampled_from([None, 0, ROWS - 1, -1]),
)
@settings(max_examples=15)
def test_any_bags(mode: str, lengths: Any, last: bool, weighted: bool, padding: Any) -> None:
    check(Bags(mode, lengths, weighted and mode == "sum", padding, last))


@pytest.mark.every(5)
@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("padding", [None, 1])
@pytest.mark.parametrize("integers", INTEGERS)
def test_what_is_kept_has_the_shapes_that_pytorch_states(
    mode: int, trained: bool, last: bool, padding: int | None, integers: Any
) -> None:
    def call(weight: Tensor, indices: Tensor, offsets: Tensor) -> Any:
        return torch.embedding_bag(
            weight, indices, offsets, scale_grad_by_freq=False, mode=mode, sparse=False,
            per_sample_weights=None, include_last_offset=last, padding_idx=padding,
        )  # fmt: skip

    bags = Bags("sum", last=last, integers=integers)
    weight, indices, offsets, _ = bags.tensors()
    assert offsets is not None
    mine = [
        weight.to("neuron").requires_grad_(trained),
        *(t.to("neuron") for t in (indices, offsets)),
    ]
    with FakeTensorMode() as fake:
        stated = call(*[fake.from_tensor(t) for t in mine])
    eager = call(*mine)
    torch.compiler.reset()
    compiled = torch.compile(call, backend="neuron")(*mine)
    on_cpu = call(weight, indices, offsets)
    for number, (promise, a, b) in enumerate(zip(stated, eager, compiled, strict=True)):
        assert a.shape == b.shape == promise.shape
        assert a.dtype == b.dtype == promise.dtype
        assert torch.equal(a, b)
        theirs = on_cpu[number]
        if a.numel() and theirs.numel():  # the CPU leaves out what its fast path does not need
            common = tuple(slice(0, min(n, m)) for n, m in zip(a.shape, theirs.shape, strict=True))
            torch.testing.assert_close(a[common].cpu(), theirs[common], check_dtype=False)
    assert eager[1].tolist() == [0, 0, 2, 2, 2]


def test_indices_behind_the_last_offset_have_no_gradient() -> None:
    # The CPU reads outside of the gradient here.
    weight = torch.ones(ROWS, WIDTH, device="neuron", requires_grad=True)
    indices, offsets = (torch.tensor(t, device="neuron") for t in ([1, 2, 3, 4], [0, 2, 3]))
    out = functional.embedding_bag(indices, weight, offsets, mode="sum", include_last_offset=True)
    with pytest.raises(IndexError, match="index 2 in 'offset2bag' is out of range"):
        out.sum().backward()
