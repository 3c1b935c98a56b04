"""Compiled programs of several ranks: results are those of eager mode, or of one rank."""

from __future__ import annotations

import pytest

from tests.distributed import compiled_clients, compiled_collectives
from tests.distributed.ranks import run_ranks

# What other tests have compiled must not stand in for what is compiled here.
FRESH = {"NEURON_CC_FLAGS": "--no_cache"}


# Every collective of compiled programs on four ranks is here, with groups that not all are in.
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.exhaustive), 4])
def test_functional_collectives(ranks: int) -> None:
    run_ranks(ranks, compiled_collectives.functional, backend="neuron", env=FRESH, timeout=120)


@pytest.mark.slow
def test_training() -> None:
    run_ranks(2, compiled_clients.training, backend="neuron", env=FRESH, timeout=240)


# The graphs of four ranks are those of two; what their collectives do on four is shown above.
ON_TWO = pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.exhaustive)])


@pytest.mark.slow
@ON_TWO
def test_a_whole_step_is_one_graph_each_way(ranks: int) -> None:
    client = compiled_clients.sharded_everywhere
    found = run_ranks(ranks, client, backend="neuron", env=FRESH, timeout=120)
    forward, backward = found[0]["forward"], found[0]["backward"]
    # All ranks do the same; many of the parameters go together.
    assert all(each == found[0] for each in found)
    assert set(forward) == {"all_gather"}
    assert set(backward) == {"reduce_scatter"}
    assert 2 < len(forward) < 23


@pytest.mark.slow
@ON_TWO
def test_products_beside_collectives(ranks: int) -> None:
    """Asynchronous tensor parallelism: the operators of symmetric memory are in the programs."""
    found = run_ranks(ranks, compiled_collectives.fused, backend="neuron", env=FRESH, timeout=120)
    gather, scatter = "all_gather_matmul", "matmul_reduce_scatter"
    wanted = {
        # Backward, a sum of several products is scattered, which is no product.
        "gathered": [gather, "reduce_scatter"],
        "kept": [gather, "reduce_scatter"],
        # A gathered tensor that is the right operand is that of a plain product.
        "scattered": [scatter, scatter, gather, gather, "all_gather"],
        "layer": [gather, scatter, gather, scatter, "all_gather", "all_gather"],
    }
    assert all(each == {name: wanted[name] for name in each} for each in found)
    assert len(found[0]) == (4 if ranks == 2 else 1)
