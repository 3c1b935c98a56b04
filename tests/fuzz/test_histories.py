"""Compiled modules with a random history give what eager ones with the same history give."""

from __future__ import annotations

import pytest
import torch

from tests.fuzz.histories import ACTIONS, Side, history
from tests.fuzz.history_modules import MODELS

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # hooks, optimizers and lost gradients warn
]

_COUNT, _GROUPS = 16, 8
# Seeds of histories that showed a mistake once.
_FOUND = (23,)


@pytest.mark.parametrize("group", range(_GROUPS))
def test_random_histories(group: int) -> None:
    for seed in range(group, _COUNT, _GROUPS):
        assert history(seed) == "", seed


@pytest.mark.parametrize("seed", _FOUND)
def test_what_was_found_before(seed: int) -> None:
    assert history(seed) == ""


def test_a_difference_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What only the compiled module does shows."""

    def different(side: Side, rng: object) -> torch.Tensor:
        del rng
        return torch.full((2,), 1.5 if side.compiled else 1.0, device="neuron")

    monkeypatch.setattr("tests.fuzz.histories.ACTIONS", ((different,),))
    assert "different: result: largest difference 0.5" in history(0)


def test_everything_is_done() -> None:
    names = {action.__name__ for chain in ACTIONS for action in chain}
    assert {"forward", "backward", "step", "swap", "load", "convert", "tie"} <= names
    assert len(MODELS) == len(set(MODELS))
