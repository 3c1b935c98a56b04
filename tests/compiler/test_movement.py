"""Compositions of movement, forward and backward, against the CPU: every kernel is within bounds.

Kernels read parts of tensors under conditions, and the executor works out from these conditions
what they reach. A composition that it cannot follow is refused although nothing is wrong with it.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

from neuronxcc.codegen import build as kb
from neuronxcc.codegen.bounds import reaches
from neuronxcc.codegen.llvm import compile_kernels
from neuronxcc.codegen.loop import Access, Dim, Kernel, Scalar, Slot, Store
from neuronxcc.codegen.reference import run_kernel
from neuronxcc.codegen.rewrite import relocated
from neuronxcc.ir import DType, Op
from neuronxcc.ir.arithmetic import Array
from neuronxcc.lowering.emission.inside import kept_inside

from .dynamo_tools import weighted_sum
from .movement_programs import Program, program


def _gradient(function: Program, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    x = x.clone().requires_grad_()
    result = function(x)
    total = weighted_sum(result)
    assert total is not None
    total.backward()
    return result, x.grad


def _steps(x: torch.Tensor) -> list[int]:
    """The strides that mean something."""
    return [stride for stride, extent in zip(x.stride(), x.shape, strict=True) if extent > 1]


def compare(function: Program, shape: tuple[int, ...]) -> None:
    """Assert that results and gradients are those of the CPU."""
    # In float64, where no rounding on the way (differences of large numbers) comes near an error.
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = _gradient(function, x)
    # As operators, since Dynamo may not run a generator of random numbers.
    graph = make_fx(function)(x)
    torch.compiler.reset()
    got = _gradient(torch.compile(graph, backend="neuron", fullgraph=True), x.to("neuron"))
    for mine, theirs, name in zip(got, expected, ("result", "gradient"), strict=True):
        assert mine is not None
        assert theirs is not None
        scale = float(theirs.detach().abs().max()) + 1
        torch.testing.assert_close(
            mine.detach().cpu(), theirs.detach(), rtol=0, atol=1e-9 * scale, msg=name
        )
        assert _steps(mine) == _steps(theirs) or mine.is_contiguous()


@given(st.integers(0, 1 << 32))
@settings(max_examples=25)
def test_compositions(seed: int) -> None:
    compare(*program(seed))


@pytest.mark.exhaustive
@given(st.integers(0, 1 << 32))
@settings(max_examples=300)
def test_more_compositions(seed: int) -> None:
    compare(*program(seed))


def partial_rotary(x: torch.Tensor) -> torch.Tensor:
    """Rotates the second half of the last dimension, even and odd elements together."""
    y = x[..., x.shape[-1] // 2 :]
    a, b = y.unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack((-b, a), -1).flatten(-2)
    return torch.cat((x[..., : x.shape[-1] // 2], y * 2 + turned * 3), -1)


@pytest.mark.parametrize("shape", [(4, 64), (1, 8), (2, 3, 16), (2, 2, 5, 32)])
def test_partial_rotary_embedding(shape: tuple[int, ...]) -> None:
    compare(partial_rotary, shape)


@st.composite
def masked(draw: st.DrawFn) -> tuple[Kernel, set[int]]:
    """A kernel that loads under some conditions, and the elements that it loads."""
    extents = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    dims = range(len(extents))
    strides = [draw(st.integers(-4, 8)) for _ in dims]
    offset = draw(st.integers(-4, 12))
    conditions = []
    for _ in range(draw(st.integers(1, 4))):
        factors = [draw(st.sampled_from((0, 1, 1, 2, -1, strides[d]))) for d in dims]
        constant = draw(st.integers(-8, 8))
        direction = draw(st.sampled_from(("EQ", "LT", "GE", "LE", "GT")))
        conditions.append((factors, constant, direction, draw(st.integers(-2, 12))))
    mask: Scalar | None = None
    for factors, constant, direction, limit in conditions:
        total = kb.const(constant, DType.S32)
        for d, factor in enumerate(factors):
            total = kb.op(_ADD, total, kb.op(_MULTIPLY, kb.index(d, DType.S32), factor))
        one = kb.compare(direction, total, limit)
        mask = one if mask is None else kb.op(_AND, mask, one)
    assert mask is not None
    load = kb.load(DType.F32, 0, strides, offset, mask=mask)
    slots = (Slot(DType.F32), Slot(DType.F32))
    store = Store(Access(1, tuple(_dense(extents))), load)
    touched = {
        offset + sum(s * i for s, i in zip(strides, point, strict=True))
        for point in _points(extents)
        if all(_holds(point, condition) for condition in conditions)
    }
    return Kernel("masked", tuple(map(Dim, extents)), slots, (store,)), touched


_ADD, _MULTIPLY, _AND = Op.ADD, Op.MULTIPLY, Op.AND
_COMPARE = {
    "EQ": int.__eq__,
    "LT": int.__lt__,
    "GE": int.__ge__,
    "LE": int.__le__,
    "GT": int.__gt__,
}


def _holds(point: tuple[int, ...], condition: tuple[list[int], int, str, int]) -> bool:
    factors, constant, direction, limit = condition
    total = constant + sum(f * i for f, i in zip(factors, point, strict=True))
    return bool(_COMPARE[direction](total, limit))


def _points(extents: list[int]) -> list[tuple[int, ...]]:
    points: list[tuple[int, ...]] = [()]
    for extent in extents:
        points = [(*p, i) for p in points for i in range(extent)]
    return points


def _dense(extents: list[int]) -> list[int]:
    strides, step = [], 1
    for extent in reversed(extents):
        strides.append(step)
        step *= extent
    return strides[::-1]


@given(masked())
@settings(max_examples=400)
def test_nothing_is_reached_outside_of_what_is_said(case: tuple[Kernel, set[int]]) -> None:
    kernel, touched = case
    found = reaches(kernel)[0]
    assert all(found.low <= place < found.high for place in touched)


@pytest.mark.slow
@given(masked(), st.integers(0, 3))
@settings(max_examples=300)
def test_what_is_not_proven_is_cut_off(case: tuple[Kernel, set[int]], room: int) -> None:
    """The kernel stays inside of as much as it needs, and reads what it read before."""
    kernel, touched = case
    # The slot begins somewhere in its tensor.
    first, last = min(touched, default=0), max(touched, default=0) + room
    memory = np.arange(last - first + 1, dtype=np.float32) + 1
    results = math.prod(dim.extent for dim in kernel.dims)
    limits = [(first, last + 1), (0, results)]
    kept = kept_inside(kernel, limits)
    reach = reaches(kept)[0]
    assert reach.low == reach.high or (first <= reach.low and reach.high <= last + 1)

    def run(kernel: Kernel) -> list[Array]:
        # The memory begins at the first element that is read, not where the slot does.
        def place(_: Access, moved: Access) -> Access:
            return replace(moved, offset=moved.offset - (first if moved.slot == 0 else 0))

        moved = relocated(kernel, place)
        found = [np.zeros(results, np.float32) for _ in range(2)]
        run_kernel(moved, [memory, found[0]])
        compile_kernels([moved]).run(0, [memory, found[1]])
        return found

    expected, *others = [*run(kernel), *run(kept)]
    assert all(np.array_equal(expected, other) for other in others)


def test_a_place_that_was_read_from_a_place_that_is_not_proven() -> None:
    """Where the mask holds, out[i] = table[index[i]]; of both only what it holds for is there."""
    mask = kb.compare("GE", kb.load(DType.S32, 2, (1,)), 1)
    number = kb.load(DType.S32, 0, (1,), -2, mask=mask)
    slots = (Slot(DType.S32), Slot(DType.F32), Slot(DType.S32), Slot(DType.F32))
    value = Scalar.make(
        "load",
        DType.F32,
        (mask, kb.const(0.0, DType.F32)),
        access=Access(1, (0,), 0, ((number, 1),)),
    )
    kernel = Kernel("k", (Dim(6),), slots, (Store(Access(3, (1,)), value),))
    kept = kept_inside(kernel, [(0, 3), (0, 4), (0, 6), (0, 6)])
    assert [(r.low, r.high) for r in reaches(kept)] == [(0, 3), (0, 4), (0, 6), (0, 6)]
    out = np.zeros(6, np.float32)
    given = np.array([3, 0, 2], np.int32), np.array([5, 6, 7, 8], np.float32)
    run_kernel(kept, [*given, np.array([0, 0, 1, 1, 1, 0], np.int32), out])
    assert out.tolist() == [0, 0, 8, 5, 7, 0]


@given(st.integers(1, 6), st.integers(2, 4), st.data())
@example(32, 2, None)
def test_a_digit_that_is_known_narrows_the_number(
    rows: int, base: int, data: st.DataObject | None
) -> None:
    # Number row * base + digit is inside of [start, rows * base); of these only one digit is read.
    start = 1 if data is None else data.draw(st.integers(0, rows * base - 1))
    digit = 0 if data is None else data.draw(st.integers(0, base - 1))
    row, place = kb.index(0, DType.S32), kb.index(1, DType.S32)
    number = kb.op(_ADD, kb.op(_MULTIPLY, row, base), place)
    mask = kb.op(_AND, kb.compare("GE", number, start), kb.compare("EQ", place, digit))
    load = kb.load(DType.F32, 0, (base, 1), base - 1 - digit, mask=mask)
    slots = (Slot(DType.F32), Slot(DType.F32))
    kernel = Kernel("k", (Dim(rows), Dim(base)), slots, (Store(Access(1, (base, 1)), load),))
    found = reaches(kernel)[0]
    assert found.high <= rows * base


@pytest.mark.parametrize("first", [20, 89, 110])
def test_positions_from_a_tensor_in_the_gradient_of_a_slice(first: int) -> None:
    """A mask bounds the sum of a position and an index, of neither of which it says anything."""
    index = torch.arange(4 * 3).reshape(4, 3) * 7 % 90

    def loss(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        pairs = (t.reshape(1, 4, 3, 1) for t in (x, index))
        planes: torch.Tensor = torch.ops.aten.max_unpool2d(*pairs, [9, 10])
        return planes.reshape(-1)[first:].cumsum(0).square().sum()

    gradients = []
    for function, device in ((loss, "cpu"), (torch.compile(loss, backend="neuron"), "neuron")):
        x = torch.linspace(-1, 1, 12).reshape(4, 3).to(device).requires_grad_()
        function(x, index.to(device)).backward()
        assert x.grad is not None
        gradients.append(x.grad.cpu())
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=0)
