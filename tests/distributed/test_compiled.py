"""Compiled programs of several ranks: results are those of eager mode, or of one rank."""

from __future__ import annotations

import pytest

from tests.distributed import compiled_clients
from tests.distributed.ranks import run_ranks

# What other tests have compiled must not stand in for what is compiled here.
FRESH = {"NEURON_CC_FLAGS": "--no_cache"}


@pytest.mark.parametrize("ranks", [2, 4])
def test_functional_collectives(ranks: int) -> None:
    run_ranks(ranks, compiled_clients.functional, backend="neuron", env=FRESH, timeout=120)


@pytest.mark.parametrize("ranks", [2, 4])
def test_training(ranks: int) -> None:
    found = run_ranks(ranks, compiled_clients.training, backend="neuron", env=FRESH, timeout=240)
    forward, backward = found[0]["forward"], found[0]["backward"]
    # All ranks do the same; many of the 17 parameters of the two layers go together.
    assert all(each == found[0] for each in found)
    assert set(forward) == {"all_gather"}
    assert set(backward) == {"reduce_scatter"}
    assert 2 < len(forward) < 17
