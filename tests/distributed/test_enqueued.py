"""Collectives in strict mode: they take their place in the queue, and the host goes on."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import torch_neuronx
from tests.distributed.ranks import run_ranks

N = torch_neuronx.neuron
_C = torch_neuronx._C


def _busy() -> None:
    x = torch.randn(512, 512, device="neuron")
    _ = x @ x
    N.synchronize()
    for _ in range(30):
        _ = x @ x


def goes_on(rank: int, world: int) -> dict[str, bool]:
    """Issue collectives between operators; what they read is written before, and read after."""
    N.set_eager_mode("strict")
    _C.set_direct_elements(0)
    waited: dict[str, bool] = {}
    for turn in range(3):
        x = torch.full((1000,), float(rank), device="neuron")
        parts = torch.empty(world * 1000, device="neuron")
        _busy()
        y = x + 1
        dist.all_reduce(y)
        work = dist.all_gather_into_tensor(parts, y * 2 + rank, async_op=True)
        assert work is not None
        work.wait()
        total = parts.sum() + y.sum()
        if turn > 0:  # the first of their kind wait
            waited[f"turn {turn}"] = not _C.queue_busy()
        one = sum(range(1, world + 1))
        expected = 1000 * (one + sum(2 * one + other for other in range(world)))
        assert total.item() == expected
    _busy()
    dist.barrier()
    waited["barrier"] = not _C.queue_busy()
    return waited


@pytest.mark.parametrize("world", [2, 3])
def test_the_host_goes_on(world: int) -> None:
    for waited in run_ranks(world, goes_on):
        assert waited == {"turn 1": False, "turn 2": False, "barrier": True}


def ends_at_once(rank: int, world: int) -> float:
    """Leave with collectives in the queue that nobody has waited for."""
    del world
    N.set_eager_mode("strict")
    _C.set_direct_elements(0)
    x = torch.full((1000,), float(rank), device="neuron")
    _busy()
    for _ in range(3):
        dist.all_reduce(x)
    dist.destroy_process_group()
    return x[0].item()


def test_a_group_ends_after_what_is_enqueued() -> None:
    assert run_ranks(2, ends_at_once) == [4.0, 4.0]


def fails_later(rank: int, world: int) -> str:
    """One rank gives another size: all are told where they wait."""
    del world
    N.set_eager_mode("strict")
    _C.set_direct_elements(0)
    x = torch.ones(10 + rank, device="neuron")
    _busy()
    dist.all_reduce(x)
    with pytest.raises(dist.DistBackendError) as caught:
        N.synchronize()
    return str(caught.value)


def test_a_failure_is_told_where_somebody_waits() -> None:
    for text in run_ranks(2, fails_later):
        assert "all_reduce" in text
        assert "an error of waiting for a collective or another core" in text
