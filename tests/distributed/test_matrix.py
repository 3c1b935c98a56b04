"""Every collective x operation x type x world size 2 to 4, and ranks that disagree.

matrix.py has what the ranks do. A process takes seconds to start, so one start does everything for
one world size.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.distributed import matrix
from tests.distributed.ranks import run_ranks

MIB = 1 << 20
# Texts of `matrix.refusals`, in its order.
REFUSED = [
    r"ValueError: all_reduce: tensors must be contiguous, but got strides \[8, 1\] for \[8, 3\]",
    r"ValueError: broadcast: tensors must be contiguous, but got strides \[16, 1\] for \[4, 8\]",
    r"ValueError: all_gather_into_tensor: tensors must be contiguous, but got strides \[8\]",
    r"ValueError: all_gather_into_tensor: output must have \d times the elements of the input",
    r"ValueError: reduce_scatter_tensor: input must have \d times the elements of the output",
    r"ValueError: all_to_all: split sizes of \d rows in all for a tensor of \[\d+\]",
    r"RuntimeError: No backend type associated with device type cpu",
    r'TypeError: the reduction "band" is not defined for Float',
    r"ValueError: all_gather: got a list of 1 tensors where \d are needed",
]


def check(world_size: int, large: tuple[int, ...] = (), timeout: float = 150) -> None:
    found = run_ranks(
        world_size, matrix.everything, large, backend="neuron", timeout=timeout, group_timeout=60
    )
    for part in ("reductions", "movements", "coalesced"):
        counts, digests = zip(*(one[part] for one in found), strict=True)
        assert min(counts) > 100
        assert len(set(digests)) == 1, f"{part}: ranks have different bits"
    assert all(one["again"] == one["coalesced"] for one in found)
    for one in found:
        for text, wanted in zip(one["refusals"], REFUSED, strict=True):
            assert re.match(wanted, text), text


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_every_collective_operation_and_type(world_size: int) -> None:
    check(world_size)


@pytest.mark.exhaustive
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_large_tensors_too(world_size: int) -> None:
    check(world_size, large=(300_007, 2 * MIB + 5), timeout=390)


@pytest.fixture(scope="module", params=["OFF", "DETAIL"])
def disagreement(request: pytest.FixtureRequest) -> tuple[str, list[dict[str, str]]]:
    level = str(request.param)
    found: list[Any] = run_ranks(
        3, matrix.mismatches, backend="neuron", env={"TORCH_DISTRIBUTED_DEBUG": level}
    )
    return level, found


# What names the difference in our error, by case.
CALLED = r"rank {} called {}.*, but rank 2 called {}"
DIFFERENCE = {
    "shape": (r"all_reduce 1 \(sum, Float \[4\]", r"all_reduce 1 \(sum, Float \[5\]"),
    "large shape": (r"all_reduce 1 .*\[50000\]", r"all_reduce 1 .*\[50001\]"),
    "dtype": (r"all_reduce 1 .*Float", r"all_reduce 1 .*Int"),
    "operation": (r"all_reduce 1 \(sum", r"all_reduce 1 \(max"),
    "order": ("all_reduce 1", "all_gather 1"),
    "root": (r"broadcast 1 \(root 0", r"broadcast 1 \(root 1"),
}
EXPECTED = {
    "gathered shape": r"rank \d expects (16|20) bytes from rank \d, which has (16|20) for it",
    "split": r"rank \d expects 8 bytes from rank 2, which has 12 for it",
}


@pytest.mark.parametrize("name", [*DIFFERENCE, *EXPECTED])
def test_ranks_that_disagree(name: str, disagreement: tuple[str, list[dict[str, str]]]) -> None:
    level, found = disagreement
    for rank, one in enumerate(found):
        text = one[name]
        assert text, f"rank {rank} was told nothing"
        if level == "DETAIL" and "Detected mismatch" in text:
            # PyTorch's own check came first; it names a pair of ranks and both calls.
            assert re.search(r"Rank \d is running collective", text)
            assert re.search(r"but Rank \d is running collective", text)
            continue
        assert "NRT_INVALID(2)" in text, text
        wanted = EXPECTED.get(name) or CALLED.format("[01]", *DIFFERENCE[name])
        assert re.search(wanted, text), text
