"""Runs tests of ``torch.testing._internal.distributed.distributed_test`` on the neuron backend.

    python -m tests.distributed.upstream_run [--control] [--part K/N] [TEST...]

prints a line of JSON for every test: its name, the outcome (passed, failed, skipped, disabled,
cuda) and why. No names: all tests.

The tests were written for backends that PyTorch knows. Here the group is ``neuron``, and tensors
that a test makes without naming a device lie on a NeuronCore. Decorators that hide a test from
backends they don't list, or count CUDA devices, are taken off; those that say that a test is broken
are obeyed (``disabled``). A test that then asks for CUDA by name shows by its error (``cuda``).
``--control`` runs the same on gloo and the CPU, to see what fails there too.

A process of its own does this, because it forks the ranks of every test from itself, which has
imported PyTorch and not used the device: a second a test instead of ten.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import unittest
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from tests.distributed.upstream_exclusions import AS_GLOO, HOST_TENSORS

WORLD_SIZE = 4
TIMEOUT_S = 30  # of one test
REPORT = os.dup(1)  # the standard output; what tests print goes to the error output instead

# Decorators of PyTorch that skip for want of CUDA devices, or of more ranks than these tests need.
COUNTING = re.compile(
    r"(skip_if_no_gpu|skip_if_small_worldsize|skip_if_lt_x_gpu|nccl_skip_if_lt_x_gpu"
    r"|require_n_gpus_for_nccl_backend)\.<locals>"
)
# Reasons of skips that go by the name of the backend.
BY_NAME = re.compile(r"nccl|mpi\b|gloo|backend", re.IGNORECASE)
BROKEN = re.compile(r"https?://|flaky", re.IGNORECASE)
# What a test that insists on CUDA fails with.
CUDA = re.compile(
    r"Torch not compiled with CUDA|must be cuda device|rank_to_GPU\[|No CUDA GPUs|[tT]orch\.cuda\."
)


def report(test: str, outcome: str, why: str = "") -> None:
    line = json.dumps({"test": test, "outcome": outcome, "why": why}) + "\n"
    os.write(REPORT, line.encode())


class Result(unittest.TestResult):
    """Says how each test ended."""

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        report(name_of(test), "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        report(name_of(test), "skipped", reason)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        text = "".join(str(err[1]))
        report(name_of(test), "cuda" if CUDA.search(text) else "failed", text)

    addError = addFailure  # noqa: N815


def name_of(test: unittest.TestCase) -> str:
    return test.id().rsplit(".", 1)[-1]


def uncovered(test: Callable[..., None]) -> Callable[..., None]:
    """The test without what hides it from a backend that PyTorch doesn't know."""
    bare = test
    while hasattr(bare, "__wrapped__") and COUNTING.match(bare.__code__.co_qualname):
        bare = bare.__wrapped__
    why = getattr(test, "__unittest_skip_why__", "")
    if BROKEN.search(why) or (why and not BY_NAME.search(why)):
        return test

    def run(self: unittest.TestCase) -> None:
        bare(self)

    run.__name__ = test.__name__
    run.__wrapped__ = bare  # type: ignore[attr-defined]
    return run


def test_class(*, control: bool) -> type[unittest.TestCase]:
    """DistributedTest on groups of ours."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415
    from torch.testing._internal import common_distributed  # noqa: PLC0415

    for feature in ("gpu", "ddp", "subgroup", "plugin"):
        common_distributed.DistTestCases.backend_feature[feature].add("neuron")
    from torch.testing._internal.distributed import distributed_test as upstream  # noqa: PLC0415

    class TestNeuron(upstream.TestDistBackend, upstream.DistributedTest._DistTestBase):
        def setUp(self) -> None:
            super().setUp()  # type: ignore[no-untyped-call]
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        @classmethod
        def _run(  # type: ignore[override]  # upstream's two classes differ
            cls, rank: int, test_name: str, file_name: str, parent_pipe: Any, **kwargs: Any
        ) -> None:
            del kwargs
            self = cls(test_name)
            self.rank = rank
            self.file_name = file_name
            seconds = min(upstream.CUSTOM_PG_TIMEOUT.get(test_name, TIMEOUT_S), TIMEOUT_S)
            if not control:
                torch.accelerator.set_device_index(rank % torch.accelerator.device_count())
                if test_name not in HOST_TENSORS:
                    torch.set_default_device("neuron")
                if test_name in AS_GLOO:
                    upstream.BACKEND = "gloo"
            dist.init_process_group(
                "gloo" if control else "neuron",
                init_method=self.init_method,
                world_size=int(self.world_size),
                rank=rank,
                timeout=timedelta(seconds=seconds),
            )
            # A rank that skips must not leave before the others are here.
            self._barrier()  # type: ignore[no-untyped-call]
            self.run_test(test_name, parent_pipe)
            self._barrier()  # type: ignore[no-untyped-call]
            dist.destroy_process_group()
            sys.exit(0)

    for name in unittest.TestLoader().getTestCaseNames(TestNeuron):
        setattr(TestNeuron, name, uncovered(getattr(TestNeuron, name)))
    return TestNeuron


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--control", action="store_true")
    parser.add_argument("--part", default="0/1")
    parser.add_argument("tests", nargs="*")
    given = parser.parse_intermixed_args()
    os.environ.update(
        BACKEND="neuron",
        WORLD_SIZE=str(WORLD_SIZE),
        DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=str(TIMEOUT_S),
    )
    os.dup2(2, 1)
    cls = test_class(control=given.control)
    result = Result()
    part, parts = map(int, given.part.split("/"))
    names = given.tests or unittest.TestLoader().getTestCaseNames(cls)
    for name in names[part::parts]:
        why = getattr(getattr(cls, name), "__unittest_skip_why__", None)
        if why is not None:
            report(name, "disabled", why)
        else:
            unittest.TestSuite([cls(name)]).run(result)


if __name__ == "__main__":
    main()
