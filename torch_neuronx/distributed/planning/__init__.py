"""Planning of jobs: one rank of many, without their memory and their other ranks.

`import torch` imports this file and no other of the package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch._C._distributed_c10d import FakeProcessGroup

# The plans that are open in this process. Groups that are made meanwhile are of jobs that aren't
# there.
ACTIVE: list[object] = []


def fake_group(rank: int, size: int) -> FakeProcessGroup:
    """The backend of a group whose other ranks don't exist: PyTorch's own."""
    from torch._C._distributed_c10d import FakeProcessGroup  # noqa: PLC0415 - may not be built

    return FakeProcessGroup._create_internal(rank, size)
