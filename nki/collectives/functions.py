"""The functions of `nki.collectives`, made from the table."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from nki.collectives.replica import RankRegister, ReplicaGroup, recorder
from nki.collectives.rows import ROWS
from nki.collectives.rules import group
from nki.errors import NkiError
from nki.isa.bind import bind
from nki.isa.functions import FUNCTIONS, dressed
from nki.isa.objects import VirtualRegister
from nki.isa.spec import Instruction
from nki.language.creation import shared_constant
from nki.recorder import Recorder

__all__ = [
    "COLLECTIVES",
    "collective_permute_implicit_current_processing_rank_id",
    "rank_id",
]

_CHANNELS = 4
# What the public interface says of these two: two cores, and of the first one lists of four.
_DOCUMENTED_SIZE = {"all_gather_v": 4, "all_to_all_v": None}


def _issue(row: Instruction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    here = recorder()
    operands, attributes = bind(row, args, kwargs)
    for name in operands:
        if name.endswith("_by_channel"):
            operands[name] = _flat(row.name, name, operands[name])
    if "replica_group" in attributes:
        _position(here, row.name, attributes["replica_group"])
    else:
        _known(here, row.name, [r for pair in attributes["source_target_pairs"] for r in pair])
    here.issue(row, operands, attributes)
    _beyond(here, row.name, attributes)


def _flat(instruction: str, name: str, given: Any) -> list[Any]:
    """Return the tensors of all channels, one each."""
    if not isinstance(given, (list, tuple)) or any(
        not isinstance(inner, (list, tuple)) or len(inner) != 1 for inner in given
    ):
        raise NkiError(
            "NKI312",
            f"{instruction} {name} is not one list with one tensor for each channel",
            "write [[tensor_of_channel_0], [tensor_of_channel_1]]",
        )
    return [inner[0] for inner in given]


def _known(here: Recorder, name: str, ranks: Sequence[int]) -> None:
    """Check that ranks exist."""
    missing = [rank for rank in ranks if rank >= here.ranks]
    if missing:
        raise NkiError(
            "NKI311",
            f"{name} names rank {max(missing)}, and the kernel runs on {here.ranks}",
            f"launch it by nki.collectives.spmd(kernel, ranks={max(missing) + 1})",
        )


def _position(
    here: Recorder, name: str, groups: Sequence[Sequence[int]]
) -> tuple[Sequence[int], int]:
    """Return this rank's list and its position in it.

    Raises:
        NkiError: a rank of the group does not exist, or this one is in no list (NKI311).
    """
    _known(here, name, [rank for ranks in groups for rank in ranks])
    for ranks in groups:
        if here.rank in ranks:
            return ranks, ranks.index(here.rank)
    raise NkiError(
        "NKI311",
        f"{name} is called on rank {here.rank}, which is in no list of its replica group",
        "name every rank that calls it in the group",
    )


def _beyond(here: Recorder, name: str, attributes: dict[str, Any]) -> None:
    """Find uses that are defined, and documented as not supported by the hardware's software."""
    if name not in _DOCUMENTED_SIZE:
        return
    size, count = _DOCUMENTED_SIZE[name], len(attributes["replica_group"][0])
    if here.cores != 2:
        here.finding("NKI322", f"{name} is documented for kernel[2] only")
    if size is not None and count != size:
        here.finding("NKI322", f"{name} is documented for lists of {size} ranks, not of {count}")


def _function(row: Instruction) -> Any:
    def collective(*args: Any, **kwargs: Any) -> Any:
        return _issue(row, args, kwargs)

    return dressed(collective, row, "nki.collectives")


COLLECTIVES = {name: _function(row) for name, row in ROWS.items()}


def rank_id(name: str | None = None) -> Any:
    """Return the number of the rank that runs the kernel, 0 without `spmd`.

    It is a register, for instance for `scalar_offset`. Each rank is recorded on its own here, so it
    is known at once too, and an integer for Python.

    Args:
        name: of the instruction.

    Raises:
        NkiError: outside of a kernel (NKI143).
    """
    del name
    return RankRegister(recorder().rank)


def collective_permute_implicit_current_processing_rank_id(
    iteration_id: Any,
    replica_group: Any,
    channel_id: int = 0,
    name: str | None = None,
    *,
    num_channels: int = _CHANNELS,
) -> VirtualRegister:
    """Return whose data is there after so many steps around the ring, as a register.

    At step 0 that is this rank's own; at step i it is what came from the i-th rank before it in its
    list. For a step that Python counts the register is an integer for Python too.

    Args:
        iteration_id: the step; an integer, or a register such as a loop's counter, which then
            must stay below the number of ranks in a list.
        replica_group: the ring: ranks in the order of their list.
        channel_id: 0 to 3; all channels go the same way round.
        name: of the instruction.
        num_channels: how many channels there are; only NKI 0.2 has it.

    Raises:
        NkiError: no such channel (NKI316), or this rank is not in the ring (NKI311).
    """
    del name
    here = recorder()
    function = "collective_permute_implicit_current_processing_rank_id"
    channels = range(min(_CHANNELS, num_channels))
    if isinstance(channel_id, bool) or channel_id not in channels:
        raise NkiError(
            "NKI316",
            f"{function} channel_id is {channel_id!r}",
            f"channels are 0 to {channels[-1]}" if channels else "num_channels is at least 1",
        )
    groups = replica_group.groups if isinstance(replica_group, ReplicaGroup) else replica_group
    ranks, at = _position(here, function, group(groups))
    if isinstance(iteration_id, VirtualRegister) and not isinstance(iteration_id, RankRegister):
        order = np.array([[ranks[at - i] for i in range(len(ranks))]], np.int32)
        found = shared_constant(order).ap(
            [[len(ranks), 1], [1, 1]], scalar_offset=iteration_id, indirect_dim=1
        )
        register: VirtualRegister = FUNCTIONS["register_alloc"]()
        FUNCTIONS["register_load"](register, found)
        return register
    return RankRegister(ranks[(at - operator.index(iteration_id)) % len(ranks)])
