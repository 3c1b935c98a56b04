"""Places among sorted boundaries: few of them are compared with every value, more are searched."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_neuronx.dynamo.lowerings.index import _FEW_BOUNDARIES

COUNTS = [0, 1, _FEW_BOUNDARIES, _FEW_BOUNDARIES + 1, 300]


@given(
    st.sampled_from(COUNTS),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.uint8]),
    st.sampled_from(["bucketize", "searchsorted", "rows", "sorter", "number"]),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=40)
def test_boundaries(count: int, dtype: torch.dtype, how: str, right: bool, out_int32: bool) -> None:
    torch.compiler.reset()
    rng = torch.Generator().manual_seed(count)
    rows = 3 if how == "rows" else 1
    bounds = torch.randint(0, 100, (rows, count), generator=rng).to(dtype).sort().values
    values = torch.randint(-5, 105, (rows, 40), generator=rng).to(dtype)
    if dtype.is_floating_point:
        values[0, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    if how != "rows":
        bounds, values = bounds[0], values[0]
    kwargs: dict[str, Any] = {"right": right, "out_int32": out_int32}

    def function(bounds: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        if how == "bucketize":
            return torch.bucketize(values, bounds, **kwargs)
        if how == "sorter":
            order = torch.arange(count, device=bounds.device).flip(0)
            return torch.searchsorted(bounds.flip(0), values, sorter=order, **kwargs)
        if how == "number":
            return torch.searchsorted(bounds, 50, **kwargs)
        return torch.searchsorted(bounds, values, **kwargs)

    expected = function(bounds, values)
    got = torch.compile(function, backend="neuron")(bounds.to("neuron"), values.to("neuron"))
    assert got.dtype == expected.dtype
    assert torch.equal(got.cpu(), expected)
