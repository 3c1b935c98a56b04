"""diffusers' tensor parallelism on two ranks of the device."""

from pathlib import Path

import pytest

from tests.distributed.launch import torchrun


@pytest.mark.slow
def test_tensor_parallel(tmp_path: Path) -> None:
    output = torchrun(2, "-m", "tests.integrations.tensor_parallel_worker", str(tmp_path))
    for way in ("in memory", "streamed"):
        for rank in range(2):
            assert f"{way}: rank {rank} is right" in output
