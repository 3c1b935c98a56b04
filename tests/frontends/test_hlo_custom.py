"""The custom calls of Neuron's front ends against what PyTorch calls by the same names."""

from __future__ import annotations

import json
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from neuronxcc.frontends.hlo import HloError, import_hlo
from neuronxcc.ir.reference import evaluate
from tests.frontends.modules import Computation, custom, module, shape, tuple_shape

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


@pytest.mark.parametrize(
    ("target", "function"),
    [("AwsNeuronGeluBackward", functional.gelu), ("AwsNeuronSiluBackward", functional.silu)],
)
def test_without_a_gradient_the_slope_is_meant(
    target: str, function: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    x = _Y.clone().requires_grad_()
    (slope,) = torch.autograd.grad(function(x).sum(), x)
    close(call(target, _Y), slope)


@pytest.mark.parametrize("dim", [0, 1])
def test_softmax_goes_along_the_dimension_of_its_config(dim: int) -> None:
    config = str(dim).encode()
    close(call("AwsNeuronSoftmax", _X, config=config), torch.softmax(_X, dim))
    expected = gradient(lambda x: torch.softmax(x, dim))
    close(call("AwsNeuronSoftmaxBackward", _X, torch.softmax(_Y, dim), config=config), expected)


def test_the_largest_values_and_their_places() -> None:
    result = tuple_shape(shape("f32[3,2]"), shape("u32[3,2]"))
    content = custom("AwsNeuronTopK", ["f32[3,8]"], result, b"2")
    values, places = evaluate(import_hlo(content).graph, [_X.numpy()])
    expected = _X.topk(2)
    np.testing.assert_array_equal(values, expected.values.numpy())
    np.testing.assert_array_equal(places, expected.indices.numpy())
    assert places.dtype == np.uint32


def test_the_position_over_a_vocabulary_as_in_issue_1210() -> None:
    x = np.random.default_rng(5).standard_normal((128256, 1)).astype(ml_dtypes.bfloat16)
    content = custom("AwsNeuronArgMax", ["bf16[128256,1]"], "s32[1]", b"0")
    (place,) = evaluate(import_hlo(content).graph, [x])
    assert place.tolist() == [int(np.argmax(x.astype(np.float32)))]


def test_products_of_integers_are_exact() -> None:
    rng = np.random.default_rng(3)
    x, y = rng.integers(-99999, 99999, (2, 3, 4)), rng.integers(-9, 9, (2, 4, 5))
    content = custom("AwsNeuronIntMatmult", ["s32[2,3,4]", "s32[2,4,5]"], "s32[2,3,5]")
    (got,) = evaluate(import_hlo(content).graph, [x.astype(np.int32), y.astype(np.int32)])
    np.testing.assert_array_equal(got, x @ y)


@pytest.mark.parametrize(
    ("target", "operands", "result", "config", "code", "text"),
    [
        ("AwsNeuronDropoutMaskV1", ["f32[2]"], "f32[2]", b"", "NCC_EUOC002", "no public document"),
        (
            "AwsNeuronCustomOp", ["f32[2]"], "f32[2]", b"version=1.0;name=my_add;path=/x/lib.so;",
            "NCC_EUOC002", "AwsNeuronCustomOp 'my_add': '/x/lib.so' holds instructions",
        ),
        ("AwsNeuronSoftmax", ["f32[2]"], "f32[2]", b"x", "NCC_EVRF064", "'x' is no dimension"),
        (
            "AwsNeuronIntMatmult", ["f32[2,2]", "f32[2,2]"], "f32[2,2]", b"", "NCC_EVRF064",
            "AwsNeuronIntMatmult of f32[2,2]",
        ),
        (
            "AwsNeuronCollectiveMatmul", ["f32[2,2]", "f32[2,2]"], "f32[4,2]", b"tp_degree=x",
            "NCC_EVRF064", "'tp_degree=x' in the config",
        ),
    ],
)  # fmt: skip
def test_what_is_refused(
    target: str, operands: list[str], result: str, config: bytes, code: str, text: str
) -> None:
    with pytest.raises(HloError) as caught:
        import_hlo(custom(target, operands, result, config))
    assert caught.value.code == code
    assert text in str(caught.value)


@pytest.mark.parametrize("kind", ["Max", "Min"])
def test_the_position_of_an_extreme(kind: str) -> None:
    got = call(f"AwsNeuronArg{kind}", _X, config=b"1", result="s32[3]")
    expected = _X.argmax(1) if kind == "Max" else _X.argmin(1)
    np.testing.assert_array_equal(got, expected.numpy())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
NAMES = [
    "dtype", "dim", "block_size", "scale_method", "scaled_dot_backend_config", "element_dtype",
    "lhs_contracting_dimensions", "kernel_file", "func_name",
]  # fmt: skip
ANY: dict[str, tuple[list[str], object]] = {
    "QuantizeMX": (["bf16[4,64]"], tuple_shape(shape("u32[4,16]"), shape("u8[4,2]"))),
    "__op$block_scaled_dot": (["u32[3,16]", "u32[5,16]", "u8[3,2]", "u8[5,2]"], "f32[3,5]"),
    "AwsNeuronCustomNativeKernel": (["f32[4]"], "f32[4]"),
    "AwsNeuronSoftmax": (["f32[4]"], "f32[4]"),
    "ResizeNearest": (["f32[1,2,2,1]"], "f32[1,4,4,1]"),
    "AwsNeuronCollectiveMatmul": (["f32[2,4]", "f32[4,5]"], "f32[4,5]"),
    "AwsNeuronDevicePrint": (["f32[4]"], "f32[4]"),
}


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(sorted(ANY)),
    st.binary(max_size=12)
    | JSON.map(lambda value: json.dumps(value).encode())
    | st.dictionaries(st.sampled_from(NAMES), JSON).map(
        lambda value: json.dumps({**value, "scaled_dot_backend_config": value}).encode()
    ),
)
def test_any_config_is_taken_or_refused(target: str, config: bytes) -> None:
    operands, result = ANY[target]
    refusal = _refusal(custom(target, operands, result, config))
    assert refusal is None or (refusal.code.startswith("NCC_E") and str(refusal).encode())


def _refusal(content: bytes) -> HloError | None:
    try:
        import_hlo(content)
    except HloError as error:
        return error
    return None
