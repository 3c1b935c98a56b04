"""Kernels of the first generation run on the NumPy executor here: no native core is needed.

`TORCH_NEURONX_NKI_EXECUTOR=native` runs the same tests on the native one.
"""

import os

import pytest

from tests.nki.conftest import EXECUTOR


@pytest.fixture(autouse=True)
def _reference(monkeypatch: pytest.MonkeyPatch) -> None:
    if EXECUTOR not in os.environ:
        monkeypatch.setenv(EXECUTOR, "reference")
