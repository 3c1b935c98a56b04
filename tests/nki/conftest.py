"""Which executor runs the kernels of these tests, and where compiled ones are kept.

No fixture is for all tests: a file asks by ``pytestmark = pytest.mark.usefixtures(...)``.
"""

from pathlib import Path

import pytest

EXECUTOR = "TORCH_NEURONX_NKI_EXECUTOR"


@pytest.fixture
def reference_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run kernels on the slow NumPy executor, which needs no native core."""
    monkeypatch.setenv(EXECUTOR, "reference")


@pytest.fixture(params=["reference", "native"])
def executor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test on the slow executor and on the native one."""
    monkeypatch.setenv(EXECUTOR, request.param)
    return str(request.param)


@pytest.fixture
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep compiled kernels in a directory of the test's own, empty at first."""
    monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", str(tmp_path))
