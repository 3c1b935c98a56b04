"""What the tests of the compiler share: a compile cache of their own, and where functions run.

The reference executor, a help for debugging, does not compile what was imported but runs it in
NumPy. It shares with the native one all that comes before, and all it knows of a device is where
tensors are copied. So it runs functions whose graphs have something of their own, once, on the
device; what is about aliases, strides, options or messages runs natively only.
"""

import sys

import pytest

from neuronxcc.environment.compilation import TORCH_NEURONX_EXECUTOR
from tests.neff_cache import compile_cache

__all__ = ["compile_cache"]


@pytest.fixture(autouse=True)
def no_graph_too_many() -> None:
    """Refuse a ninth graph of one function, which Dynamo runs eagerly.

    Cases of one test share the code of the function in it: from the ninth on they would compare
    eager mode with itself. Such a test calls `torch._dynamo.reset`, or raises the limit.
    """
    config = sys.modules.get("torch._dynamo.config")
    if config is not None:
        config.fail_on_recompile_limit_hit = True  # type: ignore[attr-defined]


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run compiled functions on the reference executor."""
    monkeypatch.setenv(TORCH_NEURONX_EXECUTOR.name, "reference")


@pytest.fixture(params=["neuron", "cpu"])
def device(request: pytest.FixtureRequest) -> str:
    """Run on the device and on the CPU, natively."""
    return str(request.param)


@pytest.fixture(params=["neuron", "cpu", "reference"])
def place(request: pytest.FixtureRequest) -> str:
    """Run natively on the device and on the CPU, and by the reference on the device."""
    if request.param != "reference":
        return str(request.param)
    request.getfixturevalue("reference")
    return "neuron"
