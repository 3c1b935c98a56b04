"""Shared by the tests of the device tier: a process of its own, and no traces left behind."""

import os
from collections.abc import Callable, Iterator

import pytest
import torch

# Says why, once, where the device is missing; every test below would fail without saying it.
import torch_neuronx  # noqa: F401
from tests import interpreter

RunPython = Callable[..., str]


@pytest.fixture(autouse=True)
def _same_device_after() -> Iterator[None]:
    """A test that leaves another device selected would change what the next one means."""
    before = torch.accelerator.current_device_index()
    yield
    torch.accelerator.set_device_index(before)


@pytest.fixture
def run_python() -> RunPython:
    """Run code in a process of its own; returns what it printed, fails when it fails."""

    def run(code: str, *, timeout: float = 120, new: bool = False, **env: str) -> str:
        # The environment of the machine under test must not leak in.
        kept = {k: v for k, v in os.environ.items() if not k.startswith("NEURON_")}
        done = interpreter.run(
            ["-c", code],
            env={**kept, "OMP_NUM_THREADS": "1", **env},
            timeout=timeout,
            strict=True,
            new=new,
        )
        assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run
