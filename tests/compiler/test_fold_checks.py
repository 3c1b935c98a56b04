"""Checks of numbers that loops do while they read them: which loops, and what they note."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from neuronxcc.codegen import build as kb
from neuronxcc.codegen.bounds import reaches
from neuronxcc.codegen.check import check_scalar
from neuronxcc.codegen.errors import CodegenError
from neuronxcc.codegen.llvm import Host
from neuronxcc.codegen.loop import Access, Dim, Kernel, Kind, Scalar, Slot, Store
from neuronxcc.codegen.reference import run_kernel
from neuronxcc.codegen.verify import verify
from neuronxcc.ir import DType, Op
from neuronxcc.ir.calls import CHECK, NOTED
from neuronxcc.program.errors import NeffError
from tests.device.enqueued import to_the_end

from .codegen_compare import HOSTS, compiled, host_id
from .dynamo_tools import watched

TYPES = (DType.S8, DType.U8, DType.S16, DType.S32, DType.S64, DType.U64)


def checked(number: Scalar, low: int, high: int, slot: int, rank: int) -> Scalar:
    bounds = (kb.const(low, number.dtype), kb.const(high, number.dtype))
    return Scalar.make("check", number.dtype, (number, *bounds), access=Access(slot, (0,) * rank))


@st.composite
def kernels(draw: st.DrawFn) -> tuple[Kernel, np.ndarray, bool]:
    """A kernel that checks a matrix or a row of it, the numbers, and whether one is outside."""
    rows, columns = draw(st.integers(1, 20)), draw(st.integers(1, 80))
    dtype = draw(st.sampled_from(TYPES))
    info = np.iinfo(dtype.numpy)
    low = draw(st.sampled_from((int(info.min), max(int(info.min), -3), 0, 5)))
    high = draw(st.sampled_from((5, 90, int(info.max))))
    along = draw(st.sampled_from(((columns, 1), (1, 0), (0, 1), (1, rows))))
    size = 1 + sum(s * (n - 1) for s, n in zip(along, (rows, columns), strict=True))
    inside = st.integers(low, high)
    numbers = np.full(size, draw(inside), dtype.numpy)
    outside = [n for n in (low - 1, high + 1, int(info.min), int(info.max)) if n < low or n > high]
    outside = [n for n in outside if info.min <= n <= info.max]
    wrong = bool(outside) and draw(st.booleans())
    if wrong:
        numbers[draw(st.integers(0, size - 1))] = draw(st.sampled_from(outside))
    read = checked(kb.load(dtype, 0, along), low, high, 2, 2)
    kind = draw(st.sampled_from((Kind.PARALLEL, Kind.REDUCE)))
    value = kb.op(Op.XOR, read, kb.load(dtype, 3, (columns, 1)))
    stores = [Store(Access(1, (columns, 1)), value)]
    if kind is Kind.REDUCE:
        stores = [Store(Access(1, (1, 0)), kb.reduce(Op.XOR, value))]
    dims = (Dim(rows), Dim(columns, kind))
    slots = (Slot(dtype),) * 4
    return Kernel("checks", dims, slots, tuple(stores)), numbers, wrong


@pytest.mark.parametrize("host", HOSTS, ids=host_id)
@given(case=kernels())
@settings(max_examples=60)
def test_a_loop_notes_what_is_outside(host: Host, case: tuple[Kernel, np.ndarray, bool]) -> None:
    kernel, numbers, wrong = case
    points = kernel.dims[0].extent * kernel.dims[1].extent
    others = np.arange(points).astype(numbers.dtype)
    buffers = [numbers, np.zeros(points, numbers.dtype), np.zeros(1, numbers.dtype), others]
    expected = [buffer.copy() for buffer in buffers]
    verify(kernel)
    assert reaches(kernel)[2].written
    run_kernel(kernel, expected)
    compiled([kernel], host).run(0, buffers)
    np.testing.assert_array_equal(buffers[1], expected[1])
    assert bool(buffers[2][0]) == bool(expected[2][0]) == wrong


def test_a_note_has_one_place() -> None:
    number = kb.load(DType.S64, 0, (1,))
    bounds = kb.const(0, DType.S64), kb.const(1, DType.S64)
    scalar = Scalar.make("check", DType.S64, (number, *bounds), access=Access(2, (1,)))
    kernel = Kernel("k", (Dim(4),), (Slot(DType.S64),) * 3, (Store(Access(1, (1,)), scalar),))
    with pytest.raises(CodegenError, match="makes its note at more than one place"):
        verify(kernel)
    with pytest.raises(NeffError, match="makes its note at more than one place"):
        check_scalar(scalar)


Function = Callable[[Tensor, Tensor], Tensor]
X = torch.arange(1.0, 31.0).reshape(5, 6)


def steps_of(function: Function, index: Tensor) -> list[str]:
    """What checks a function's program has; it is run once, with the right result."""
    torch.compiler.reset()
    with watched() as graphs:
        got = torch.compile(function, backend="neuron", fullgraph=True)(
            X.to("neuron"), index.to("neuron")
        )
    torch.testing.assert_close(got.cpu(), function(X.clone(), index))
    (graph,) = graphs
    steps = graph.executable.program.steps
    return [step.target for step in steps if getattr(step, "target", "") in (CHECK, NOTED)]


FOLDED: dict[str, Function] = {
    "index": lambda x, i: x[i],
    "embedding": lambda x, i: functional.embedding(i, x) * 2,
    "gather": lambda x, i: x.gather(0, i[:, None].expand(-1, 6)),
    "cross entropy": lambda x, i: functional.cross_entropy(x[:3], i),
    "index_add": lambda x, i: x.index_add(0, i, x[:3]),
    "sum": lambda x, i: x[i].sum(0),
    "scatter": lambda x, i: x.scatter(0, i[:, None].expand(-1, 6), x),
}


@pytest.mark.parametrize("name", FOLDED)
def test_loops_check_what_they_read(name: str) -> None:
    index = torch.tensor([1, 4, 0])
    assert steps_of(FOLDED[name], index) == [NOTED]
    compiled = torch.compile(FOLDED[name], backend="neuron", fullgraph=True)
    error = RuntimeError if name in ("gather", "scatter", "index_add") else IndexError
    for wrong in (7, -6, 1 << 40):
        with pytest.raises((error, IndexError), match=f"{wrong}"):
            to_the_end(compiled, X.to("neuron"), torch.tensor([1, wrong, 0], device="neuron"))
        torch.testing.assert_close(
            compiled(X.to("neuron"), index.to("neuron")).cpu(), FOLDED[name](X, index)
        )


def _cut(x: Tensor, i: Tensor) -> Tensor:
    return x[i][:2] * 2


def _in_place(x: Tensor, i: Tensor) -> Tensor:
    x.index_put_((i,), x[0] * 2)
    return x


def _divided(x: Tensor, i: Tensor) -> Tensor:
    return x * (7 // i[0])


@pytest.mark.parametrize("function", [_cut, _in_place, _divided])
def test_other_loops_are_left_alone(function: Function) -> None:
    """Those that read less, change an argument, or divide by what is checked."""
    assert NOTED not in steps_of(function, torch.tensor([1, 4, 2]))
