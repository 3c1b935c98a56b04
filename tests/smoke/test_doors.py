"""Every door of the project once, in small: whether it opens. What is behind it, its own tests say.

The operators' results are exact in these types, so equal means equal.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import nki
import nki.isa as nisa
import nki.language as nl
import torch_neuronx
from nrtpy import NrtpyModel
from tests.distributed.ranks import run_ranks
from tests.frontends.modules import Computation, module
from tests.nrtpy.neffs import arrays_of, tensors_for

COUNT = 12


def numbers() -> Tensor:
    return torch.arange(float(COUNT)).reshape(3, 4)


def polynomial(x: Tensor) -> Tensor:
    return (x * x - 3 * x).sum(0)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_pytorch(compiled: bool) -> None:
    run = torch.compile(polynomial, backend="neuron", fullgraph=True) if compiled else polynomial
    x = numbers().to("neuron").requires_grad_()
    result = run(x)
    result.sum().backward()
    assert result.device.type == "neuron"
    assert torch.equal(result.cpu(), polynomial(numbers()))
    assert x.grad is not None
    assert torch.equal(x.grad.cpu(), 2 * numbers() - 3)


@nki.jit
def double(x):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201 - as users write kernels
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
    nisa.dma_copy(dst=out, src=tile)
    return out


def test_nki() -> None:
    assert torch.equal(double(numbers().to("neuron")).cpu(), numbers() * 2)
    np.testing.assert_array_equal(double(numbers().numpy()), numbers().numpy() * 2)


def test_the_command_and_nrtpy(tmp_path: Path) -> None:
    model = Computation("main", 1)
    x = model.parameter("f32[3,4]")
    model.add("add", "f32[3,4]", x, model.add("negate", "f32[3,4]", x))
    (tmp_path / "model.pb").write_bytes(module(model))
    command = Path(sys.executable).with_name("neuronx-cc")
    done = subprocess.run(
        [command, "compile", "model.pb", "--output", "model.neff"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "Compiler status PASS\n"), done.stderr
    loaded = NrtpyModel.load_from_neff(tmp_path / "model.neff")
    (result,) = arrays_of(loaded, tensors_for(loaded, [numbers().numpy()]))
    np.testing.assert_array_equal(result, np.zeros((3, 4), np.float32))


def reduced(rank: int, _world: int) -> float:
    x = torch.full((3,), rank + 1.0, device="neuron")
    dist.all_reduce(x)
    return x.sum().item()


def test_two_ranks() -> None:
    assert run_ranks(2, reduced) == [9.0, 9.0]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # the saved form of a trace
def test_trace(tmp_path: Path) -> None:
    traced = torch_neuronx.trace(polynomial, numbers())
    torch.jit.save(traced, tmp_path / "traced.pt")
    loaded = torch.jit.load(tmp_path / "traced.pt")
    assert torch.equal(loaded(numbers()), polynomial(numbers()))


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_diffusers() -> None:
    from examples import small_pipelines as small  # noqa: PLC0415 - some seconds
    from tests.integrations import flows  # noqa: PLC0415

    call = {**flows.PIXART, "num_inference_steps": 2}
    got, wanted = (flows.images(small.pixart().to(where), **call) for where in ("neuron", "cpu"))
    # Pixels in [0, 1] after some tens of layers, whose sums have another order.
    np.testing.assert_allclose(got, wanted, atol=1e-4, rtol=0)
