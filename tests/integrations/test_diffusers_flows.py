"""Unmodified pipelines of diffusers on the device: pictures equal to the CPU's."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch

from examples import small_pipelines as small
from tests.integrations import flows
from torch_neuronx import ops
from torch_neuronx.integrations.diffusers import enable_neuron_compile

# Schedulers hand tensors to NumPy 2.
pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:__array_wrap__ must accept:DeprecationWarning"),
]

# Pixels are in [0, 1]. In float32 the devices differ by the order of sums, some 1e-6 to 1e-5 after
# tens of layers and a few steps. In bfloat16 (8 bits) pictures of random weights are off by some
# 2e-2 from those of float32 on any device; 5e-2 is what diffusers itself allows on this one.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
EXHAUSTIVE = pytest.mark.exhaustive


def on_cpu(pipe: Any) -> Any:
    return pipe


def on_neuron(pipe: Any) -> Any:
    return pipe.to("neuron")


def compiled(pipe: Any) -> Any:
    enable_neuron_compile(on_neuron(pipe))
    return pipe


@functools.cache
def expected(name: str) -> flows.Picture:
    return ALL[name](on_cpu)


SCHEDULED = {name: functools.partial(flows.scheduled, name) for name in flows.SCHEDULERS}
ALL = flows.FLOWS | flows.MORE | SCHEDULED
# One of a kind: stochastic, multistep, two calls of the model per step.
FEW = ("DPMSolverMultistepScheduler", "DDIMScheduler", "PNDMScheduler", "LCMScheduler")
EAGER = [
    *flows.FLOWS,
    *FEW,
    *(
        pytest.param(name, marks=EXHAUSTIVE)
        for name in (*flows.MORE, *SCHEDULED)
        if name not in FEW
    ),
]


@pytest.mark.parametrize("name", EAGER)
def test_eager(name: str) -> None:
    got = ALL[name](on_neuron)
    np.testing.assert_allclose(got, expected(name), atol=TOLERANCE[torch.float32], rtol=0)


# What no NeuronCore can, and the error says so: UniPC solves a linear system, and PixArt-Sigma's
# pipeline lets its scheduler search for the first step. The others must pass.
REFUSED = {"UniPCMultistepScheduler": "_linalg_solve_ex", "pixart_sigma": "nonzero"}
STRICT = ["text_to_image", "turbo", "pixart", "klein"]


@pytest.mark.parametrize(
    "name",
    [
        *STRICT,
        *(pytest.param(name, marks=EXHAUSTIVE) for name in ALL if name not in {*STRICT, *REFUSED}),
    ],
)
def test_strict(name: str) -> None:
    with ops.portability("strict"):
        got = ALL[name](on_neuron)
    np.testing.assert_allclose(got, expected(name), atol=TOLERANCE[torch.float32], rtol=0)


@pytest.mark.parametrize(("name", "operator"), REFUSED.items())
def test_what_a_neuron_core_has_not(name: str, operator: str) -> None:
    with ops.portability("strict"), pytest.raises(ops.PortabilityError, match=operator):
        ALL[name](on_neuron)


@pytest.mark.parametrize("name", ["turbo", "pixart", "klein"])
def test_bfloat16(name: str) -> None:
    device = torch.neuron.current_device()  # type: ignore[attr-defined]
    got = ALL[name](lambda pipe: pipe.to(device, torch.bfloat16))
    np.testing.assert_allclose(got, expected(name), atol=TOLERANCE[torch.bfloat16], rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["klein", *(pytest.param(n, marks=EXHAUSTIVE) for n in ALL if n != "klein")]
)
def test_compiled(name: str) -> None:
    got = ALL[name](compiled)
    np.testing.assert_allclose(got, expected(name), atol=TOLERANCE[torch.float32], rtol=0)


@pytest.mark.parametrize("name", ["klein", pytest.param("turbo", marks=EXHAUSTIVE)])
def test_compiled_after_eager_calls(name: str) -> None:
    """What a model attached to itself in eager calls is there once when it is compiled."""

    def place(pipe: Any) -> Any:
        on_neuron(pipe)
        call = flows.KLEIN if name == "klein" else flows.CALL
        for _ in range(2):
            flows.images(pipe, **{**call, "num_inference_steps": 1})
        enable_neuron_compile(pipe)
        return pipe

    got = ALL[name](place)
    np.testing.assert_allclose(got, expected(name), atol=TOLERANCE[torch.float32], rtol=0)


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`:UserWarning")
@pytest.mark.parametrize("name", ["turbo", "pixart", "klein"])
def test_compiled_bfloat16(name: str) -> None:
    got = ALL[name](lambda pipe: compiled(pipe.to("neuron", torch.bfloat16)))
    np.testing.assert_allclose(got, expected(name), atol=TOLERANCE[torch.bfloat16], rtol=0)


@pytest.mark.parametrize("method", ["enable_model_cpu_offload", "enable_sequential_cpu_offload"])
def test_offloading(method: str) -> None:
    pipe = small.sdxl()
    getattr(pipe, method)(device="neuron")
    call = {**flows.CALL, "num_inference_steps": 1, "guidance_scale": 0.0}
    for _ in range(2):
        got = flows.images(pipe, **call)
        np.testing.assert_allclose(got, expected("turbo"), atol=TOLERANCE[torch.float32], rtol=0)


def test_a_generator_of_a_core_gives_the_same_latents_as_one_of_the_cpu() -> None:
    """diffusers draws latents on the CPU for this device, whatever the generator is for."""
    pictures = [
        flows.images(small.pixart().to("neuron"), **flows.PIXART, generator=made.manual_seed(1))
        for made in (torch.Generator("neuron"), torch.Generator())
    ]
    np.testing.assert_array_equal(pictures[0], pictures[1])
