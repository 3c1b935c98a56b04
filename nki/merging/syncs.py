"""Where cores meet: `sendrecv`, `core_barrier` and the collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from nki.errors import NkiError
from nki.merging import collectives
from nki.merging.exchange import Assignment, Exchange
from nki.merging.members import Arrival, Roster
from nki.merging.writer import Writer
from nki.recording import Block

__all__ = ["SYNCS", "Sync"]


class Sync(Protocol):
    """The facts about an instruction at which cores meet that the merger needs."""

    def lanes(self, roster: Roster, arrival: Arrival) -> frozenset[int]:
        """Return who takes part, the one who arrives included."""

    def together(self, arrivals: Sequence[Arrival]) -> bool:
        """Return whether the events of all who take part belong together."""

    def check(self, roster: Roster, arrivals: Sequence[Arrival]) -> None:
        """Raise an error if the events do not fit each other."""

    def write(
        self, roster: Roster, arrivals: Sequence[Arrival], writer: Writer, block: Block
    ) -> None:
        """Append what happens, in terms of the executors."""


def _both_cores(roster: Roster, arrival: Arrival, cores: Sequence[int]) -> frozenset[int]:
    missing = [core for core in cores if core >= roster.cores]
    if missing:
        raise NkiError(
            "NKI302",
            f"{arrival.label} waits for core {missing[0]}, and the kernel runs on core 0 only",
            "launch it with kernel[2], or leave the instruction out where nl.num_programs() is 1",
            arrival.where,
        )
    base = roster.rank(arrival.lane) * roster.cores
    return frozenset({arrival.lane, *(base + core for core in cores)})


class _SendRecv:
    def lanes(self, roster: Roster, arrival: Arrival) -> frozenset[int]:
        ranks = arrival.attributes["send_to_rank"], arrival.attributes["recv_from_rank"]
        return _both_cores(roster, arrival, ranks)

    def together(self, arrivals: Sequence[Arrival]) -> bool:
        pipes = {(a.name, a.attributes.get("pipe_id")) for a in arrivals}
        return len(pipes) == 1

    def check(self, roster: Roster, arrivals: Sequence[Arrival]) -> None:
        by_core = {roster.core(arrival.lane): arrival for arrival in arrivals}
        for core, arrival in by_core.items():
            peer = arrival.attributes["recv_from_rank"]
            sender = by_core[peer]
            to = sender.attributes["send_to_rank"]
            if to != core:
                raise NkiError(
                    "NKI303",
                    f"core {core} receives from core {peer} in sendrecv with pipe_id "
                    f"{arrival.attributes['pipe_id']}, and core {peer} sends to core {to} at "
                    f"{sender.where[0]}:{sender.where[1]}",
                    "let the core that recv_from_rank names have this core as send_to_rank",
                    arrival.where,
                )
            dst, src = arrival.operands["dst"][0], sender.operands["src"][0]
            if (dst.shape, dst.dtype) != (src.shape, src.dtype):
                raise NkiError(
                    "NKI303",
                    f"core {core} receives {dst.dtype}{list(dst.shape)} in sendrecv, and core "
                    f"{peer} sends {src.dtype}{list(src.shape)} at "
                    f"{sender.where[0]}:{sender.where[1]}",
                    "exchange tensors of the same shape and data type",
                    arrival.where,
                )

    def write(
        self, roster: Roster, arrivals: Sequence[Arrival], writer: Writer, block: Block
    ) -> None:
        by_core = {roster.core(arrival.lane): arrival for arrival in arrivals}
        Exchange(writer, block).assign(
            [
                Assignment(
                    arrival.operands["dst"][0],
                    (by_core[arrival.attributes["recv_from_rank"]].operands["src"][0],),
                    arrival.lane,
                    arrival.line,
                )
                for arrival in arrivals
            ]
        )


class _Barrier:
    def lanes(self, roster: Roster, arrival: Arrival) -> frozenset[int]:
        return _both_cores(roster, arrival, arrival.attributes["cores"])

    def together(self, arrivals: Sequence[Arrival]) -> bool:
        return all(arrival.name == "core_barrier" for arrival in arrivals)

    def check(self, roster: Roster, arrivals: Sequence[Arrival]) -> None:
        del roster, arrivals

    def write(
        self, roster: Roster, arrivals: Sequence[Arrival], writer: Writer, block: Block
    ) -> None:
        del roster, arrivals, writer, block  # the order of the cores' segments is all


SYNCS: Mapping[str, Sync] = MappingProxyType(
    {
        "sendrecv": _SendRecv(),
        "core_barrier": _Barrier(),
        **{name: collectives.Collective(name) for name in collectives.EXPANSIONS},
    }
)
