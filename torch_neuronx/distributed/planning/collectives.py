"""Collectives as PyTorch's dispatcher sees them: which operator is which, what a plan keeps.

Every collective of `torch.distributed`, also those that C++ issues (DDP's reducer), passes the
dispatcher as an operator of the namespace `c10d`, `_c10d_functional` or `_dtensor`. One table says
what each is called and which of its arguments are tensors that it reads and writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _resolve_process_group

from neuronxcc.perf.graphs.collectives import SENT
from torch_neuronx import _C

# What is read and what is written, by the names in the operator's schema. Where nothing is written
# ("") the operator returns new tensors, or nothing.
_C10D = {
    "broadcast_": ("broadcast", "tensors", "tensors"),
    "allreduce_": ("all_reduce", "tensors", "tensors"),
    "allreduce_coalesced_": ("all_reduce", "tensors", "tensors"),
    "reduce_": ("reduce", "tensors", "tensors"),
    "allgather_": ("all_gather", "input_tensors", "output_tensors"),
    "_allgather_base_": ("all_gather", "input_tensor", "output_tensor"),
    "allgather_coalesced_": ("all_gather", "input_list", "output_lists"),
    "allgather_into_tensor_coalesced_": ("all_gather", "inputs", "outputs"),
    "reduce_scatter_": ("reduce_scatter", "input_tensors", "output_tensors"),
    "_reduce_scatter_base_": ("reduce_scatter", "input_tensor", "output_tensor"),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", "inputs", "outputs"),
    "gather_": ("gather", "input_tensors", "output_tensors"),
    "scatter_": ("scatter", "input_tensors", "output_tensors"),
    "alltoall_": ("all_to_all", "input_tensors", "output_tensors"),
    "alltoall_base_": ("all_to_all", "input", "output"),
    "send": ("send", "tensors", ""),
    "recv_": ("recv", "", "tensors"),
    "recv_any_source_": ("recv", "", "tensors"),
    "barrier": ("barrier", "", ""),
    "monitored_barrier_": ("barrier", "", ""),
}
_FUNCTIONAL = {
    "broadcast": ("broadcast", "input", ""),
    "broadcast_": ("broadcast", "input", "input"),
    "all_reduce": ("all_reduce", "input", ""),
    "all_reduce_": ("all_reduce", "input", "input"),
    "all_reduce_coalesced": ("all_reduce", "inputs", ""),
    "all_reduce_coalesced_": ("all_reduce", "inputs", "inputs"),
    "all_gather_into_tensor": ("all_gather", "input", ""),
    "all_gather_into_tensor_out": ("all_gather", "input", "out"),
    "all_gather_into_tensor_coalesced": ("all_gather", "inputs", ""),
    "reduce_scatter_tensor": ("reduce_scatter", "input", ""),
    "reduce_scatter_tensor_out": ("reduce_scatter", "input", "out"),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", "inputs", ""),
    "all_to_all_single": ("all_to_all", "input", ""),
    "isend": ("send", "tensor", ""),
    "irecv": ("recv", "", "tensor"),
}


@dataclass(frozen=True, slots=True)
class Spec:
    """One operator: the collective that it is, and its tensors' places in its schema."""

    kind: str
    reads: str
    writes: str
    functional: bool


def _table() -> Mapping[object, Spec]:
    found: dict[object, Spec] = {}
    for namespace, table in (("c10d", _C10D), ("_c10d_functional", _FUNCTIONAL)):
        for name, row in table.items():
            operator = getattr(getattr(torch.ops, namespace), name).default
            found[operator] = Spec(*row, functional=namespace != "c10d")
    found[torch.ops._dtensor.shard_dim_alltoall.default] = Spec(
        "all_to_all", "input", "", functional=True
    )
    return found


