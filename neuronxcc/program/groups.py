"""How a program that was compiled from HLO names the ranks of its collectives.

A program of `torch.compile` names process groups of PyTorch. One that `neuronx-cc` made knows ranks
alone: "ranks:0,1;2,3" are two groups of two, "ranks:all" is everybody, however many that will be
(`neuronxcc.ir.collectives`). Whoever loads it makes the groups.
"""

from __future__ import annotations

from neuronxcc.ir.collectives import ALL_RANKS, RANKS
from neuronxcc.program.errors import NeffError
from neuronxcc.program.steps.collective import CollectiveStep


def names_ranks(name: str) -> bool:
    """Return whether a name is one of these, and not a process group of PyTorch's."""
    return name.startswith(RANKS)


def members_of(step: CollectiveStep, rank: int, world_size: int) -> tuple[int, ...]:
    """The ranks that do a collective together with this one, in the order of their numbers in it.

    Args:
        step: Its `name` is one of these.
        rank: Of this process, below `world_size`.
        world_size: How many there are.

    Raises:
        NeffError: The collective doesn't fit them; status 2.
    """
    if step.kind == "collective_permute":
        most = max((max(pair) for pair in step.pairs), default=0)
        if most >= world_size:
            raise NeffError(f"a collective_permute goes to rank {most}, there are {world_size}")
        return tuple(range(world_size))  # who is in no pair gets zeros
    if step.name == ALL_RANKS:
        # Without a group the shapes fit any number of ranks.
        if step.group and len(step.group[0]) != world_size:
            raise NeffError(
                f"{step.kind} of all ranks was compiled for {len(step.group[0])}, there are "
                f"{world_size}"
            )
        return tuple(range(world_size))
    for group in step.group:
        if max(group) >= world_size:
            raise NeffError(
                f"{step.kind} of the ranks {step.name.removeprefix(RANKS)} needs rank "
                f"{max(group)}, there are {world_size}"
            )
    found = [group for group in step.group if rank in group]
    if len(found) != 1:
        raise NeffError(
            f"rank {rank} is in {len(found)} of the groups {step.name.removeprefix(RANKS)}"
        )
    return found[0]
