"""The process groups of programs that name ranks ("ranks:0,1;2,3", see `neuronxcc.program.groups`).

Every rank loads such a program with its number. The ranks meet at a store of PyTorch's: where
NEURON_RT_ROOT_COMM_ID says, else that of a default process group of as many ranks, else the one
that torchrun's variables name. A group is made when a program that needs it is loaded, by its
members alone; programs with equal groups share it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed.distributed_c10d import GroupName
from torch.distributed.rendezvous import rendezvous

from neuronxcc.environment.machine import MASTER_ADDR, MASTER_PORT
from neuronxcc.environment.runtime import NEURON_RT_EXEC_TIMEOUT, NEURON_RT_ROOT_COMM_ID
from neuronxcc.program.errors import NeffError
from neuronxcc.program.footprint import programs
from neuronxcc.program.groups import members_of, names_ranks
from neuronxcc.program.program import AnyStep, CallStep, Program
from neuronxcc.program.steps.collective import CollectiveStep
from torch_neuronx import _C

_MEETING = timedelta(seconds=300)  # ranks of a job do not start at once


@dataclass
class Ranks:
    """The job that this process is a rank of.

    Attributes:
        rank: Number of the process.
        world_size: How many there are.
        store: Where they meet.
        timeout: After which a collective that some don't join fails.
    """

    rank: int
    world_size: int
    store: c10d.Store
    timeout: timedelta
    groups: dict[tuple[int, ...], dist.ProcessGroup] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def group(self, members: tuple[int, ...]) -> str:
        """The name of the process group of some ranks, of which this is one; made if need be."""
        name = GroupName(f"neff:{','.join(map(str, members))}")
        with self.lock:
            if members not in self.groups:
                self.groups[members] = self._make(name, members)
        return name

    def _make(self, name: GroupName, members: tuple[int, ...]) -> dist.ProcessGroup:
        rank, size = members.index(self.rank), len(members)
        store = c10d.PrefixStore(name, self.store)
        backend = _C.create_process_group(store, rank, size, name, self.timeout)
        group = dist.ProcessGroup(store, rank, size)
        kind = dist.ProcessGroup.BackendType.CUSTOM
        group._set_default_backend(kind)  # noqa: SLF001 - as init_process_group does
        group._register_backend(torch.device("neuron"), kind, backend)  # noqa: SLF001
        group._set_group_name(name)  # noqa: SLF001
        c10d._register_process_group(name, group)  # noqa: SLF001
        return group

    def close(self) -> None:
        """Leave the job: its groups end."""
        with self.lock:
            for group in self.groups.values():
                c10d._unregister_process_group(group.group_name)  # noqa: SLF001
                group.shutdown()
            self.groups.clear()


def join(rank: int, world_size: int, environ: Mapping[str, str] | None = None) -> Ranks:
    """Meet the other ranks of a job.

    Args:
        rank: Of this process.
        world_size: How many there are.
        environ: The variables; those of the process if None.

    Raises:
        NeffError: Nothing says where they meet; status 2.
        VariableError: A variable about the job is wrong.
        RuntimeError: They did not come (torch.distributed.DistError).
    """
    if not 0 <= rank < world_size:
        raise NeffError(f"there is no rank {rank} among {world_size}")
    return Ranks(rank, world_size, _store(rank, world_size, environ), _timeout(environ))


def _store(rank: int, world_size: int, environ: Mapping[str, str] | None) -> c10d.Store:
    address = NEURON_RT_ROOT_COMM_ID.get(environ)
    if address is not None:
        return c10d.TCPStore(*address, world_size, rank == 0, _MEETING)
    if world_size == 1:
        return c10d.HashStore()
    if dist.is_initialized() and (dist.get_rank(), dist.get_world_size()) == (rank, world_size):
        return c10d.PrefixStore("neff", dist.distributed_c10d._get_default_store())  # noqa: SLF001
    if MASTER_ADDR.text(environ) and MASTER_PORT.text(environ):
        store, _, _ = next(rendezvous("env://", rank, world_size, timeout=_MEETING))
        return c10d.PrefixStore("neff", store)
    raise NeffError(
        f"nothing says where the {world_size} ranks meet: set NEURON_RT_ROOT_COMM_ID="
        "<address>:<port> of rank 0 in all of them, or start them by torchrun"
    )


def _timeout(environ: Mapping[str, str] | None) -> timedelta:
    seconds = NEURON_RT_EXEC_TIMEOUT.get(environ)
    default: timedelta = dist.distributed_c10d.default_pg_timeout
    return default if seconds is None else timedelta(seconds=seconds)


def needs_ranks(program: Program) -> bool:
    """Return whether a program has collectives whose groups the loader must make."""
    return any(
        isinstance(step, CollectiveStep) and names_ranks(step.name)
        for part in programs(program)
        for step in part.steps
    )


def bind(program: Program, ranks: Ranks) -> Program:
    """The program with names of process groups of this process.

    Raises:
        NeffError: A collective does not fit the ranks; status 2.
    """
    return replace(program, steps=tuple(_bound(step, ranks) for step in program.steps))


def _bound(step: AnyStep, ranks: Ranks) -> AnyStep:
    if isinstance(step, CallStep):
        return replace(step, bodies=tuple(bind(body, ranks) for body in step.bodies))
    if not isinstance(step, CollectiveStep) or not names_ranks(step.name):
        return step
    members = members_of(step, ranks.rank, ranks.world_size)
    # Pairs are places in the group, which is then that of all ranks.
    group = () if step.kind == "collective_permute" else (tuple(range(len(members))),)
    return replace(step, name=ranks.group(members), group=group)
