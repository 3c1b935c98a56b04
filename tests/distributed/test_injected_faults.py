"""Faults on demand in jobs of several ranks, and recovery from them."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.distributed.launch import run
from tests.distributed.ranks import RankError, run_ranks
from torch_neuronx import neuron
from torch_neuronx.testing import inject
from torch_neuronx.testing.inject import parse
from torch_neuronx.testing.table import Action


def collective(rank: int, _world: int, text: str) -> tuple[list[float], float]:
    """What an all-reduce gives, and the seconds that it takes, under the faults of a text."""
    faults = [fault.arm() for fault in parse(text)]
    x = torch.full((1 << 16,), float(rank + 1), device="neuron")
    start = time.monotonic()
    dist.all_reduce(x)
    taken = time.monotonic() - start
    for fault in faults:
        fault.disarm()
    return x[:2].tolist(), taken


@pytest.mark.parametrize("text", ["slow_rank:rank=1,seconds=0.4", "slow_link:bandwidth=5e5"])
def test_slow_ranks_and_links_delay_everybody_and_change_nothing(text: str) -> None:
    results = run_ranks(2, collective, text)
    assert [values for values, _ in results] == [[3.0, 3.0]] * 2
    # The other rank may have come later. 2**18 bytes at 5e5 bytes a second take half a second.
    assert results[1][1] >= 0.4
    assert results[0][1] >= 0.1


def failing(rank: int, _world: int) -> str:
    if rank == 1:
        with inject("collective_error", match="all_reduce", at=2) as fault:
            x = torch.ones(4, device="neuron")
            dist.all_reduce(x)
            try:
                dist.all_reduce(x)
            except torch.AcceleratorError as error:
                assert fault.acted == 1
                return str(error)
        return "no error"
    x = torch.ones(4, device="neuron")
    dist.all_reduce(x)
    try:
        dist.all_reduce(x)
    except RuntimeError as error:
        return str(error)
    return "no error"


def test_a_failed_collective_fails_in_all_ranks() -> None:
    other, own = run_ranks(2, failing, group_timeout=5)
    assert "NRT_EXEC_HW_ERR_COLLECTIVES(1200)" in own
    assert other != "no error"


def lost(_rank: int, _world: int) -> None:
    with inject("lost_rank", rank=1, at=2):
        for _ in range(3):
            dist.all_reduce(torch.ones(4, device="neuron"))


def test_a_lost_rank_is_noticed_by_the_others() -> None:
    with pytest.raises(RankError):
        run_ranks(2, lost, timeout=20)


def message(rank: int, _world: int) -> float:
    with inject("slow_rank", rank=0, match="send", seconds=0.3):
        x = torch.ones(4, device="neuron")
        start = time.monotonic()
        if rank == 0:
            dist.send(x, 1)
        else:
            dist.recv(x, 0)
        neuron.synchronize()  # a message that is enqueued has not been waited for
        return time.monotonic() - start


def test_messages_are_reached_too() -> None:
    assert min(run_ranks(2, message)) >= 0.25


@pytest.mark.slow
def test_an_elastic_job_goes_on_without_the_rank_that_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_NEURONX_FAULTS", "lost_rank:rank=1,at=40,attempt=0")
    launcher = "torch.distributed.run --standalone --nproc-per-node 2 --max-restarts 1"
    words = [*launcher.split(), "-m", "examples.elastic", "--folder", str(tmp_path)]
    output = run([sys.executable, "-m", *words], timeout=170)
    attempts = [int(a) for a in re.findall(r"^attempt (\d+) step", output, re.MULTILINE)]
    assert len(attempts) == 8  # every step once
    assert set(attempts) == {0, 1}
    assert attempts == sorted(attempts)


def test_ranks_that_are_not_meant_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    with inject("execution_error", rank=[0, 1]) as fault:
        assert (torch.ones(2, device="neuron") + 1).sum().item() == 4
    assert (fault.reached, fault.acted) == (0, 0)
    assert fault.fault.action is Action.RAISE
