"""Kernels of the first generation on PyTorch's tensors, eager on both devices."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import nki.isa as today_isa
import nki.language as today
from neuronxcc import nki as first
from neuronxcc.nki import language as nl
from nki import Kernel
from nki.first_generation.syntax import is_first_generation
from torch_neuronx import nki_jit


@nki_jit
def doubled(x: Any, out: Any) -> None:
    i_p, i_f = nl.arange(128)[:, None], nl.arange(x.shape[1])[None, :]
    for i in nl.affine_range(-(-x.shape[0] // 128)):
        inside = i * 128 + i_p < x.shape[0]
        tile = nl.load(x[i * 128 + i_p, i_f], mask=inside)
        nl.store(out[i * 128 + i_p, i_f], value=tile + tile, mask=inside)


def imports_it(x: Any) -> Any:
    from neuronxcc.nki import language  # noqa: PLC0415 (what is tested)

    return language.load(x)


def of_today(x: Any) -> Any:
    out = today.ndarray(x.shape, dtype=x.dtype, buffer=today.shared_hbm)
    today_isa.dma_copy(dst=out, src=x)
    return out


@pytest.mark.parametrize("device", ["cpu", "neuron"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_output_arguments_are_written(device: str, dtype: torch.dtype) -> None:
    x = torch.rand(200, 16, device=device).to(dtype)
    out = torch.zeros_like(x)
    assert doubled(x, out) is None
    assert torch.equal(out.cpu(), (x + x).cpu())


def test_the_decorator_knows_the_generation() -> None:
    assert isinstance(doubled, first.FirstKernel)
    assert isinstance(nki_jit()(of_today), Kernel)
    assert is_first_generation(imports_it)
    assert is_first_generation(doubled)
    assert not is_first_generation(of_today)
    assert not is_first_generation(3)


@nki_jit
def tripled(x: Any) -> Any:
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.load(x) * 3)
    return out


def test_a_kernel_is_a_step_of_a_compiled_graph() -> None:
    compiled = torch.compile(lambda x: tripled(x) + 1, backend="neuron", fullgraph=True)
    x = torch.rand(8, 4, device="neuron")
    assert torch.equal(compiled(x).cpu(), (x * 3 + 1).cpu())
