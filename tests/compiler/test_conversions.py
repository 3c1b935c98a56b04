"""Conversions that a program asks for give what eager mode gives, out of range and for NaN too."""

from __future__ import annotations

import itertools
import platform

import pytest
import torch

_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_COMPLEX = (torch.complex64, torch.complex128)
# Not uint32, uint64: the CPU itself converts negative numbers in two ways.
_INTEGERS = (
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.uint16,
)


def _numbers(dtype: torch.dtype) -> torch.Tensor:
    """Around every limit of every integer type, and what isn't a number."""
    limits = [
        s * 2.0**n + d
        for n in (7, 8, 15, 16, 31, 32, 63, 64)
        for s in (-1, 1)
        for d in (-1.5, -1, 0, 0.5, 1)
    ]
    small = [-2.0, -1.5, -0.5, -0.0, 0.0, 0.5, 0.99, 1.5, 300.7, -300.7, 1e30, -1e30]
    special = [float("inf"), float("-inf"), float("nan")]
    # Long enough for the CPU's vectors and its remainder alike.
    return torch.tensor((limits + small + special) * 3, dtype=torch.float64).to(dtype)


@pytest.mark.filterwarnings("ignore:Casting complex values to real")  # as asked for
@pytest.mark.parametrize(
    ("source", "target"),
    list(itertools.product(_FLOATS + _COMPLEX, _INTEGERS)),
    ids=lambda d: str(d).removeprefix("torch."),
)
@pytest.mark.parametrize("how", ["to", "copy_", "fused"])
def test_floats_become_integers_as_in_eager_mode(
    source: torch.dtype, target: torch.dtype, how: str
) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        if how == "copy_":
            return torch.zeros(x.shape, dtype=target, device=x.device).copy_(x)
        return (x * 1).to(target).clone() if how == "fused" else x.to(target)

    x = _numbers(source)
    expected = program(x)
    torch.testing.assert_close(program(x.to("neuron")).cpu(), expected, rtol=0, atol=0)
    torch.compiler.reset()  # all cases are one function to Dynamo, which compiles eight of one
    compiled = torch.compile(program, backend="neuron", dynamic=False, fullgraph=True)
    found = compiled(x.to("neuron")).cpu()
    # Some processors' CPU converts what its vectors leave over in another way.
    vectors = program(x.repeat_interleave(64)).view(-1, 64)
    alone = torch.cat([program(x[i : i + 1]) for i in range(len(x))])
    sure = (vectors == alone[:, None]).all(1)
    assert sure.all() or platform.machine() != "x86_64"
    assert sure[: len(x) // 3].sum() > len(x) // 6
    torch.testing.assert_close(found[sure], expected[sure], rtol=0, atol=0)
