"""What all tiers share.

Tiers are directories: ``nodevice`` and ``nki`` need no native core, ``kernels`` tests the core's
arithmetic, ``device`` the device through PyTorch, ``multiprocess`` several processes.
"""

import gc
import os
import sys
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.durations import Kept, Measured
from tests.judged import Judge

# Two cores are shared by all test processes, so a slow example is load and not a defect. To
# explain a failure hypothesis traces every line: 20 GB once, which ended the worker before it
# said anything.
_PHASES = [phase for phase in Phase if phase is not Phase.explain]
settings.register_profile("default", deadline=None, phases=_PHASES)
settings.register_profile(
    "thorough",
    deadline=None,
    phases=_PHASES,
    max_examples=2000,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--durations-file", type=Path, help="write every test's seconds to this file (JSON)"
    )
    parser.addoption(
        "--eager-mode",
        choices=["debug", "strict", "fused"],
        help="run operators so; in strict and fused mode all that can be enqueued however small it "
        "is, and in fused mode regions are compiled however little time they take",
    )


def pytest_configure(config: pytest.Config) -> None:
    if mode := config.getoption("--eager-mode"):
        import torch  # noqa: PLC0415 - most tests of the compiler need none

        from torch_neuronx import _C  # noqa: PLC0415

        os.environ["TORCH_NEURONX_EAGER_MODE"] = mode  # for other processes too
        torch.get_device_module("neuron").set_eager_mode(mode)
        _C.set_direct_elements(0)
        _C.set_region_worth(0)
    config.pluginmanager.register(Measured())
    if hasattr(config, "workerinput"):
        return  # of xdist; its controller hears of all tests
    config.pluginmanager.register(Judge())
    file = config.getoption("--durations-file")
    if file:
        config.pluginmanager.register(Kept(file))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Collected tests live to the end: the garbage collector need not look at them.

    Nor does it need to look as often as it does by default, where it took a sixth of the time of
    tests of the compiler. Tests that count what is alive collect themselves.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the cases of a test with `every(n)`, mark all but each n-th exhaustive or as it says."""
    numbers: Counter[str] = Counter()
    for item in items:
        if mark := item.get_closest_marker("every"):
            name = item.nodeid.partition("[")[0]
            n, given = mark.args if len(mark.args) > 1 else (*mark.args, "exhaustive")
            if numbers[name] % n:
                item.add_marker(given)
            numbers[name] += 1


@pytest.fixture(autouse=True)
def nothing_told() -> None:
    """Let every test see what a process says once."""
    messages = sys.modules.get("neuronxcc.cache.messages")
    if messages is not None:
        messages.TOLD.clear()
