"""NrtpyTensor: arrays to a core and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import nrtpy
from neuronxcc.ir.dtypes import DType
from nrtpy import NrtpyError, NrtpyTensor
from torch_neuronx.nrt import memory

DTYPES = st.sampled_from([ir.numpy for ir in DType])
SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)
LAYOUTS = st.sampled_from(["c", "fortran", "reversed", "every second", "read only", "swapped"])


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    dtype, shape, layout = draw(DTYPES), draw(SHAPES), draw(LAYOUTS)
    size = int(np.prod(shape)) * dtype.itemsize
    data = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8).copy()
    if dtype.kind == "b":
        data &= 1
    array = data.view(dtype).reshape(shape) if size else np.zeros(shape, dtype)
    match layout:
        case "fortran":
            array = np.asfortranarray(array)
        case "reversed" if shape:
            array = np.ascontiguousarray(array[::-1])[::-1]
        case "every second" if shape:
            array = np.repeat(array, 2, -1)[..., ::2]
        case "read only":
            array.flags.writeable = False
        case "swapped" if dtype.kind in "iufc" and dtype.itemsize > 1:
            array = array.view(dtype.newbyteorder("S"))
    return array


def plain(array: Any) -> Any:
    return np.array(array, dtype=array.dtype.newbyteorder("="), order="C")


@given(arrays())
@settings(max_examples=200, deadline=None)
def test_what_goes_in_comes_out(array: Any) -> None:
    tensor = NrtpyTensor.from_numpy(array, "x")
    got = tensor.numpy()
    assert (got.shape, got.dtype) == (array.shape, array.dtype.newbyteorder("="))
    assert got.tobytes() == plain(array).tobytes()
    assert tensor.shape == array.shape
    assert got.flags.writeable
    tensor.write_from_numpy(np.zeros_like(plain(array)))
    assert not np.frombuffer(tensor.numpy().tobytes(), np.uint8).any()
    tensor.write_from_numpy(array.reshape(-1))  # of the same size in bytes
    assert tensor.numpy().tobytes() == plain(array).tobytes()


def test_one_memory_in_two_shapes() -> None:
    tensor = NrtpyTensor.from_numpy(np.arange(6, dtype=np.float32), "x")
    other = NrtpyTensor(tensor._ref, (2, 3), np.int32)
    other.write_from_numpy(np.ones((2, 3), np.float32))
    np.testing.assert_array_equal(tensor.numpy(), np.ones(6))
    assert NrtpyTensor(tensor._ref, 24, np.uint8).shape == (24,)
    with pytest.raises(ValueError, match=r"float32\[7\] has 28 bytes, the memory has 24"):
        NrtpyTensor(tensor._ref, 7, np.float32)


def test_wrong_arrays() -> None:
    with pytest.raises(TypeError, match="dtype <U3 is none of a NeuronCore's; allowed: bool, int8"):
        NrtpyTensor.from_numpy(np.array(["abc"]))
    with pytest.raises(TypeError, match="takes a NumPy array, got list"):
        NrtpyTensor.from_numpy([1, 2])  # type: ignore[arg-type]
    tensor = NrtpyTensor.from_numpy(np.zeros((2, 3), np.float32), "x")
    with pytest.raises(ValueError, match=r"'x' is float32\[2, 3\], 24 bytes; .* float64\[6\], 48"):
        tensor.write_from_numpy(np.zeros(6))
    with pytest.raises(TypeError, match="takes a NumPy array, got list"):
        tensor.write_from_numpy([1])  # type: ignore[arg-type]


def test_freed_and_closed() -> None:
    tensor = NrtpyTensor.from_numpy(np.zeros(3), "x")
    assert repr(tensor) == "NrtpyTensor('x', float64[3], core 0)"
    nrtpy.get_nrtpy_singleton().free_tensor(tensor)
    for use in (tensor.numpy, lambda: nrtpy.get_nrtpy_singleton().free_tensor(tensor)):
        with pytest.raises(NrtpyError, match="the tensor was freed"):
            use()
    assert repr(tensor) == "NrtpyTensor('x', float64[3], freed)"
    other = NrtpyTensor.from_numpy(np.zeros(3))
    nrtpy.reset()
    with pytest.raises(NrtpyError, match=r"nrtpy.reset\(\) has closed \(NRT_CLOSED\(14\)\)"):
        other.numpy()
    assert isinstance(NrtpyError("x"), RuntimeError)


def test_too_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    big = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), (1 << 40,), (0,))
    # A terabyte of host memory is not needed to ask for one of a core's.
    monkeypatch.setattr(
        memory, "on_host", lambda array: torch.zeros(1, dtype=torch.uint8).expand(array.shape)
    )
    with pytest.raises(nrtpy.NrtError, match=r"Error NRT_RESOURCE\(4\): Failed to allocate 1099"):
        NrtpyTensor.from_numpy(big)
