"""Runs tests of ``torch.testing._internal.distributed.distributed_test`` on the neuron backend.

    python -m tests.distributed.upstream_run PERSONA [TEST...]

prints a line of JSON for every test: its name, the outcome (passed, failed, skipped, hidden) and why.
No names: all tests. ``hidden`` are those that PyTorch's decorators hide from the persona.

The tests are written for backends that PyTorch knows, and decorators hide them from others, by the
name in ``BACKEND`` at the time of import. A *persona* is that name: it chooses the tests. The group
that they run on is always ``neuron``, and the tensors that they make without naming a device lie on
a NeuronCore. ``--control`` runs the same on gloo and the CPU, to see what fails there too.

A process of its own does this, because it forks the ranks of every test from itself, which has
imported PyTorch and not used the device: a second a test instead of ten.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import unittest
from datetime import timedelta
from typing import Any

WORLD_SIZE = 4
TIMEOUT_S = 60  # of one test
REPORT = os.dup(1)  # the standard output; what tests print goes to the error output instead


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
        report(name_of(test), "failed", self._exc_info_to_string(err, test))  # type: ignore[attr-defined]

    addError = addFailure  # noqa: N815


def name_of(test: unittest.TestCase) -> str:
    return test.id().rsplit(".", 1)[-1]


def test_class(*, control: bool) -> type[unittest.TestCase]:
    """DistributedTest on groups of ours; the environment names the persona."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415
    from torch.testing._internal import common_distributed  # noqa: PLC0415

    for feature in ("gpu", "ddp", "subgroup", "plugin"):
        common_distributed.DistTestCases.backend_feature[feature].add("neuron")
    from torch.testing._internal.distributed import distributed_test  # noqa: PLC0415

    class TestNeuron(
        distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase
    ):
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        @classmethod
        def _run(cls, rank: int, test_name: str, file_name: str, pipe: Any, **_: Any) -> None:
            self = cls(test_name)
            self.rank = rank
            self.file_name = file_name
            seconds = distributed_test.CUSTOM_PG_TIMEOUT.get(test_name, TIMEOUT_S)
            if not control:
                torch.accelerator.set_device_index(rank % torch.accelerator.device_count())
                torch.set_default_device("neuron")
            dist.init_process_group(
                "gloo" if control else "neuron",
                init_method=self.init_method,
                world_size=int(self.world_size),
                rank=rank,
                timeout=timedelta(seconds=seconds),
            )
            self._barrier()  # a rank that skips must not leave before the others are here
            self.run_test(test_name, pipe)
            self._barrier()
            dist.destroy_process_group()
            sys.exit(0)

    return TestNeuron


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("persona", choices=("neuron", "gloo", "mpi", "nccl"))
    parser.add_argument("--control", action="store_true")
    parser.add_argument("tests", nargs="*")
    given = parser.parse_intermixed_args()
    os.environ.update(
        BACKEND=given.persona,
        WORLD_SIZE=str(WORLD_SIZE),
        DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=str(TIMEOUT_S),
    )
    os.dup2(2, 1)
    cls = test_class(control=given.control)
    result = Result()
    for name in given.tests or unittest.TestLoader().getTestCaseNames(cls):
        hidden = getattr(getattr(cls, name), "__unittest_skip_why__", None)
        if hidden is not None:
            report(name, "hidden", hidden)
        else:
            unittest.TestSuite([cls(name)]).run(result)


if __name__ == "__main__":
    main()
