"""64 ranks on whatever cores there are: they start, train, and stop."""

import re

import pytest

from tests.distributed.launch import torchrun


@pytest.mark.exhaustive
def test_64_ranks_in_five_minutes() -> None:
    output = torchrun(64, "-m", "examples.many_ranks", timeout=300)
    found = re.search(r"64 ranks, loss ([\d.]+) -> ([\d.]+)", output)
    assert found is not None, output[-3000:]
    assert float(found[2]) < 0.1 * float(found[1])
    memory = re.search(r"memory: ([\d.]+) GiB", output)
    assert memory is not None
    assert float(memory[1]) < 20


@pytest.mark.slow
def test_more_ranks_than_a_chip_has_cores() -> None:
    assert "6 ranks, loss" in torchrun(6, "-m", "examples.many_ranks")
