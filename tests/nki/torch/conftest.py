"""What tests of compiled kernels share."""

from collections.abc import Iterator

import pytest

from torch_neuronx.dynamo.backend import OBSERVERS, CompiledGraph


@pytest.fixture
def graphs() -> Iterator[list[CompiledGraph]]:
    """The graphs that are compiled meanwhile."""
    found: list[CompiledGraph] = []
    OBSERVERS.append(found.append)
    yield found
    OBSERVERS.remove(found.append)
