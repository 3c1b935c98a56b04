"""Each kernel of these tests runs on the slow executor and on the native one."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True, params=["reference", "native"])
def _executor(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCH_NEURONX_NKI_EXECUTOR", request.param)
    monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", str(tmp_path))
