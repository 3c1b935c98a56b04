"""The native core for tests of its arithmetic, with one of its instruction sets at a time.

Importing this needs the core, so only tests that need it do.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

__all__ = ["ISAS", "core", "forced", "isa"]

# The developer's side build of the kernels alone can stand in for the whole core, whose entries for
# tests have no stubs.
core: Any = importlib.import_module(
    os.environ.get("TORCH_NEURONX_KERNELS_TEST_MODULE", "torch_neuronx._C")
)

ISAS: list[str] = core.kernel_isas()


@contextmanager
def forced(isa: str) -> Iterator[None]:
    """Let kernels use this instruction set inside of the block."""
    before = core.kernel_isa()
    core.kernel_force_isa(isa)
    try:
        yield
    finally:
        core.kernel_force_isa(before)


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test with every instruction set; conftest.py of a directory offers this."""
    with forced(request.param):
        yield str(request.param)
