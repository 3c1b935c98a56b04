"""Kernels of the first generation run on the NumPy executor here: no native core is needed.

`TORCH_NEURONX_NKI_EXECUTOR=native` runs the same tests on the native one.
"""

import os

import pytest


@pytest.fixture(autouse=True)
def _reference(monkeypatch: pytest.MonkeyPatch) -> None:
    if "TORCH_NEURONX_NKI_EXECUTOR" not in os.environ:
        monkeypatch.setenv("TORCH_NEURONX_NKI_EXECUTOR", "reference")
