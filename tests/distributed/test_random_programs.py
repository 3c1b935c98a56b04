"""Random programs of operators and collectives: all eager modes give the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed import random_programs
from tests.distributed.ranks import run_ranks
from tests.distributed.test_several_hosts import join

LENGTH = 40


def compare(rank: int, world: int, layout: str, store: str, seeds: list[int]) -> list[str]:
    join(layout, rank, store, timeout=60)
    return random_programs.compare(rank, world, seeds, LENGTH)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "first", "count"),
    [
        ("aa", 0, 8),
        ("ab", 1000, 4),
        pytest.param("aa", 2000, 100, marks=pytest.mark.exhaustive),
        pytest.param("aaaa", 3000, 40, marks=pytest.mark.exhaustive),
        pytest.param("abb", 4000, 40, marks=pytest.mark.exhaustive),
    ],
)
def test_modes_agree(layout: str, first: int, count: int, tmp_path: Path) -> None:
    seeds = list(range(first, first + count))
    arguments = (layout, str(tmp_path / "store"), seeds)
    found = run_ranks(len(layout), compare, *arguments, backend="none", timeout=60 + 15 * count)
    assert not [line for lines in found for line in lines]
