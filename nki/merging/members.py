"""Who takes part in a launch, and who has arrived where cores meet."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

from nki.merging.source import Source, name_of
from nki.recording import Event
from nki.tensor import NkiTensor

__all__ = ["Arrival", "Roster"]


class Roster(NamedTuple):
    """How many take part. Lanes number them: core after core, rank after rank.

    Attributes:
        cores: physical cores of each logical one.
        ranks: logical cores.
    """

    cores: int
    ranks: int

    @property
    def lanes(self) -> int:
        """Return how many take part."""
        return self.cores * self.ranks

    def rank(self, lane: int) -> int:
        """Return the rank of a participant."""
        return lane // self.cores

    def core(self, lane: int) -> int:
        """Return which physical core of its logical one a participant is."""
        return lane % self.cores

    def name(self, lane: int) -> str:
        """Return what messages call a participant."""
        return name_of(self.cores, self.ranks, lane)


class Arrival:
    """A participant at an instruction where it meets others.

    Attributes:
        source: the participant.
        event: the instruction.
    """

    def __init__(self, source: Source, event: Event) -> None:
        self.source = source
        self.event = event

    @property
    def name(self) -> str:
        """Name of the instruction."""
        return self.event.template.row.name

    @property
    def label(self) -> str:
        """How messages call it."""
        pipe = self.attributes.get("pipe_id")
        return self.name if pipe is None else f"{self.name} with pipe_id {pipe}"

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Its attributes."""
        return self.event.template.attributes

    @property
    def lane(self) -> int:
        """Number of the participant."""
        return self.source.lane

    @property
    def line(self) -> int:
        """Number of the user's line in the merged recording."""
        return self.source.line(self.event.location)

    @property
    def where(self) -> tuple[str, int]:
        """The user's line."""
        return self.source.where(self.event.location)

    @cached_property
    def operands(self) -> dict[str, list[NkiTensor]]:
        """Its tensors by name, one or several."""
        return self.source.operands(self.event)
