"""A fixture for the conftest.py of folders that compile: a compile cache of their own."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def compile_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the user's cache out of the tests, and the tests out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        directory = tmp_path_factory.mktemp("neff_cache")
        patch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", str(directory))
        yield
