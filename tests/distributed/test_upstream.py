"""PyTorch's own tests of process groups, on the neuron backend (see upstream_run.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter

import pytest

from tests.distributed.upstream_exclusions import EXCLUDED

#: A few of every kind, for each run; the whole list takes four minutes.
FEW = (
    "test_accumulate_gradients_no_sync",
    "test_all_gather_coalesced_full_group",
    "test_all_gather_object_subgroup",
    "test_all_reduce_coalesced_group_max",
    "test_all_reduce_sum_async",
    "test_all_to_all_single_unequal_split_full_group",
    "test_batch_isend_irecv_gloo_tags",
    "test_broadcast_group",
    "test_DistributedDataParallelCPU_grad_is_view",
    "test_destroy_full_group",
    "test_gather_full_group",
    "test_isend_torch_profiler",
    "test_new_subgroups_overlap_not_allowed",
    "test_reduce_group_product",
    "test_scatter_complex",
    "test_send_recv_any_source",
    "test_send_recv_with_tag",
)


def outcomes(*tests: str, timeout: float) -> dict[str, tuple[str, str]]:
    """Outcome and reason by test, of all tests if none is named."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.distributed.upstream_run", *tests],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["test"]: (line["outcome"], line["why"]) for line in lines}


@pytest.mark.slow
def test_a_few() -> None:
    results = outcomes(*FEW, timeout=300)
    assert set(results) == set(FEW)
    for test, (outcome, why) in results.items():
        assert outcome == "passed", f"{test}: {outcome}: {why}"


@pytest.mark.exhaustive
def test_all_but_the_excluded() -> None:
    results = outcomes(timeout=1800)
    print(Counter(outcome for outcome, _ in results.values()))  # noqa: T201
    failed = {test: why for test, (outcome, why) in results.items() if outcome == "failed"}
    unexpected = {test: why for test, why in failed.items() if test not in EXCLUDED}
    assert not unexpected, "\n".join(f"{test}: {why}" for test, why in unexpected.items())
    assert set(EXCLUDED) <= set(failed), f"pass by now: {set(EXCLUDED) - set(failed)}"
