"""Ranks that kill themselves are started again and go on; and the examples do what they say."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.ranks import run_ranks

ROOT = Path(__file__).parents[2]


def torchrun(folder: Path, *arguments: str) -> str:
    """Run examples/elastic.py under torchrun with two ranks; what it printed."""
    launcher = "torch.distributed.run --standalone --nproc-per-node 2 --max-restarts 2"
    command = [sys.executable, "-m", *launcher.split(), "-m", "examples.elastic"]
    done = subprocess.run(
        [*command, "--folder", str(folder), *arguments],
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def curve(output: str) -> dict[int, tuple[int, str]]:
    """By step: the attempt that made it and its loss, to the last bit."""
    lines = re.findall(r"^attempt (\d+) step (\d+) loss (\S+)$", output, re.MULTILINE)
    assert len({step for _, step, _ in lines}) == len(lines)  # nothing is trained twice
    return {int(step): (int(attempt), loss) for attempt, step, loss in lines}


@pytest.mark.slow
def test_killed_ranks_resume_with_the_same_losses(tmp_path: Path) -> None:
    whole = curve(torchrun(tmp_path / "whole"))
    broken = curve(torchrun(tmp_path / "broken", "--die-at", "3", "6"))
    assert [attempt for attempt, _ in broken.values()] == [0, 0, 0, 1, 1, 1, 2, 2]
    assert {step: loss for step, (_, loss) in broken.items()} == {
        step: loss for step, (_, loss) in whole.items()
    }


NAMES = [
    "train_ddp",
    "train_fsdp",
    "pipeline",
    "context_parallel",
    "experts",
    "async_tensor_parallel",
    "expert_dispatch",
]


def examples(rank: int, world: int, ports: list[int]) -> dict[str, float]:
    """Each example sets up and tears down a group of its own.

    With a store of its own: a rank that is early would otherwise connect to the last one's, which
    is about to close.
    """
    del rank, world
    results = {}
    for name, port in zip(NAMES, ports, strict=True):
        os.environ["MASTER_PORT"] = str(port)
        results[name] = importlib.import_module(f"examples.{name}").main()
    return results


@pytest.mark.slow
def test_examples() -> None:
    with contextlib.ExitStack() as probes:
        ports = []
        for _ in NAMES:
            probe = probes.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            ports.append(probe.getsockname()[1])
    env = {"MASTER_ADDR": "127.0.0.1"}
    results = run_ranks(2, examples, ports, backend="none", env=env, timeout=100)
    for result in results:
        assert result["context_parallel"] < 1e-5
        assert result["async_tensor_parallel"] < 1e-5
        assert result["expert_dispatch"] < 1e-6  # the same sums, of products of other shapes
        assert result["experts"] < 0.5
    last = results[-1]
    assert last["train_ddp"] < math.log(4) / 2
    assert last["train_fsdp"] < math.log(8) / 2
    assert last["pipeline"] < math.log(8) / 2
