"""quantize_mx and nc_matmul_mx, natively."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nki
import nki.isa as nisa
import nki.language as nl
from nki.dtypes import info
from nki.kernel import Kernel
from nki.reference import run
from tests.nki.lowering_tools import Given, bits, check, layouts, record, storage_shape, tile
from tests.nki.native_tools import natively

Array = npt.NDArray[Any]

_FORMATS = {"float8_e5m2_x4": 4, "float8_e4m3fn_x4": 4, "float4_e2m1fn_x4": 2}


def _scales(draw: Any, partitions: int, free: int, kind: str, *, extreme: bool) -> Given:
    layout = draw(layouts(partitions, (free,), addressed=False))
    low, high = (0, 256) if extreme else (100, 150)
    data = np.random.default_rng(3).integers(low, high, storage_shape(layout), np.uint8)
    return Given(data, kind, layout)


@settings(max_examples=8)
@given(data=st.data())
def test_quantize(data: st.DataObject) -> None:
    draw = data.draw
    partitions, items = draw(st.sampled_from([32, 64, 128])), draw(st.integers(1, 9))
    kind = draw(st.sampled_from(["bfloat16", "float16"]))
    source = tile(draw(st.integers(0, 99)), draw(layouts(partitions, 4 * items)), kind)
    size = 2.0 ** draw(st.sampled_from([-30, 0, 30]))
    with np.errstate(all="ignore"):
        source.data[:] = source.data * np.float32(size)
    dtype = draw(st.sampled_from(["float8_e5m2_x4", "float8_e4m3fn_x4"]))
    target = draw(layouts(partitions, (items,), addressed=False))
    rows = 4 if partitions == 32 else partitions
    scale = draw(st.sampled_from(["uint8", "float8_e8m0fnu"]))
    check(
        "quantize_mx",
        {
            "dst": Given(np.zeros(storage_shape(target), np.uint32), dtype, target),
            "src": source,
            "dst_scale": _scales(draw, rows, items, scale, extreme=True),
        },
        runner=natively,
    )


@pytest.mark.parametrize("dtype", _FORMATS)
@settings(max_examples=4)
@given(data=st.data())
def test_matmul(dtype: str, data: st.DataObject) -> None:
    draw = data.draw
    partitions = draw(st.sampled_from([32, 64, 128]))
    columns = {"stationary": 2 * draw(st.integers(1, 9)), "moving": draw(st.integers(1, 20))}
    operands: dict[str, Any] = {}
    for name, free in columns.items():
        layout = draw(layouts(partitions, (free,), addressed=False))
        rng = np.random.default_rng(draw(st.integers(0, 99)))
        # Without NaN: sign bits and small numbers of either format.
        nibbles = rng.integers(0, 1 << 32, storage_shape(layout), np.uint32) & 0xBBBBBBBB
        kept = nibbles if _FORMATS[dtype] == 4 else nibbles.astype(np.uint16)
        operands[name] = Given(kept, dtype, layout)
        rows = 4 if partitions == 32 else partitions
        operands[f"{name}_scale"] = _scales(
            draw, rows, free + draw(st.integers(0, 2)), "uint8", extreme=False
        )
    arrays = [bits(operand.data) for operand in operands.values()]
    dst = draw(st.sampled_from(["float32", "bfloat16"]))
    kernel = _product(operands, (columns["stationary"], columns["moving"]), dst)
    recording = record(kernel, arrays)
    wanted = run(recording, [np.array(array) for array in arrays])
    got = natively(recording, arrays)
    # The same without signs: a float32 sum of K terms in any order is off by less than K units of
    # the sum of their magnitudes. Then the type of dst rounds, twice.
    positive = [array & _MAGNITUDES.get(array.dtype.itemsize, 0xFF) for array in arrays]
    sizes = run(recording, positive)
    unit = 4 * partitions * 2.0**-24 + (2.0**-7 if dst == "bfloat16" else 0.0)
    for a, b, size in zip(got, wanted, sizes, strict=True):
        error = np.abs(_numbers(a, dst) - _numbers(b, dst))
        assert (error <= unit * _numbers(size, dst)).all()


# Of packed items: bytes or nibbles without their signs.
_MAGNITUDES = {4: 0x7F7F7F7F, 2: 0x7777}


def _numbers(array: Array, dtype: str) -> Array:
    return array.view(info(dtype).numpy).astype(np.float64)


def _product(operands: Mapping[str, Given], shape: tuple[int, int], dtype: str) -> Kernel:
    """Multiply, and add the same product to it."""

    def body(arrays: Any) -> Any:
        views = {}
        for (name, v), array in zip(operands.items(), arrays, strict=True):
            whole = nl.ndarray(array.shape, array.dtype)
            nisa.dma_copy(dst=whole, src=array)
            views[name] = whole.ap(v.layout.pattern, offset=v.layout.offset, dtype=v.dtype)
        results = []
        sums = nl.ndarray(shape, dtype, nl.psum)
        for _ in range(2):
            nisa.nc_matmul_mx(sums, **views)
            here, out = nl.ndarray(shape, dtype), nl.ndarray(shape, dtype, nl.shared_hbm)
            nisa.tensor_copy(here, sums)
            nisa.dma_copy(dst=out, src=here)
            results.append(out)
        return tuple(results)

    return nki.jit(body)
