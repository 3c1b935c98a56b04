"""What all tiers share.

Tiers are directories: ``nodevice`` and ``nki`` need no native core, ``kernels`` tests the core's
arithmetic, ``device`` the device through PyTorch, ``multiprocess`` several processes.
"""

import os

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
