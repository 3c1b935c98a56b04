"""Kernels called with tensors of PyTorch and arrays of JAX."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch

import nki as package
import nki.isa as nisa
import nki.language as nl
import torch_neuronx
from nki.context import current_run
from nki.errors import NkiError, NkiTypeError
from nki.recorder import Recorder
from tests.nki.torch.kernels_for_tests import combine, increment_into, shift, sine
from torch_neuronx import nki, nki_hop, nki_jit, nki_op, wrap_nki
from torch_neuronx.nki.types import TO_TORCH, host_array, name_of, tensor_of

DEVICES = ("cpu", "neuron")


def test_names() -> None:
    assert nki.jit is package.jit
    assert isinstance(nki_jit(sine.function), package.Kernel)
    assert nki.simulate is package.simulate
    assert nki.language is nl
    assert nki.isa is nisa
    assert torch_neuronx.nki_op is nki_op is nki.nki_op
    assert wrap_nki(combine) is combine
    assert nki_hop.wrap_nki is wrap_nki
    with pytest.raises(AttributeError, match=r"torch_neuronx.nki' has no attribute 'nothing'"):
        _ = nki.nothing


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int32])
@pytest.mark.usefixtures("executor")
def test_tensors_in_and_out(device: str, dtype: torch.dtype) -> None:
    a, b = (torch.arange(64, device=device).reshape(8, 8).to(dtype) - k for k in (3, 20))
    found = combine(a, b)
    assert found.device == a.device
    assert found.dtype is dtype
    assert torch.equal(found, a + b)
    assert torch.equal(combine(a.t(), b, scale=2.0), a.t() * 2 + b)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.usefixtures("executor")
def test_arguments_are_written_in_place(device: str) -> None:
    a = torch.randn(6, 10, device=device)
    dense = torch.zeros(6, 10, device=device)
    before = dense._version
    assert increment_into(a, dense) is None
    assert dense._version > before
    torch.testing.assert_close(dense, a + 1)
    whole = torch.zeros(10, 12, device=device)
    part = whole.t()[::2]  # strided: written through a copy
    increment_into(a, part)
    torch.testing.assert_close(part, a + 1)
    assert torch.equal(whole.t()[1::2], torch.zeros(6, 10, device=device))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.usefixtures("executor")
def test_results_are_arguments_outputs_and_parts(device: str) -> None:
    cache, row = torch.randn(4, 3, device=device), torch.randn(1, 3, device=device)
    old = cache.clone()
    same, more = shift(cache, row)
    assert same is cache
    assert torch.equal(cache, torch.cat([row, old[1:]]))
    assert torch.equal(more["moved"], torch.cat([row, old[:-1]]))
    assert torch.equal(more["second"], old[0])


def test_autograd_sees_what_is_written() -> None:
    x = torch.randn(4, 4, requires_grad=True)
    y = x.exp()
    increment_into(torch.ones(4, 4), y.detach())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_results_have_no_silent_gradient() -> None:
    x = torch.randn(4, 4, requires_grad=True)
    with pytest.raises(NkiError, match=r"a gradient is asked for.*nki_op.*NKI276"):
        combine(x, x).sum().backward()
    with torch.no_grad():
        assert not combine(x, x).requires_grad


def test_target_is_that_of_the_device() -> None:
    if "NEURON_PLATFORM_TARGET_OVERRIDE" in os.environ:
        pytest.skip("the variable chooses for both")
    a = torch.ones(2, 2)
    assert combine.record(a.to("neuron"), a.to("neuron")).target.name == "trn2"
    assert combine.record(a, a).target.name == "trn3"


def test_every_type_comes_and_goes() -> None:
    for name, dtype in TO_TORCH.items():
        bits = torch.arange(64, dtype=torch.uint8).reshape(4, 16)
        value = bits.bool() if dtype is torch.bool else bits.view(dtype)
        array = host_array(value)
        back = tensor_of(array, name)
        assert back.dtype is dtype
        assert torch.equal(back.view(torch.uint8), value.view(torch.uint8))
        if name in {"int8", "bfloat16", "float8_e5m2", "bool_"}:
            assert name_of(dtype) == name


def test_refusals() -> None:
    a = torch.ones(2, 2)
    with pytest.raises(NkiTypeError, match=r"torch.int64 is no NKI data type.*nl.int32.*NKI001"):
        combine(a.long(), a.long())
    with pytest.raises(NkiTypeError, match=r"tensors and a ndarray; .*torch.from_numpy.*NKI272"):
        combine(a, np.ones((2, 2), np.float32))
    with pytest.raises(NkiError, match=r"on neuron:0 and cpu; .*one device.*NKI272"):
        combine(a.to("neuron"), a)


def test_shapes_without_data() -> None:
    a = torch.ones(2, 2, device="meta")
    assert combine(a, a).device.type == "meta"

    @nki.jit
    def looks(a: Any) -> Any:
        recorder = current_run()
        assert isinstance(recorder, Recorder)
        recorder.peek(a)
        return a

    with pytest.raises(NkiError, match=r"looks at the contents.*nl.dynamic_range.*NKI271"):
        looks(a)


def test_inference_tensors_are_written() -> None:
    with torch.inference_mode():
        a, out = torch.ones(2, 2), torch.zeros(2, 2)
        increment_into(a, out)
        assert out.sum() == 8


def test_streams_keep_their_order() -> None:
    a = torch.ones(128, 64, device="neuron")
    stream = torch_neuronx.neuron.Stream()
    stream.wait_stream(torch_neuronx.neuron.current_stream())
    with torch_neuronx.neuron.stream(stream):
        out = torch.empty_like(a)
        sine(a * 0.5, out)
        total = (out * 2).sum()
    stream.synchronize()
    torch.testing.assert_close(total.cpu(), 2 * (a * 0.5).sin().sum().cpu(), rtol=1e-5, atol=0)


class TestJax:
    def test_arrays_in_and_out(self) -> None:
        jax = pytest.importorskip("jax")
        a = jax.numpy.arange(12.0).reshape(3, 4)
        found = combine(a, a, scale=3.0)
        assert isinstance(found, jax.Array)
        np.testing.assert_array_equal(found, np.asarray(a) * 4)
        traced = jax.jit(lambda x: combine(x, x) * 2)(a)
        np.testing.assert_array_equal(traced, np.asarray(a) * 4)

    def test_writing_is_returning(self) -> None:
        jax = pytest.importorskip("jax")
        cache, row = jax.numpy.zeros((4, 3)), jax.numpy.ones((1, 3))
        new, more = shift(cache, row)
        assert np.asarray(cache).sum() == 0
        assert np.asarray(new).sum() == np.asarray(more["moved"]).sum() == 3
        assert np.asarray(more["second"]).sum() == 0
        with pytest.raises(NkiError, match=r"argument 1.*never change; .*return the arg.*NKI275"):
            increment_into(cache, cache)
        with pytest.raises(NkiTypeError, match=r"arrays of JAX and a ndarray.*NKI272"):
            combine(cache, np.zeros((4, 3), np.float32))


@pytest.mark.parametrize("device", ["cpu", "neuron"])
@pytest.mark.parametrize("watched", [False, True])
def test_imprecise_types_can_be_stored_as_float32(
    device: str, watched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    @nki.jit
    def kernel(a: Any) -> Any:
        out = nl.ndarray(a.shape, nl.bfloat16, nl.shared_hbm)
        tile = nl.ndarray(a.shape, nl.bfloat16)
        nisa.dma_copy(dst=tile, src=a)
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.add, operand0=1e-3)
        nisa.dma_copy(dst=out, src=tile)
        nisa.dma_copy(dst=a, src=tile)
        return out

    monkeypatch.setenv("NKI_PRECISE_FP", "0")
    x = torch.ones(2, 2, dtype=torch.bfloat16, device=device)

    def call(t: torch.Tensor) -> Any:
        return kernel(t)

    if watched:
        call = torch.compile(call, backend="aot_eager", fullgraph=True)
    result = call(x)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result.cpu(), torch.full((2, 2), 1.001), rtol=0, atol=0)
    assert x.dtype == torch.bfloat16
    assert (x == 1).all()
