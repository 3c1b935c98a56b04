"""Rows to experts and back, through symmetric memory, as splits on the device say."""

import pytest

from tests.distributed import all_to_all_worker
from tests.distributed.ranks import run_ranks


@pytest.mark.parametrize("world", [2, 4])
def test_rows_to_experts_and_back(world: int) -> None:
    run_ranks(world, all_to_all_worker.check)
