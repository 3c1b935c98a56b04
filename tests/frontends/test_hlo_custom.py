"""The custom calls of Neuron's front ends against what PyTorch calls by the same names."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn import functional

from neuronxcc.frontends.hlo import import_hlo
from neuronxcc.ir.reference import evaluate
from tests.frontends.modules import Computation, module

_X = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
_Y = torch.randn(3, 8, generator=torch.Generator().manual_seed(2))


def call(target: str, *operands: torch.Tensor, config: bytes = b"", result: str = "") -> np.ndarray:
    """The result of a custom call, by the reference."""
    main = Computation("main", 1)
    names = {torch.float32: "f32", torch.bfloat16: "bf16"}
    types = [f"{names[x.dtype]}[{','.join(map(str, x.shape))}]" for x in operands]
    numbers = [main.parameter(type_) for type_ in types]
    main.add(
        "custom-call", result or types[-1], *numbers, custom_call_target=target,
        backend_config=config,
    )  # fmt: skip
    (value,) = evaluate(import_hlo(module(main)).graph, [x.numpy() for x in operands])
    return value


def gradient(function: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    x = _Y.clone().requires_grad_()
    (found,) = torch.autograd.grad(function(x), x, _X)
    return found


ONE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "AwsNeuronErf": torch.erf,
    "AwsNeuronGelu": functional.gelu,
    "AwsNeuronGeluApprxTanh": lambda x: functional.gelu(x, approximate="tanh"),
    "AwsNeuronSilu": functional.silu,
    "AwsNeuronSoftmax": lambda x: torch.softmax(x, -1),
    "AwsNeuronTransferWithStaticRing": lambda x: x,
    "NeuronBoundaryMarker-Start": lambda x: x,
}


def close(got: np.ndarray, expected: torch.Tensor) -> None:
    """Within a few roundings of values of about 1."""
    np.testing.assert_allclose(got, expected.numpy(), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("target", ONE)
def test_functions(target: str) -> None:
    close(call(target, _X), ONE[target](_X))


@pytest.mark.parametrize(
    ("target", "function"),
    [("AwsNeuronGeluBackward", functional.gelu), ("AwsNeuronSiluBackward", functional.silu)],
)
def test_gradients(target: str, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    close(call(target, _X, _Y), gradient(function))


def test_the_gradient_of_softmax_takes_its_result() -> None:
    expected = gradient(lambda x: torch.softmax(x, -1))
    got = call("AwsNeuronSoftmaxBackward", _X, torch.softmax(_Y, -1))
    close(got, expected)


@pytest.mark.parametrize("dim", [0, 1])
def test_rms_norm_goes_along_the_dimension_of_its_config(dim: int) -> None:
    weight = torch.linspace(0.5, 2, _X.shape[dim])
    epsilon = torch.tensor(1e-5)
    config = str(dim).encode()
    got = call("AwsNeuronRmsNorm", _X, weight, epsilon, config=config, result="f32[3,8]")
    expected = functional.rms_norm(_X.movedim(dim, -1), (len(weight),), weight, 1e-5)
    close(got, expected.movedim(-1, dim))


@pytest.mark.parametrize("kind", ["Max", "Min"])
def test_the_position_of_an_extreme(kind: str) -> None:
    got = call(f"AwsNeuronArg{kind}", _X, config=b"1", result="s32[3]")
    expected = _X.argmax(1) if kind == "Max" else _X.argmin(1)
    np.testing.assert_array_equal(got, expected.numpy())
