"""Collectives in a profile: what they say, and that they run beside operators."""

from pathlib import Path

import pytest

from tests.distributed.ranks import run_ranks
from tests.distributed.timeline_worker import overlaps


@pytest.mark.slow
def test_timeline(tmp_path: Path) -> None:
    run_ranks(2, overlaps, str(tmp_path))
