"""Workspaces in symmetric memory, where ranks read in place what others have put there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from torch._C._distributed_c10d import _SymmetricMemory
    from torch.distributed.distributed_c10d import GroupName

__all__ = ["Exchange"]

_workspaces: dict[tuple[str, torch.device], Tensor] = {}


class Exchange:
    """The workspaces of a group's ranks, and their turns to use them.

    Attributes:
        memory: The workspaces.
        rank: Of this process in the group.
        ranks: How many the group has.
        timeout: Milliseconds that a barrier waits.
    """

    def __init__(self, group_name: GroupName, device: torch.device, nbytes: int) -> None:
        """Take the workspace of a group on a device, which has at least `nbytes`; on all ranks."""
        from torch._C._distributed_c10d import _SymmetricMemory  # noqa: PLC0415 - late, for speed

        key = (group_name, device)
        workspace = _workspaces.get(key)
        # All ranks ask for the same sizes in the same order, so all of them grow together.
        if workspace is None or workspace.nbytes < nbytes:
            workspace = _SymmetricMemory.empty_strided_p2p(
                (max(nbytes, 1),), [1], torch.uint8, device, group_name
            )
            _workspaces[key] = workspace
        self.memory: _SymmetricMemory = _SymmetricMemory.rendezvous(workspace, group_name)
        self.rank = self.memory.rank
        self.ranks = self.memory.world_size
        # A rank that has ended is noticed at once; this is for one that hangs.
        self.timeout = int(dist.distributed_c10d.default_pg_timeout.total_seconds() * 1000)

    def part(self, rank: int, like: Tensor, index: int = 0) -> Tensor:
        """A tensor as `like` in the workspace of a rank, the `index`-th of that size."""
        return self.memory.get_buffer(rank, like.shape, like.dtype, index * like.numel())

    def barrier(self) -> None:
        """Wait until all ranks are here, and what each has issued has run."""
        self.memory.barrier(0, self.timeout)

    def order(self) -> list[int]:
        """The ranks from this one on, so that not all read from the same one."""
        return [(self.rank + step) % self.ranks for step in range(self.ranks)]
