"""What is computed around a matrix product or a convolution: views, copies and arithmetic of it.

Such values are computed with the product, or beside it by steps that must run after it. Which are
results, and so need memory of their own, is drawn; the compiled function equals the plain one.
"""

from __future__ import annotations

from collections.abc import Callable

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import example, given, settings
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

Tensor = torch.Tensor
PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mm": lambda x, w: x.reshape(12, 6) @ w.reshape(6, 6),
    "bmm": lambda x, w: torch.bmm(x.reshape(3, 4, 6), w.reshape(3, 6, 2)),
    "conv": lambda x, w: F.conv2d(x.reshape(1, 2, 6, 6), w.reshape(2, 2, 3, 3), padding=1),
    "conv of one channel": lambda x, w: F.conv2d(
        x.reshape(1, 2, 6, 6), w[:18].reshape(1, 2, 3, 3), padding=1
    ),
}
STEPS: dict[str, Callable[[Tensor], Tensor]] = {
    "turned": lambda t: t.transpose(-1, -2) if t.dim() > 1 else t,
    "turned round": lambda t: t.movedim(0, -1) if t.dim() > 1 else t,
    "front": lambda t: t[None],
    "exchanged": lambda t: t[None, None].transpose(0, 1)[0],
    "flat": lambda t: t.reshape(-1),
    "pairs": lambda t: t if t.numel() % 2 else t.reshape(-1, 2),
    "padded by nothing": lambda t: F.pad(t, (0, 0)) if t.dim() else t,
    "copied": torch.clone,
    "silu": F.silu,
    "plus one": lambda t: t + 1,
    "product": lambda t: t if t.numel() % 6 else t.reshape(-1, 6) @ t.new_ones(6, 3),
    "sum": lambda t: t.sum(-1),
}
# A step, and the value that it takes, counted from the last.
CHAIN = st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 3)), max_size=7)


@pytest.mark.every(2)
@pytest.mark.parametrize("product", PRODUCTS)
@settings(max_examples=25, deadline=None)
@given(
    chain=CHAIN, chosen=st.sets(st.integers(0, 7), min_size=1, max_size=4), reverse=st.booleans()
)
@example(
    chain=[("exchanged", 0), ("padded by nothing", 0), ("silu", 1), ("product", 0)],
    chosen={0, 2, 4},
    reverse=True,
)
@example(chain=[("exchanged", 0), ("copied", 0), ("silu", 1)], chosen={0, 2, 3}, reverse=False)
def test_values_around_a_product(
    product: str, chain: list[tuple[str, int]], chosen: set[int], reverse: bool
) -> None:
    def function(x: Tensor, w: Tensor) -> list[Tensor]:
        values = [PRODUCTS[product](x, w)]
        for name, back in chain:
            values.append(STEPS[name](values[max(0, len(values) - 1 - back)]))
        found = [values[i] for i in sorted(chosen, reverse=reverse) if i < len(values)]
        return found or values[-1:]

    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(n, generator=generator).to("neuron") for n in (72, 36))
    torch.compiler.reset()
    expected = function(x, w)
    found = torch.compile(function, backend="neuron", fullgraph=True)(x, w)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.shape == theirs.shape
        torch.testing.assert_close(mine.cpu(), theirs.cpu(), rtol=1e-5, atol=1e-5)
