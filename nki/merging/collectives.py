"""Collectives as copies and sums.

Ranks are taken in the order of their list in the replica group, sums too: the result does not
depend on who arrives first. In a logical core of two, each physical core takes part with its own
tensors, together with the same core of the other ranks; where both name the same tensors, which
lie in shared HBM then, that happens once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from nki.errors import NkiError
from nki.merging.exchange import Assignment, Exchange
from nki.merging.members import Arrival, Roster
from nki.merging.writer import Writer
from nki.recording import Block
from nki.tensor import NkiTensor

__all__ = ["EXPANSIONS", "Collective"]

Members = Sequence[Arrival]
Expand = Callable[[Exchange, Members], None]

# What ranks may have of their own.
_OWN = frozenset({"priority", "name"})


def _part(tensor: NkiTensor, dim: int, i: int, n: int) -> NkiTensor:
    """Return part i of n along a dimension."""
    size = tensor.shape[dim] // n
    return tensor[(*[slice(None)] * dim, slice(i * size, (i + 1) * size))]


def _all_reduce(exchange: Exchange, members: Members) -> None:
    first, op = members[0], members[0].attributes["op"]
    sums: list[Assignment] = []
    copies: list[Assignment] = []
    for k, dst in enumerate(first.operands["dsts"]):
        srcs = tuple(member.operands["srcs"][k] for member in members)
        sums.append(Assignment(dst, srcs, first.lane, first.line, op))
        copies += [
            Assignment(member.operands["dsts"][k], (dst,), member.lane, member.line)
            for member in members[1:]
        ]
    exchange.assign(sums)
    exchange.assign(copies)


def _all_gather(exchange: Exchange, members: Members) -> None:
    dim, n = members[0].attributes["collective_dim"], len(members)
    assignments: list[Assignment] = []
    for member in members:
        for k, dst in enumerate(member.operands["dsts"]):
            for i, sender in enumerate(members):
                srcs = (sender.operands["srcs"][k],)
                part = _part(dst, dim, i, n)
                assignments.append(Assignment(part, srcs, member.lane, member.line))
    exchange.assign(assignments)


def _reduce_scatter(exchange: Exchange, members: Members) -> None:
    dim, n = members[0].attributes["collective_dim"], len(members)
    op = members[0].attributes["op"]
    assignments: list[Assignment] = []
    for i, member in enumerate(members):
        for k, dst in enumerate(member.operands["dsts"]):
            srcs = tuple(_part(other.operands["srcs"][k], dim, i, n) for other in members)
            assignments.append(Assignment(dst, srcs, member.lane, member.line, op))
    exchange.assign(assignments)


def _all_to_all(exchange: Exchange, members: Members) -> None:
    dim, n = members[0].attributes["collective_dim"], len(members)
    exchange.assign(
        [
            Assignment(
                _part(dst, dim, i, n),
                (_part(sender.operands["srcs"][k], dim, r, n),),
                member.lane,
                member.line,
            )
            for r, member in enumerate(members)
            for k, dst in enumerate(member.operands["dsts"])
            for i, sender in enumerate(members)
        ]
    )


def _permute(exchange: Exchange, members: Members) -> None:
    by_rank = {member.source.recorder.rank: member for member in members}
    assignments: list[Assignment] = []
    for source, target in members[0].attributes["source_target_pairs"]:
        if source in by_rank and target in by_rank:
            src, to = by_rank[source].operands["srcs"][0], by_rank[target]
            assignments.append(Assignment(to.operands["dsts"][0], (src,), to.lane, to.line))
    exchange.assign(assignments)


def _ring(*sources: str) -> Expand:
    """Make the expansion of what every rank sends to its successor."""

    def expand(exchange: Exchange, members: Members) -> None:
        assignments: list[Assignment] = []
        for i, member in enumerate(members):
            sender = members[i - 1]
            for channel, dst in enumerate(member.operands["dsts_by_channel"]):
                srcs = tuple(sender.operands[name][channel] for name in sources)
                op = member.attributes.get("op", "")
                assignments.append(Assignment(dst, srcs, member.lane, member.line, op))
        exchange.assign(assignments)

    return expand


def _entry(member: Arrival, row: int, column: int) -> NkiTensor:
    """Return one element of a metadata tensor, which in SBUF has a partition dimension."""
    tensor = member.operands["metadata_tensor"][0]
    index = (slice(row, row + 1), slice(column, column + 1))
    return tensor[(slice(0, 1), *index)] if tensor.ndim == 3 else tensor[index]


def _counted(*, each: bool) -> Expand:
    """Make the expansion of chunks whose sizes are known while the kernel runs.

    Args:
        each: a rank sends different chunks to each of the others; else all get the same one.
    """

    def expand(exchange: Exchange, members: Members) -> None:
        n = len(members)
        for member in members:
            dst = member.operands["dsts"][0]
            slot = dst.size // n
            if any(dst.storage is other.operands["srcs"][0].storage for other in members):
                members = [_copied(exchange, other) for other in members]
                break
        for r, member in enumerate(members):
            dst = member.operands["dsts"][0]
            slot = dst.size // n
            displaced = member.attributes["has_rdispls"]
            received: list[Assignment] = []
            for i, sender in enumerate(members):
                column = r if each else 0
                count = _entry(sender, 0, column)
                to: Any = _entry(member, 3, i) if displaced else slot * i
                chunk = {
                    "dst": dst,
                    "src": sender.operands["srcs"][0],
                    "count": count,
                    "src_at": _entry(sender, 1, column),
                    "dst_at": to,
                }
                receipt = Assignment(_entry(member, 2, i), (count,), member.lane, member.line)
                most = dst.size if displaced else slot
                exchange.emit("counted_copy", chunk, {"most": most}, receipt)
                received.append(receipt)
            if not member.attributes["recv_counts_known"]:
                exchange.assign(received)

    return expand


def _copied(exchange: Exchange, member: Arrival) -> Arrival:
    """Return an arrival whose source is a copy, for destinations that overlap sources."""
    made = Arrival(member.source, member.event)
    src = exchange.snapshot(member.operands["srcs"][0], member.lane, member.line)
    made.operands = {**member.operands, "srcs": [src]}
    return made


EXPANSIONS: Mapping[str, Expand] = MappingProxyType(
    {
        "all_reduce": _all_reduce,
        "all_gather": _all_gather,
        "all_gather_v": _counted(each=False),
        "reduce_scatter": _reduce_scatter,
        "all_to_all": _all_to_all,
        "all_to_all_v": _counted(each=True),
        "collective_permute": _permute,
        "collective_permute_implicit": _ring("srcs_by_channel"),
        "collective_permute_implicit_reduce": _ring("srcs0_by_channel", "srcs1_by_channel"),
    }
)


class Collective:
    """A collective as the merger sees it; see `nki.merging.syncs.Sync`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def lanes(self, roster: Roster, arrival: Arrival) -> frozenset[int]:
        """Return all cores of all ranks that take part."""
        own, ranks = arrival.source.recorder.rank, set(_ranks(arrival))
        if own not in ranks:  # of a permutation: nothing to do and nobody to wait for
            ranks = {own}
        return frozenset(r * roster.cores + core for r in ranks for core in range(roster.cores))

    def together(self, arrivals: Sequence[Arrival]) -> bool:
        """Return whether all are at the same collective."""
        return all(arrival.name == self._name for arrival in arrivals)

    def check(self, roster: Roster, arrivals: Sequence[Arrival]) -> None:
        """Check that all pass the same attributes, and tensors of the same shapes and types."""
        first = arrivals[0]
        ours = _signature(first)
        for arrival in arrivals[1:]:
            theirs = _signature(arrival)
            for name, value in ours.items():
                if theirs[name] != value:
                    file, line = first.where
                    raise NkiError(
                        "NKI319",
                        f"{self._name} {name} is {theirs[name]} on rank "
                        f"{roster.rank(arrival.lane)}, and {value} on rank "
                        f"{roster.rank(first.lane)} at {file}:{line}",
                        "let all ranks that take part pass the same",
                        arrival.where,
                    )

    def write(
        self, roster: Roster, arrivals: Sequence[Arrival], writer: Writer, block: Block
    ) -> None:
        """Append the copies and sums."""
        order = {rank: i for i, rank in enumerate(_ranks(arrivals[0]))}
        done: list[Any] = []
        for core in range(roster.cores):
            members = [
                a for a in arrivals if roster.core(a.lane) == core and roster.rank(a.lane) in order
            ]
            members.sort(key=lambda a: order[roster.rank(a.lane)])
            places = [_places(member) for member in members]
            if members and places not in done:
                done.append(places)
                EXPANSIONS[self._name](Exchange(writer, block), members)


def _ranks(arrival: Arrival) -> Sequence[int]:
    """Return who takes part, in the order in which they are taken."""
    attributes = arrival.attributes
    if "source_target_pairs" in attributes:
        pairs = attributes["source_target_pairs"]
        return sorted({rank for pair in pairs for rank in pair})
    own = arrival.source.recorder.rank
    found: Sequence[int] = next(ranks for ranks in attributes["replica_group"] if own in ranks)
    return found


def _signature(arrival: Arrival) -> dict[str, Any]:
    found = {k: v for k, v in arrival.attributes.items() if k not in _OWN}
    for name, tensors in arrival.operands.items():
        found[name] = [f"{t.dtype}{list(t.shape)}" for t in tensors]
    return found


def _places(arrival: Arrival) -> Any:
    return {
        name: [(id(t.storage), t.pattern) for t in tensors]
        for name, tensors in arrival.operands.items()
    }
