"""Ranks that die, hang, leave or are interrupted: what the others say, and that nothing is left."""

import sys
from pathlib import Path

import pytest

from tests.distributed.launch import run

SERVER = Path(__file__).with_name("fault_server.py")
OTHERS = (
    "killed_early,stopped,aborted,outstanding,interrupted,handed_on,own_timeout,foreign,wrong_token"
)


def harm(scenarios: str, repetitions: int, seed: int = 0) -> None:
    run([sys.executable, str(SERVER), scenarios, str(repetitions), str(seed)], timeout=300)


@pytest.mark.slow
def test_killed_ranks() -> None:
    harm("killed,all_killed", 5)


@pytest.mark.exhaustive
def test_killed_ranks_fifty_times() -> None:
    harm("killed,all_killed", 50, seed=1)


@pytest.mark.slow
def test_other_faults() -> None:
    harm(OTHERS, 1)
