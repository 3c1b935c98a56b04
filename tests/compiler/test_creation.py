"""Tensors out of nothing, and results without elements."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

_EXACT = [
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
    *(torch.float16, torch.bfloat16),
]
# The CPU multiplies and adds in one rounding if it can; of float64 nothing is wider here.
_ROUNDING = {torch.float32: 2.0**-23, torch.float64: 2.0**-52}


@settings(max_examples=12)
@given(
    ends=st.tuples(st.floats(0, 100), st.floats(0, 100)),
    steps=st.sampled_from([0, 1, 2, 3, 5, 8, 51, 100]),
    tensors=st.tuples(st.booleans(), st.booleans()),
    dtype=st.sampled_from([*_EXACT, *_ROUNDING]),
)
def test_linspace_counts_as_the_cpu_does(
    ends: tuple[float, float], steps: int, tensors: tuple[bool, bool], dtype: torch.dtype
) -> None:
    def spaced(device: str, *given: Tensor | float) -> Tensor:
        return torch.linspace(*given, steps, dtype=dtype, device=device)  # type: ignore[call-overload,no-any-return]

    torch._dynamo.reset()
    on = {
        device: [
            torch.tensor(v, device=device) if t else v for v, t in zip(ends, tensors, strict=True)
        ]
        for device in ("cpu", "neuron")
    }
    expected = spaced("cpu", *on["cpu"])
    got = torch.compile(spaced, backend="neuron")("neuron", *on["neuron"])
    bound = _ROUNDING.get(dtype, 0.0) * max(ends)
    torch.testing.assert_close(got.cpu(), expected, atol=bound, rtol=0)


def test_the_ends_of_complex_numbers_are_exact() -> None:
    def spaced(device: str) -> Tensor:
        return torch.linspace(1 + 2j, -3.5 + 1j, 7, device=device)

    got = torch.compile(spaced, backend="neuron")("neuron").cpu()
    torch.testing.assert_close(got, spaced("cpu"), atol=2.0**-21, rtol=0)
    assert got[0] == 1 + 2j
    assert got[-1] == -3.5 + 1j


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.softmax(1),
        lambda x: x.log_softmax(0),
        lambda x: torch.cumsum(x > 0, -1, out=torch.zeros_like(x > 0)),
    ],
    ids=["softmax", "log_softmax", "cumsum of bools"],
)
def test_types_that_the_cpu_takes_of_no_elements_are_taken(function: object) -> None:
    assert callable(function)
    x = torch.zeros(0, 10, 3, dtype=torch.int64)
    expected = function(x)
    got = torch.compile(function, backend="neuron", fullgraph=True)(x.to("neuron"))
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape


def test_types_that_the_cpu_refuses_of_elements_are_refused() -> None:
    x = torch.ones(2, 3, dtype=torch.int64, device="neuron")
    with pytest.raises(Exception, match=r"softmax.* not implemented for .Long."):
        torch.compile(lambda x: x.softmax(1), backend="neuron")(x)
