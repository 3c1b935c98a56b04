"""What the tests of nrtpy share: a fresh runtime, and a small NEFF."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import nrtpy
from tests.nrtpy.neffs import compile_jax


@pytest.fixture(autouse=True)
def fresh_runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (
        "NEURON_RT_LOG_LEVEL", "NEURON_RT_LOG_LOCATION", "NEURON_RT_DBG_DUMP_INPUTS_ON_ERR",
        "NEURON_FAIL_ON_NAN", "NEURON_RT_NUMERICAL_ERRORS_VERBOSITY", "NEURON_CC_FLAGS",
    ):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    yield
    nrtpy.reset()


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A NEFF of (a, b) -> (a + b, a @ b.T as bfloat16), both float32[4, 3]."""
    path = tmp_path_factory.mktemp("neffs") / "small.neff"
    x = np.zeros((4, 3), np.float32)
    return compile_jax(path, lambda a, b: (a + b, (a @ b.T).astype(jnp.bfloat16)), x, x)
