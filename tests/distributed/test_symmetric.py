"""Symmetric memory of the device, and what asynchronous tensor parallelism calls."""

from pathlib import Path

import pytest

from tests.distributed import symmetric_worker
from tests.distributed.ranks import RankError, run_ranks


@pytest.mark.parametrize("world", [2, 4])
def test_symmetric_memory(world: int) -> None:
    run_ranks(world, symmetric_worker.check)


def test_ranks_that_are_started_again(tmp_path: Path) -> None:
    store = str(tmp_path / "store")  # keeps what the first ranks wrote
    for generation in range(2):
        run_ranks(2, symmetric_worker.meet, store, generation, backend="none")


def test_a_rank_that_ends() -> None:
    with pytest.raises(RankError, match="rank 1:\nended with exit code 0\n") as told:
        run_ranks(2, symmetric_worker.lose)
    assert "rank 0" not in str(told.value)  # it was told and has checked what
