"""Each kernel of these tests runs on the slow executor and on the native one."""

import pytest


@pytest.fixture(autouse=True)
def _everywhere(executor: str, own_cache: None) -> None:
    del executor, own_cache
