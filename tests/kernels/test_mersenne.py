"""The numbers of PyTorch's CPU generator: against NumPy's, and dropout against the CPU's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given
from hypothesis import strategies as st

from tests.isas import ISAS, core, forced

SHARES = [0.0, 2.0**-53, 1e-9, 0.1, 1 / 3, 0.5, 0.9, 1 - 2.0**-53, 1.0]
SEEDS = st.integers(0, (1 << 64) - 1)


def expected(seed: int, n: int, p: float) -> torch.Tensor:
    """Numbers of 53 bits below p, one after the other."""
    twister = np.random.RandomState(seed & 0xFFFFFFFF)
    words = [int(w) for w in twister.randint(0, 1 << 32, 2 * n, dtype=np.uint32)]
    numbers = [
        (high << 32 | low) & ((1 << 53) - 1)
        for high, low in zip(words[::2], words[1::2], strict=True)
    ]
    return torch.tensor([number * 2.0**-53 < p for number in numbers], dtype=torch.bool)


@pytest.mark.parametrize("p", SHARES)
@pytest.mark.parametrize("n", [0, 1, 311, 312, 313, 5000])
def test_numbers_are_those_of_the_twister(isa: str, n: int, p: float) -> None:
    kept = torch.empty(n, dtype=torch.bool)
    core.kernel_mersenne_bernoulli(20, kept, p)
    assert torch.equal(kept, expected(20, n, p)), isa


@given(SEEDS, st.integers(0, 1000), st.floats(0, 1))
def test_all_instruction_sets_draw_the_same(seed: int, n: int, p: float) -> None:
    wanted = expected(seed, n, p)
    for isa in ISAS:
        kept = torch.empty(n, dtype=torch.bool)
        with forced(isa):
            core.kernel_mersenne_bernoulli(seed, kept, p)
        assert torch.equal(kept, wanted), isa


def test_shares_outside_of_their_range_are_refused() -> None:
    for p in (-0.1, 1.1, float("nan")):
        with pytest.raises(RuntimeError, match="p must be between 0 and 1"):
            core.kernel_mersenne_bernoulli(1, torch.empty(3, dtype=torch.bool), p)


LAYOUTS = {
    "rows": lambda x: x,
    "columns": lambda x: x.mT,
    "channels_last": lambda x: x.unflatten(1, (5, 10)).unsqueeze(0).permute(0, 3, 1, 2),
    "some columns": lambda x: x[:, ::2],
    "repeated": lambda x: x[:, :1].expand(-1, 7),
}


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_dropout_keeps_what_the_cpu_keeps(layout: str, dtype: torch.dtype, p: float) -> None:
    """Right after a seed, on every processor and in every layout."""
    base = torch.linspace(1, 2, 40 * 50).reshape(40, 50).to(dtype)
    for seed in (0, 7, 1 << 33):
        torch.manual_seed(seed)
        wanted = F.dropout(LAYOUTS[layout](base), p)
        torch.manual_seed(seed)
        found = F.dropout(LAYOUTS[layout](base.to("neuron")), p)
        assert torch.equal(found.cpu(), wanted)