SPECS = _table()


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective that the planned rank issued.

    Attributes:
        number: Its place in the order of issue, from 0.
        kind: `all_reduce`, `all_gather`, `send`, ...
        group: Name of the group: of the mesh's dimension, or `world`.
        ranks: The global ranks of the group.
        dtype: Type of the payload's elements, `mixed` if several; empty for a barrier.
        shapes: Shapes of the tensors that this rank gives (those it receives, for `recv`).
        bytes: The whole payload: what an all-gather puts together, what a reduction reduces, what a
            rank gives to an all-to-all.
        operation: `sum`, `avg`, ... of a reduction, else empty.
        peer: The other global rank of send and recv, the root of broadcast and its like; -1 else.
        phase: `setup`, `forward`, `backward` or `optimizer`.
        step: Number of the training step, from 0; -1 during setup.
        module: The module in whose forward it was issued, if any.
    """

    number: int
    kind: str
    group: str
    ranks: tuple[int, ...]
    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    bytes: int
    operation: str
    peer: int
    phase: str
    step: int
    module: str

    @property
    def size(self) -> int:
        """Number of ranks of the group."""
        return len(self.ranks)

    @property
    def sent(self) -> float:
        """Bytes that this rank sends at least, on average over the ranks."""
        return self.bytes * SENT[self.kind](self.size)


def tensors_in(value: object) -> list[Tensor]:
    """All tensors of an argument: a tensor, a list, or a list of lists of them."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in tensors_in(item)]
    return []


def group_of(arguments: Mapping[str, object]) -> dist.ProcessGroup:
    """The group among the arguments of a collective."""
    if "process_group" in arguments:
        boxed = arguments["process_group"]
        if isinstance(boxed, dist.ProcessGroup):
            return boxed
        return dist.ProcessGroup.unbox(boxed)  # type: ignore[arg-type]
    name = arguments["group_name"]
    return name if isinstance(name, dist.ProcessGroup) else _resolve_process_group(name)  # type: ignore[arg-type]


def group_name(group: dist.ProcessGroup) -> str:
    """The name that a reader knows a group by: of the mesh's dimension, if it is one."""
    description = group.group_desc or ""
    if description.startswith("mesh_"):
        return description.removeprefix("mesh_")
    if group == dist.group.WORLD:
        return "world"
    return description if description not in {"", "undefined"} else group.group_name


def operation_of(arguments: Mapping[str, object]) -> str:
    """Name of the reduction among the arguments of a collective, empty if there is none."""
    given = arguments.get("reduce_op")
    if isinstance(given, str):
        return given
    return "" if given is None else _C.reduction_name(given)  # type: ignore[arg-type]


def peer_of(arguments: Mapping[str, object], ranks: Sequence[int], *, functional: bool) -> int:
    """The global rank of the other side, or of the root; -1 if there is none."""
    for name in ("dst", "src", "root_rank"):
        if isinstance(place := arguments.get(name), int):
            return ranks[place] if not functional or name != "src" else place
    return -1


def payload(spec: Spec, given: Sequence[Tensor], received: Sequence[Tensor], size: int) -> int:
    """Bytes of a collective's whole payload."""
    read = sum(tensor.nbytes for tensor in given)
    written = sum(tensor.nbytes for tensor in received)
    return payload_of(spec.kind, read, written, size)


def payload_of(kind: str, read: int, written: int, size: int) -> int:
    """The same, by the bytes that a rank gives and receives."""
    if kind == "gather":
        return read * size
    if kind == "scatter":
        return written * size
    return read if kind == "all_to_all" else max(read, written)


def dtype_name(tensors: Sequence[Tensor]) -> str:
    """The one data type of tensors, or `mixed`; empty for no tensors."""
    names = {str(tensor.dtype).removeprefix("torch.") for tensor in tensors}
    return "mixed" if len(names) > 1 else next(iter(names), "")


def imitate(kind: str, given: Sequence[Tensor], received: Sequence[Tensor], rank: int) -> None:
    """Fill what a collective writes, as if all other ranks had given what this one gives.

    Sums are left as they are: a plan's numbers stand for nothing, but bookkeeping that scripts do
    in integers (sizes, flags, lengths of pickled objects) comes out plausible.
    """
    share = max(len(given) // max(len(received), 1), 1)
    for at, target in enumerate(received):
        if kind == "recv" or not given:
            target.zero_()
        elif kind in {"reduce_scatter", "scatter"}:
            sources = given[at * share : (at + 1) * share]
            whole = sources[rank if share > 1 else 0].reshape(-1)
            start = 0 if share > 1 else rank * target.numel()
            target.copy_(whole[start : start + target.numel()].view_as(target))
        else:
            # As many of a list of outputs belong to each input; one output is filled repeatedly.
            source = given[at * len(given) // len(received)]
            if target is not source and source.numel():
                places = torch.arange(target.numel()) % source.numel()
                target.copy_(source.reshape(-1)[places].view_as(target))
