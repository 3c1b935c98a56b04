"""For a library's tests: the marker and the fixture `neuron`, and what to do without a device.

Copy this file beside the library's `conftest.py`, and name it there:

    pytest_plugins = ["neuron_fixture"]

A test that is marked `neuron`, or asks for the fixture, is skipped where torchneuron is not
installed. In CI that would hide that nothing was tested, so the workflow says `--require-neuron`:
then it fails.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-neuron", action="store_true", help="tests of the device fail where there is none"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "neuron: runs on the neuron device of torchneuron")


def _missing() -> str:
    """Why there is no device, or "" if there is one."""
    if not hasattr(torch, "neuron"):
        return "torchneuron is not installed"
    try:
        torch.ones(1, device="neuron")
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return ""


def pytest_runtest_setup(item: pytest.Item) -> None:
    fixtures: list[str] = getattr(item, "fixturenames", [])
    if item.get_closest_marker("neuron") is None and "neuron" not in fixtures:
        return
    if reason := _missing():
        if item.config.getoption("--require-neuron"):
            pytest.fail(f"--require-neuron: {reason}", pytrace=False)
        pytest.skip(reason)


@pytest.fixture
def neuron() -> Iterator[torch.device]:
    """The device, seeded; what the test enqueued has run, and its errors have shown, at its end."""
    device = torch.device("neuron", 0)
    torch.manual_seed(0)
    yield device
    torch.accelerator.synchronize()
    torch.accelerator.empty_cache()
