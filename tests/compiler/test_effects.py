"""What draws random numbers does so in compiled functions, whatever becomes of the numbers."""

from __future__ import annotations

from collections.abc import Callable

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import example, given, settings
from torch.nn import functional

Change = Callable[[torch.Tensor], torch.Tensor]

DRAWS: dict[str, Change] = {
    "rand": torch.rand_like,
    "normal": lambda x: torch.normal(x, 0.5),
    "dropout": lambda x: functional.dropout(x, 0.5),
    "integers": lambda x: torch.randint_like(x, 9).to(torch.int64),
    "flags": lambda x: torch.bernoulli(x.sigmoid()).bool(),
}
#: Of whose results the compiler may find that they need nothing of what they are made of.
CHANGES: dict[str, Change] = {
    "no rows": lambda y: y[:0],
    "no rows, summed": lambda y: y[:0].sum(0).expand(4, -1),
    "power of 0": lambda y: y**0,
    "times 0": lambda y: y * 0,
    "less itself": lambda y: y.int() - y.int(),
    "nowhere": lambda y: torch.where(torch.zeros(4, 6, device=y.device).bool(), y, 1),
    "another part": lambda y: torch.cat([y, torch.ones_like(y)])[4:],
    "another of two": lambda y: torch.stack([y, y * 2 + 1, torch.ones_like(y)])[2],
    "real part": lambda y: torch.complex(torch.ones(4, 6, device=y.device), y.float()).real,
    "written over": lambda y: y.clone().fill_(3),
    "at most": lambda y: y.long().clamp(2, 2),
    "finite": lambda y: torch.isfinite(y.long().float()),
    "padded away": lambda y: functional.pad(y.float(), (-6, 6)),
    "in its shape": torch.ones_like,
    "doubled": lambda y: y * 2,
    "turned": lambda y: y.reshape(6, 4).t(),
    "part": lambda y: y[1:2].repeat(4, 1),
}


def drawn(
    draw: str, changes: list[str], device: str, *, compiled: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = DRAWS[draw](x)
        for name in changes:
            y = CHANGES[name](y) if y.shape == (4, 6) else y * 2
        return y, torch.rand(5, device=x.device)

    torch.compiler.reset()
    run = torch.compile(function, backend="neuron", fullgraph=True) if compiled else function
    x = torch.linspace(-1, 1, 24).reshape(4, 6).to(device)
    torch.manual_seed(5)
    return *run(x), torch.rand(5, device=device)


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("change", CHANGES)
def test_what_is_drawn_next(draw: str, change: str) -> None:
    check(draw, [change])


@pytest.mark.slow
@given(st.sampled_from(sorted(DRAWS)), st.lists(st.sampled_from(sorted(CHANGES)), max_size=4))
@settings(max_examples=40, deadline=None)
@example("rand", ["part", "doubled", "no rows"])
def test_what_is_drawn_after_several_changes(draw: str, changes: list[str]) -> None:
    check(draw, changes)


def check(draw: str, changes: list[str]) -> None:
    expected = drawn(draw, changes, "neuron", compiled=False)
    got = drawn(draw, changes, "neuron", compiled=True)
    torch.testing.assert_close(got, expected, rtol=0, atol=0)
