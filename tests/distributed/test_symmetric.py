"""Symmetric memory of the device, and what asynchronous tensor parallelism calls."""

import pytest

from tests.distributed import symmetric_worker
from tests.distributed.ranks import RankError, run_ranks


@pytest.mark.parametrize("world", [2, 4])
def test_symmetric_memory(world: int) -> None:
    run_ranks(world, symmetric_worker.check)


def test_a_rank_that_ends() -> None:
    with pytest.raises(RankError, match="rank 1:\nended with exit code 0\n") as told:
        run_ranks(2, symmetric_worker.lose)
    assert "rank 0" not in str(told.value)  # it was told and has checked what
