"""What all tiers share.

Tiers are directories: ``nodevice`` and ``nki`` need no native core, ``kernels`` tests the core's
arithmetic, ``device`` the device through PyTorch, ``multiprocess`` several processes.
"""

import os
import sys

import pytest
from hypothesis import HealthCheck, settings

# Two cores are shared by all test processes, so a slow example is load and not a defect.
settings.register_profile("default", deadline=None)
settings.register_profile(
    "thorough",
    deadline=None,
    max_examples=2000,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(autouse=True)
def nothing_told() -> None:
    """Let every test see what a process says once."""
    messages = sys.modules.get("neuronxcc.cache.messages")
    if messages is not None:
        messages.TOLD.clear()
