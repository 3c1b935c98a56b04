"""Names beside `nki.jit` by which other people's code builds and runs kernels."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import neuron_dtypes as dt
import nki.isa as nisa
import nki.language as nl
from nki.compiler.kernel_builder import compile_kernel
from nki.dtypes import info
from nki.errors import NkiError, NkiTypeError
from nki.simulator import simulate_kernel

A = np.arange(8, dtype=np.float32).reshape(2, 4)


def process(source: Any, result: Any, tile_fn: Any) -> None:
    tile = nl.ndarray(source.shape, source.dtype)
    nisa.dma_copy(dst=tile, src=source)
    tile_fn(tile)
    nisa.dma_copy(dst=result, src=tile)


def half(tile: Any) -> None:
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=0.5)


def test_compiled_kernels_write_their_outputs() -> None:
    out = np.zeros_like(A)
    made = compile_kernel(process, {"source": A}, {"result": out}, tile_fn=half)
    assert made.launch.written == {1}
    assert made.launch.program.steps
    assert made(source=A, result=out) is None
    np.testing.assert_array_equal(out, A / 2)


def test_simulated_kernels_take_their_arguments_as_data() -> None:
    def kernel(a: Any, scale: float) -> Any:
        tile = nl.ndarray(a.shape, a.dtype)
        nisa.dma_copy(dst=tile, src=a)
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=scale)
        out = nl.ndarray(a.shape, a.dtype, nl.shared_hbm)
        nisa.dma_copy(dst=out, src=tile)
        return out

    np.testing.assert_array_equal(simulate_kernel(kernel, [A], {"scale": 2.0}), A * 2)
    with pytest.raises(NkiError, match="NKI209"):
        simulate_kernel(kernel, (A, 2.0), _lnc=3)


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (1.00390625, "bfloat16", 1.0),  # a tie, to even
        (2.5, "int32", 2),
        (3.5, np.int8, 4),
        (1e9, "int8", 127),
        (-1, "uint8", 0),
        (300, "uint8", 255),
        (7, ml_dtypes.float8_e4m3fn, 7.0),
        (2.0, bool, True),
        (0.1, np.float64, 0.1),
    ],
)
def test_casts_are_those_of_the_engines(value: float, dtype: Any, expected: float) -> None:
    cast = dt.static_cast(np.array([value]), dtype)
    assert cast.shape == (1,)
    assert cast[0] == expected


def test_packed_types_hold_four_neighbours() -> None:
    values = np.array([[1.0, -2.0, 0.5, 4.0, 6.0, 0.0, -6.0, 1.5]], np.float32)
    eight = dt.static_cast(values, dt.float8_e4m3fn_x4)
    assert (str(eight.dtype), eight.shape) == ("uint32", (1, 2))
    np.testing.assert_array_equal(eight.view(ml_dtypes.float8_e4m3fn), values)
    four = dt.static_cast(values, dt.float4_e2m1fn_x4)
    assert (str(four.dtype), four.shape) == ("uint16", (1, 2))
    lanes = [[(int(item) >> 4 * i) & 15 for i in range(4)] for item in four[0]]
    codes = np.array(lanes, np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    np.testing.assert_array_equal(codes.reshape(1, 8), values)
    assert dt.static_cast(four, dt.float4_e2m1fn_x4) is not four
    with pytest.raises(NkiError, match=r"\(1, 3\) cannot be packed as float8_e5m2_x4.*NKI020"):
        dt.static_cast(values[:, :3], dt.float8_e5m2_x4)


def test_facts_of_types() -> None:
    for name in ("float32", "bfloat16", "float8_e5m2_x4", "int8", "uint32"):
        assert dt.sizeinbytes(name) == info(name).itemsize
    assert dt.sizeinbytes(np.int64) == 8
    floats = [dt.is_float_type(t) for t in ("bfloat16", np.float32, dt.float4_e2m1fn_x4, "int8")]
    assert floats == [True, True, True, False]
    assert [dt.is_int_type(t) for t in ("int8", np.uint16, "float8_e5m2_x4")] == [True, True, False]
    assert dt.finfo is ml_dtypes.finfo
    with pytest.raises(NkiTypeError, match="NKI001"):
        dt.sizeinbytes("no type")
