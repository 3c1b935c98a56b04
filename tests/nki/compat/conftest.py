"""Kernels of the first generation run on the NumPy executor here: no native core is needed."""

import pytest


@pytest.fixture(autouse=True)
def _reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_NEURONX_NKI_EXECUTOR", "reference")
