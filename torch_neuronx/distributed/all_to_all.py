"""``torch.ops.symm_mem.all_to_all_vdev`` and its two-dimensional forms: rows to experts and back.

How many rows go where is written in tensors of the device. Each rank tells the others how its input
is divided, and reads what is its own from their memory, in place. Two ranks with two experts each;
rank 0 sends `c`, rank 1 sends `d`:

              input           dispatch          out           combine          out
    rank 0    c0 c1 c2 c3    ────────▶    c0 d0 c1 d1        ────────▶     c0 c1 c2 c3
    rank 1    d0 d1 d2 d3                 c2 d2 c3 d3                      d0 d1 d2 d3

Splits may be what a router's mistake has written. All ranks know all splits before the first row is
read, judge them alike, and refuse together. The semantics are those of PyTorch's own kernels
(torch/csrc/distributed/c10d/symm_mem/nvshmem_extension.cu) without their limits on the numbers of
ranks and experts.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from torch_neuronx.distributed.exchange import Exchange

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import GroupName

__all__ = ["all_to_all_vdev", "all_to_all_vdev_2d", "all_to_all_vdev_2d_offset"]

# Bytes of a workspace, if there are not more splits than fit: ranks that disagree about these have
# workspaces in which they can say so.
_ROOM = 1 << 16
_LARGEST_ALIGNMENT = 2**31 - 1


def all_to_all_vdev(
    input: Tensor,  # noqa: A002 - the schema's name
    out: Tensor,
    in_splits: Tensor,
    out_splits_offsets: Tensor,
    group_name: GroupName,
) -> None:
    """Exchange rows between ranks.

    Args:
        input: [rows, ...] in symmetric memory: those for rank 0, for rank 1, and so on.
        out: [room, ...]; gets the rows of rank 0, of rank 1, and so on.
        in_splits: int64 [ranks]: rows for each.
        out_splits_offsets: int64 [2, ranks]; gets how many come from each rank, and where they are.
        group_name: the group's.

    Raises:
        ValueError: arguments of a rank do not fit; on all ranks.
    """
    call = _Call("all_to_all_vdev", group_name, from_experts=True)
    if in_splits.numel() != call.ranks:
        call.refusal = f"{in_splits.numel()} splits are not one for each of {call.ranks} ranks"
    call.run(input, out, in_splits, out_splits_offsets)


def all_to_all_vdev_2d(
    input: Tensor,  # noqa: A002 - the schema's name
    out: Tensor,
    in_splits: Tensor,
    out_splits_offsets: Tensor,
    group_name: GroupName,
    major_align: int | None = None,
) -> None:
    """Dispatch: from the order of ranks and their experts to that of experts and ranks.

    Args:
        input: [rows, ...] in symmetric memory: those for the first expert, for the second, and so
            on; every rank has equally many experts.
        out: [room, ...]; gets the rows of this rank's first expert, which are those of rank 0, of
            rank 1 and so on, then of its second. What lies between experts stays as it was.
        in_splits: int64 [experts of all ranks]: rows for each.
        out_splits_offsets: int64 [2, experts of all ranks]; gets how many rows there are, and where
            they are, in the order of `out`.
        group_name: the group's.
        major_align: rows; an expert begins at a multiple of it, and one that gets no rows takes as
            many. 1 if None.

    Raises:
        ValueError: arguments of a rank do not fit; on all ranks.
    """
    align = 1 if major_align is None else major_align
    call = _Call("all_to_all_vdev_2d", group_name, from_experts=False, align=align)
    if not 1 <= align <= _LARGEST_ALIGNMENT:
        call.refusal = f"major_align must be between 1 and {_LARGEST_ALIGNMENT}, not {align}"
    call.run(input, out, in_splits, out_splits_offsets)


def all_to_all_vdev_2d_offset(
    input: Tensor,  # noqa: A002 - the schema's name
    out: Tensor,
    in_splits_offsets: Tensor,
    out_splits_offsets: Tensor,
    group_name: GroupName,
) -> None:
    """Combine: from the order of experts and ranks to that of ranks and their experts.

    Args:
        input: [rows, ...] in symmetric memory.
        out: [room, ...]; gets the rows of rank 0, in the order of its experts, of rank 1, and so
            on, without gaps.
        in_splits_offsets: int64 [2, experts of all ranks]: how many rows of this rank's first
            expert go to rank 0, to rank 1 and so on, then of its second; and where they are in
            `input`. What `all_to_all_vdev_2d` has filled takes its rows back.
        out_splits_offsets: int64 [2, experts of all ranks]; gets how many rows there are, and where
            they are, in the order of `out`.
        group_name: the group's.

    Raises:
        ValueError: arguments of a rank do not fit; on all ranks.
    """
    call = _Call("all_to_all_vdev_2d_offset", group_name, from_experts=True, offsets=True)
    call.run(input, out, in_splits_offsets, out_splits_offsets)


@dataclass(frozen=True)
class _Facts:
    """What a rank tells the others before its splits and offsets.

    Attributes:
        refused: 1 if its arguments do not fit each other, and the rest says nothing.
        operator: A number for the operator's name.
        splits: How many.
        dtype: A number for it.
        width: Elements of a row.
        align: As `major_align`; 0 packs.
        rows: Of the input.
        room: Rows of `out`.
        start: Element of the storage where the input begins.
    """

    refused: int = 1
    operator: int = 0
    splits: int = 0
    dtype: int = 0
    width: int = 0
    align: int = 0
    rows: int = 0
    room: int = 0
    start: int = 0


_COMMON = ("operator", "splits", "dtype", "width", "align")
_HEADER = len(fields(_Facts))


class _Call:
    """A call of one of the operators.

    Attributes:
        name: the operator's.
        group: its name.
        ranks: of the group.
        from_experts: parts are sent in the order of experts and received in the order of ranks;
            else the other way round.
        offsets: whether the sender says where parts are.
        align: as in `_Facts`.
        refusal: what is wrong with the arguments, if anything is.
    """

    def __init__(
        self,
        name: str,
        group: GroupName,
        *,
        from_experts: bool,
        offsets: bool = False,
        align: int = 0,
    ) -> None:
        self.name, self.group, self.align = name, group, align
        self.from_experts, self.offsets = from_experts, offsets
        self.ranks = dist.distributed_c10d._get_group_size_by_name(group)  # noqa: SLF001
        self.refusal: str | None = None

    def run(self, rows: Tensor, out: Tensor, sent: Tensor, filled: Tensor) -> None:
        """Read this rank's rows of all ranks' `rows`, and say in `filled` where they are."""
        self.refusal = self.refusal or next(self._misfits(rows, out, sent, filled), None)
        if self.refusal is None:
            words = torch.cat([torch.tensor(self._facts(rows, out, sent)), sent.cpu().flatten()])
        else:
            words = torch.tensor(astuple(_Facts()))
        # One of them is on the device, or another kernel would have been called.
        device = next(t.device for t in (rows, out, sent, filled) if t.device.type == "neuron")
        exchange = Exchange(self.group, device, max(_ROOM, words.nbytes))
        exchange.part(exchange.rank, words).copy_(words)
        exchange.barrier()
        said = [exchange.part(rank, words).cpu() for rank in range(self.ranks)]
        try:
            facts = [_Facts(*words[:_HEADER].tolist()) for words in said]
            self._agree(facts, exchange.rank)
            tables = torch.stack([words[_HEADER:] for words in said])
            counts, starts = self._parts(facts, tables)
            places = self._places(facts, counts)
            self._read(rows, out, facts, counts, starts, places, exchange)
        finally:
            exchange.barrier()  # nobody changes what others read
        mine = exchange.rank
        filled.copy_(torch.stack([self._of(counts, mine).flatten(), places[mine].flatten()]))

    def _misfits(self, rows: Tensor, out: Tensor, sent: Tensor, filled: Tensor) -> Iterator[str]:
        """What is wrong whatever the splits are."""
        from torch.distributed._symmetric_memory import is_symm_mem_tensor  # noqa: PLC0415 - late, for speed

        splits = sent.shape[-1] if sent.dim() else 0
        wanted = (2, splits) if self.offsets else (splits,)
        given = "in_splits_offsets" if self.offsets else "in_splits"
        if any(t.device != rows.device for t in (out, sent, filled)):
            yield "the tensors are on different devices"
        if not all(t.is_contiguous() for t in (rows, out, sent, filled)):
            yield "all tensors must be contiguous"
        if sent.dtype != torch.int64 or filled.dtype != torch.int64:
            yield f"splits and offsets must be int64, not {sent.dtype} and {filled.dtype}"
        if splits == 0 or splits % self.ranks or sent.shape != wanted:
            shape = ("[2, splits]" if self.offsets else "[splits]") + f" for {self.ranks} ranks"
            yield f"{given} must be {shape}, as many for each, not {list(sent.shape)}"
        if filled.shape != (2, splits):
            yield f"out_splits_offsets must be {[2, splits]}, not {list(filled.shape)}"
        if not is_symm_mem_tensor(rows):
            yield "input is not in symmetric memory; make it with symm_mem.empty()"
        if not rows.dim() or not out.dim() or rows.shape[1:] != out.shape[1:]:
            yield f"input {list(rows.shape)} and out {list(out.shape)} have different rows"
        if rows.dtype != out.dtype:
            yield f"input is {rows.dtype}, out is {out.dtype}"
        begins, ends = zip(
            *((t.data_ptr(), t.data_ptr() + t.nbytes) for t in (rows, out)), strict=True
        )
        if max(begins) < min(ends):
            yield "input and out share memory"

    def _facts(self, rows: Tensor, out: Tensor, sent: Tensor) -> tuple[int, ...]:
        facts = _Facts(
            refused=0,
            operator=zlib.crc32(self.name.encode()),
            splits=sent.shape[-1],
            dtype=zlib.crc32(str(rows.dtype).encode()),
            width=math.prod(rows.shape[1:]),
            align=self.align,
            rows=rows.shape[0],
            room=out.shape[0],
            start=int(rows.storage_offset()),
        )
        return astuple(facts)

    def _agree(self, facts: list[_Facts], mine: int) -> None:
        if self.refusal is not None:
            raise self._error(self.refusal)
        for rank, theirs in enumerate(facts):
            if theirs.refused:
                raise self._error(f"rank {rank} has refused its arguments, and says why")
            for name in _COMMON:
                if getattr(theirs, name) != getattr(facts[mine], name):
                    raise self._error(
                        f"rank {rank} has called it with another {name.replace('width', 'row')} "
                        f"than rank {mine}"
                    )

    def _parts(self, facts: list[_Facts], tables: Tensor) -> tuple[Tensor, Tensor]:
        """How many rows each rank's parts have, and where they begin in its input.

        Both are [ranks, splits], in the order in which they are sent.
        """
        counts, *given = tables.unflatten(1, (-1, facts[0].splits)).unbind(1)
        # Less than none, or more than there are, before anything is added up.
        rows = torch.tensor([f.rows for f in facts])[:, None]
        self._judge((counts < 0) | (counts > rows), counts, "{rank} has a part of {value} rows")
        starts = given[0] if given else counts.cumsum(1) - counts
        outside = (counts > 0) & ((starts < 0) | (starts > rows - counts))
        self._judge(
            outside,
            starts + counts,
            "{rank} has a part that ends at row {value}, outside its input",
        )
        return counts, starts

    def _places(self, facts: list[_Facts], counts: Tensor) -> Tensor:
        """Where in `out` each rank's parts go, [ranks, major, minor] as in `_of`."""
        received = torch.stack([self._of(counts, rank) for rank in range(self.ranks)])
        lengths = received.sum(2)
        if self.align:
            lengths = (lengths + self.align - 1).div(self.align, rounding_mode="floor") * self.align
            lengths.clamp_(min=self.align)
        begins = lengths.cumsum(1) - lengths
        places = begins[:, :, None] + received.cumsum(2) - received
        ends = (places + received) * (received > 0)
        room = torch.tensor([f.room for f in facts])[:, None, None]
        self._judge(ends > room, ends, "{rank} would get rows up to {value}, more than its out has")
        return places

    def _of(self, sent: Tensor, rank: int) -> Tensor:
        """A rank's part of `sent`, [ranks, splits]: [major, minor] in the order of receiving."""
        if self.from_experts:
            return sent.view(self.ranks, -1, self.ranks)[:, :, rank]
        return sent.view(self.ranks, self.ranks, -1)[:, rank].t()

    def _read(
        self,
        rows: Tensor,
        out: Tensor,
        facts: list[_Facts],
        counts: Tensor,
        starts: Tensor,
        places: Tensor,
        exchange: Exchange,
    ) -> None:
        from torch.distributed._symmetric_memory import rendezvous  # noqa: PLC0415 - late, for speed

        memory = rendezvous(rows, self.group)
        assert memory is not None
        by_sender = 0 if self.from_experts else 1
        pieces = [
            self._of(counts, exchange.rank),
            self._of(starts, exchange.rank),
            places[exchange.rank],
        ]
        for rank in exchange.order():
            theirs = facts[rank]
            shape = (theirs.rows, *rows.shape[1:])
            source = memory.get_buffer(rank, shape, rows.dtype, theirs.start)
            for count, start, place in zip(
                *(p.select(by_sender, rank).tolist() for p in pieces), strict=True
            ):
                if count:
                    out[place : place + count].copy_(source[start : start + count])

    def _judge(self, wrong: Tensor, values: Tensor, text: str) -> None:
        """Refuse if anything is wrong in a tensor [ranks, ...]; the same on all ranks."""
        if wrong.any():
            first = wrong.nonzero()[0]
            told = text.format(rank=f"rank {int(first[0])}", value=int(values[tuple(first)]))
            raise self._error(told)

    def _error(self, text: str) -> ValueError:
        return ValueError(f"{self.name}: {text}")
