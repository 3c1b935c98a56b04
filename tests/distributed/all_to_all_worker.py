"""What every rank of test_all_to_all.py does."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributed.distributed_c10d import GroupName

NEURON = torch.device("neuron")
# The largest drawn case: 4 ranks' 16 parts of at most 6 rows, aligned to 8, of 6 elements.
BYTES = 8 * 8 * 6 * 64
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
ops: Any = torch.ops.symm_mem


def name() -> GroupName:
    group = dist.group.WORLD
    assert group is not None
    return group.group_name


@dataclass
class Case:
    """Drawn alike on all ranks.

    Attributes:
        experts: Of a rank.
        splits: By rank: rows for each expert of all ranks.
        align: As `major_align`.
        row: Shape of a row.
        dtype: Of the rows.
        begins: By rank: rows of its buffer before its input.
    """

    experts: int
    splits: list[list[int]]
    align: int | None
    row: tuple[int, ...]
    dtype: torch.dtype
    begins: list[int]

    def inputs(self) -> list[list[Tensor]]:
        """By rank: its parts, [rows, ...], on the host; every element has another value."""
        number = itertools.count(1)
        width = Tensor.numel(torch.empty(self.row))

        def part(rows: int) -> Tensor:
            values = [[next(number) for _ in range(width)] for _ in range(rows)]
            return torch.tensor(values).reshape(rows, *self.row).to(self.dtype)

        return [[part(rows) for rows in mine] for mine in self.splits]


@st.composite
def cases(draw: st.DrawFn, world: int) -> Case:
    experts = draw(st.integers(1, 4))
    rows = st.one_of(st.just(0), st.integers(0, 6))
    parts = world * experts
    return Case(
        experts,
        [draw(st.lists(rows, min_size=parts, max_size=parts)) for _ in range(world)],
        draw(st.sampled_from([None, 1, 2, 5, 8])),
        draw(st.sampled_from([(), (3,), (2, 3), (0,)])),
        draw(st.sampled_from(DTYPES)),
        draw(st.lists(st.integers(0, 3), min_size=world, max_size=world)),
    )


def joined(parts: Sequence[Tensor], like: Tensor) -> Tensor:
    return torch.cat([like[:0], *parts])


def dispatched(case: Case, rank: int, inputs: list[list[Tensor]]) -> list[tuple[int, Tensor]]:
    """The obvious way: parts in the order of experts and ranks, and where each begins."""
    align = case.align or 1
    place, found = 0, []
    for expert in range(case.experts):
        begin = place
        for sender in inputs:
            part = sender[rank * case.experts + expert]
            found.append((place, part))
            place += len(part)
        used = max(place - begin, 1)
        place = begin + (used + align - 1) // align * align
    return found


def buffer(dtype: torch.dtype = torch.uint8, elements: int = BYTES) -> Tensor:
    memory = symm_mem.empty(elements, dtype=dtype, device=NEURON)
    symm_mem.rendezvous(memory, name())
    return memory


def placed(memory: Tensor, case: Case, rank: int, rows: int) -> Tensor:
    """Rows of a buffer, which begin elsewhere on every rank."""
    width = Tensor.numel(torch.empty(case.row))
    begin = case.begins[rank] * width
    flat = memory.view(case.dtype)[begin : begin + rows * width]
    return flat.view(rows, *case.row)


def there_and_back(rank: int, world: int) -> None:
    """Dispatch and combine, against what the description says, with gaps and empty parts."""
    sent, here, back = buffer(), buffer(), buffer()

    @settings(max_examples=60, deadline=None, database=None, derandomize=True)  # alike on all ranks
    @given(cases(world))
    def check(case: Case) -> None:
        inputs = case.inputs()
        mine = torch.cat(inputs[rank])
        parts = world * case.experts
        source = placed(sent, case, rank, len(mine))
        source.copy_(mine)
        splits = torch.tensor(case.splits[rank], device=NEURON)
        table = torch.full((2, parts), -1, dtype=torch.int64, device=NEURON)

        wanted = dispatched(case, rank, inputs)
        room = max(place + len(part) for place, part in wanted)
        out = placed(here, case, rank, room)
        untouched = torch.ones(room, dtype=torch.bool)
        out.fill_(1)
        ops.all_to_all_vdev_2d(source, out, splits, table, name(), case.align)
        for place, part in wanted:
            assert torch.equal(out[place : place + len(part)].cpu(), part)
            untouched[place : place + len(part)] = False
        assert out.cpu()[untouched].eq(1).all()
        assert table.tolist() == [[len(p) for _, p in wanted], [place for place, _ in wanted]]

        again = placed(back, case, rank, len(mine))
        after = torch.full((2, parts), -1, dtype=torch.int64, device=NEURON)
        ops.all_to_all_vdev_2d_offset(out, again, table, after, name())
        assert torch.equal(again.cpu(), mine)
        offsets = [0, *itertools.accumulate(case.splits[rank][:-1])]
        assert after.tolist() == [case.splits[rank], offsets]

    check()


@st.composite
def layouts(draw: st.DrawFn, world: int) -> list[list[tuple[int, int]]]:
    """By rank: rows and beginning of each part, in any order; parts may share rows."""
    part = st.tuples(st.integers(0, 5), st.integers(0, 20))
    experts = draw(st.integers(1, 3))
    size = world * experts
    return [draw(st.lists(part, min_size=size, max_size=size)) for _ in range(world)]


def combined(rank: int, world: int) -> None:
    """`all_to_all_vdev_2d_offset` with parts anywhere, and `all_to_all_vdev`."""
    sent = buffer(torch.int64, 25)
    everything = [torch.arange(25) + 100 * r for r in range(world)]
    sent.copy_(everything[rank])

    @settings(max_examples=40, deadline=None, database=None, derandomize=True)
    @given(layouts(world))
    def check(layout: list[list[tuple[int, int]]]) -> None:
        size = len(layout[0])
        wanted = [
            everything[sender][begin : begin + rows]
            for sender in range(world)
            for rows, begin in layout[sender][rank::world]
        ]
        out = torch.zeros(sum(map(len, wanted)), dtype=torch.int64, device=NEURON)
        given_ = torch.tensor(layout[rank]).t().contiguous().to(NEURON)
        table = torch.empty(2, size, dtype=torch.int64, device=NEURON)
        ops.all_to_all_vdev_2d_offset(sent, out, given_, table, name())
        assert out.tolist() == torch.cat(wanted).tolist()
        lengths = [len(part) for part in wanted]
        assert table.tolist() == [lengths, [0, *itertools.accumulate(lengths[:-1])]]

        splits = [[rows for rows, _ in mine[:world]] for mine in layout]
        begins = [sum(splits[sender][:rank]) for sender in range(world)]
        lengths = [splits[sender][rank] for sender in range(world)]
        wanted = [
            everything[s][b : b + n] for s, (b, n) in enumerate(zip(begins, lengths, strict=True))
        ]
        table = torch.empty(2, world, dtype=torch.int64, device=NEURON)
        out = torch.zeros(sum(lengths), dtype=torch.int64, device=NEURON)
        ops.all_to_all_vdev(sent, out, torch.tensor(splits[rank], device=NEURON), table, name())
        assert out.tolist() == torch.cat(wanted).tolist()
        assert table.tolist() == [lengths, [0, *itertools.accumulate(lengths[:-1])]]

    check()


def refusals(rank: int, world: int) -> None:
    """What one rank gets wrong all refuse, together, and nothing is read; then they go on."""
    source = buffer(torch.float32, 40).view(10, 4)
    source.fill_(rank)
    good = torch.full((world,), 2, device=NEURON)
    last = world - 1

    def call(**changed: Any) -> Tensor:
        """A dispatch of one expert a rank; `changed` by the last rank."""
        mine = changed if rank == last else {}
        out = mine.get("out", torch.full((2 * world, 4), -1.0, device=NEURON))
        ops.all_to_all_vdev_2d(
            mine.get("input", source),
            out,
            mine.get("splits", good),
            mine.get("table", torch.empty(2, world, dtype=torch.int64, device=NEURON)),
            name(),
            mine.get("align", 1),
        )
        assert isinstance(out, Tensor)
        return out

    def splits(*values: int) -> Tensor:
        return torch.tensor((*values, *[0] * (world - len(values))), device=NEURON)

    def on_all(text: str, **changed: Any) -> None:
        with pytest.raises(ValueError, match=f"all_to_all_vdev_2d: {text}"):
            call(**changed)

    def on_one(text: str, **changed: Any) -> None:
        told = text if rank == last else f"rank {last} has refused its arguments"
        with pytest.raises(ValueError, match=f"all_to_all_vdev_2d: {told}"):
            call(**changed)

    for values, text in (
        ((-1,), f"rank {last} has a part of -1 rows"),
        ((11,), f"rank {last} has a part of 11 rows"),
        ((6, 5), f"rank {last} has a part that ends at row 11, outside its input"),
        ((2**63 - 1, 1), f"rank {last} has a part of {2**63 - 1} rows"),
        ((-(2**63),), f"rank {last} has a part of {-(2**63)} rows"),
        ((3,), f"rank 0 would get rows up to {2 * world + 1}, more than its out has"),
    ):
        on_all(text, splits=splits(*values))
    small = torch.full((1, 4), -1.0, device=NEURON)
    on_all(f"rank {last} would get rows up to 2, more than its out has", out=small)
    assert small.eq(-1).all()
    on_all(f"rank {0 if rank == last else last} has called it with another align", align=2)
    twice = torch.zeros(2 * world, dtype=torch.int64, device=NEURON)
    wide = torch.empty(2, 2 * world, dtype=torch.int64, device=NEURON)
    on_all(".*with another splits", splits=twice, table=wide)
    narrow = source.view(-1)[:20].view(10, 2)
    on_all(".*with another row", input=narrow, out=torch.empty(20, 2, device=NEURON))

    on_one("input is not in symmetric memory", input=torch.zeros(10, 4, device=NEURON))
    on_one(
        r"input \[10, 4\] and out \[8, 2\] have different rows", out=torch.empty(8, 2).to(NEURON)
    )
    on_one(
        "input is torch.float32, out is torch.bfloat16", out=torch.empty(8, 4).bfloat16().to(NEURON)
    )
    on_one("input and out share memory", out=source[8:])
    on_one("all tensors must be contiguous", out=torch.empty(4, 8, device=NEURON).t())
    on_one("the tensors are on different devices", out=torch.empty(8, 4))
    on_one("the tensors are on different devices", input=torch.empty(10, 4))
    on_one("splits and offsets must be int64, not torch.int32", splits=good.int())
    on_one(rf"in_splits must be \[splits\] for {world} ranks", splits=good[:1])
    on_one(rf"in_splits must be \[splits\] for {world} ranks", splits=good[None])
    on_one(rf"out_splits_offsets must be \[2, {world}\], not \[1, {world}\]", table=good[None])
    on_one("major_align must be between 1 and 2147483647, not 0", align=0)

    expected = torch.arange(world).repeat_interleave(2)[:, None].expand(-1, 4)
    assert torch.equal(call().cpu(), expected.float())


def bad_offsets(rank: int, world: int) -> None:
    """Offsets that lead outside of the input's rows, though inside of its memory, are refused."""
    source = buffer(torch.int64, 40)[10:20]
    source.fill_(rank)
    good = torch.zeros(2, world, dtype=torch.int64, device=NEURON)
    good[0] = 1

    def call(offset: int, rows: int = 1) -> Tensor:
        given_ = good.clone()
        if rank == 0:
            given_[0, world - 1], given_[1, world - 1] = rows, offset
        out = torch.zeros(world, dtype=torch.int64, device=NEURON)
        table = torch.empty(2, world, dtype=torch.int64, device=NEURON)
        ops.all_to_all_vdev_2d_offset(source, out, given_, table, name())
        return out

    for offset in (-1, 10, 2**63 - 1, -(2**63)):
        with pytest.raises(ValueError, match=r"rank 0 has a part that ends at row .*, outside"):
            call(offset)
    assert call(9).tolist() == list(range(world))
    call(2**62, rows=0)  # nothing is nowhere
    with pytest.raises(ValueError, match="all_to_all_vdev: 1 splits are not one for each of"):
        ops.all_to_all_vdev(source, source, good[0, :1], good, name())


CHECKS: list[Callable[[int, int], None]] = [there_and_back, combined, refusals, bad_offsets]


def check(rank: int, world: int) -> None:
    for function in CHECKS:
        function(rank, world)
