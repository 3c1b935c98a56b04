"""Products of tapes against NumPy: shapes, strides, types, threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from neuronxcc.ir.dtypes import DType
from neuronxcc.program.memory import Buffer
from neuronxcc.program.program import Program
from neuronxcc.program.reference import run_program
from neuronxcc.program.tape_functions import TapeProduct
from neuronxcc.program.tape_writer import TapeWriter
from torch_neuronx.program.executable import Executable

# Between neighbouring numbers of a type, relative to them.
ULP = {DType.F32: 2.0**-23, DType.BF16: 2.0**-7}


@pytest.fixture(autouse=True, params=[1, 2, 3])
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def program(product: TapeProduct) -> Program:
    """out is the argument that is updated and the result."""
    writer = TapeWriter()
    writer.group(0)
    writer.add(writer.function(product), writer.location("user.py:1"), (0, 0, 1, 0, 2, 0))
    p = product
    buffers = []
    for number, (dtype, shape, strides) in enumerate((
        (p.out_dtype, (p.m, p.n), p.out_strides),
        (p.dtype, (p.k, p.m), p.a_strides),
        (p.dtype, (p.k, p.n), p.b_strides),
    )):  # fmt: skip
        size = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1
        buffers.append(Buffer("input", dtype, (size,), (1,), number))
    return Program("product", tuple(buffers), (writer.step(),), (0,))


def compare(product: TapeProduct, seed: int = 0) -> None:
    made = program(product)
    generator = np.random.default_rng(seed)
    args = [
        generator.standard_normal(buffer.shape).astype(buffer.dtype.numpy)
        for buffer in made.buffers
    ]
    (wanted,) = run_program(made, args)
    tensors = [
        torch.from_numpy(arg.view(np.int16)).view(torch.bfloat16)
        if arg.dtype == DType.BF16.numpy
        else torch.from_numpy(arg)
        for arg in (arg.copy() for arg in args)
    ]
    (found,) = Executable(made, "cpu")(tensors)
    size = np.abs(args[1]).max().astype(np.float64) * np.abs(args[2]).max().astype(np.float64)
    before = np.abs(args[0].astype(np.float64)) if product.accumulate else 0
    # k additions in float32; then sums that are almost the same may round to neighbours.
    error = 2.0**-24 * (size * product.k**1.5 + before)
    allowed = error + ULP[product.out_dtype] * np.abs(wanted.astype(np.float64))
    assert (np.abs(found.float().numpy() - wanted.astype(np.float64)) <= allowed).all()


@st.composite
def products(draw: Any) -> TapeProduct:
    m, n, k = (draw(st.integers(1, most)) for most in (130, 200, 150))

    def strides(rows: int, columns: int) -> tuple[int, int]:
        gap = draw(st.sampled_from([0, 3]))
        apart = draw(st.sampled_from([1, 1, 2]))
        if draw(st.booleans()):
            return columns * apart + gap, apart
        return apart, rows * apart + gap

    dtype = draw(st.sampled_from([DType.F32, DType.BF16, DType.F16]))
    out = draw(st.sampled_from([DType.F32, DType.BF16]))
    places = strides(m, n), strides(k, m), strides(k, n)
    return TapeProduct(m, n, k, dtype, out, *places, draw(st.booleans()))


def tile(
    m: int, n: int, k: int, dtype: DType, out: DType, *, accumulate: bool = True
) -> TapeProduct:
    """As kernels have them: rows of 4096 elements."""
    return TapeProduct(m, n, k, dtype, out, (4096, 1), (4096, 1), (4096, 1), accumulate)


@settings(max_examples=40)
@given(products(), st.integers(0, 100))
@example(tile(128, 512, 128, DType.BF16, DType.F32), 1)
@example(tile(128, 512, 128, DType.F32, DType.F32), 1)
@example(tile(128, 512, 128, DType.F16, DType.BF16), 1)
@example(tile(128, 64, 128, DType.BF16, DType.F32), 1)  # fewer panels than threads
@example(tile(7, 70, 1500, DType.BF16, DType.BF16), 1)  # more than one depth
@example(tile(7, 70, 1500, DType.BF16, DType.BF16, accumulate=False), 1)
@example(tile(5, 3, 700, DType.F32, DType.F32), 1)
@example(TapeProduct(9, 6, 4, DType.F32, DType.F32, (1, 9), (9, 1), (0, 1)), 1)
@example(TapeProduct(1, 6, 4, DType.F32, DType.F32, (1, 9), (9, 1), (0, 1)), 1)
@example(TapeProduct(6, 1, 4, DType.F32, DType.BF16, (3, 2), (1, 4), (1, 5)), 1)
def test_products(product: TapeProduct, seed: int) -> None:
    compare(product, seed)


def test_infinities_and_nan_come_through() -> None:
    made = program(TapeProduct(2, 2, 2, DType.F32, DType.F32, (2, 1), (2, 1), (2, 1)))
    a = np.array([np.inf, 1, 0, np.nan], np.float32)
    b = np.array([1, 0, 2, 3], np.float32)
    wanted = run_program(made, [np.zeros(4, np.float32), a, b])[0]
    found = Executable(made, "cpu")([torch.zeros(4), torch.from_numpy(a), torch.from_numpy(b)])[0]
    assert np.array_equal(found.numpy(), wanted, equal_nan=True)
    assert np.isnan(wanted).tolist() == [False, True, True, True]
