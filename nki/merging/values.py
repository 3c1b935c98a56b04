"""Which writes of the two cores of a logical core store the same: both often compute one thing.

Every event gets a number. Two events with one number do the same instruction to operands that hold
the same, so they write the same: the number stands for the instruction without its place in memory,
and the numbers of what was written to the memories that it reads. What a loop of the device writes
has no number, and neither has what another core sends.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from nki.checks.flow import Leaf, starts
from nki.isa.rows import random
from nki.isa.spec import Role
from nki.memory import MemoryRegion
from nki.merging.source import Source
from nki.recording import Block, RegisterForm, Template

__all__ = ["EventKey", "Values"]

EventKey = tuple[int, int]  # id of a block as it was recorded, and where in its code

_RANDOM = frozenset(row.name for row in random.ROWS)


class Values:
    """The numbers of the events of cores that share memory."""

    def __init__(self, sources: Sequence[Source], syncs: frozenset[str]) -> None:
        """Number all events.

        Args:
            sources: the cores.
            syncs: names of the instructions at which they meet.
        """
        self._numbers: dict[Hashable, int] = {}
        self._events: dict[EventKey, int | None] = {}
        self._order: dict[EventKey, int] = {}
        for source in sources:
            _Core(self, source, syncs).block(source.recording.body)

    def number(self, key: Hashable) -> int:
        """Return the number of something, always the same one."""
        return self._numbers.setdefault(key, len(self._numbers))

    def note(self, event: EventKey, number: int | None) -> None:
        """Remember the number of an event, None if nobody knows what it writes."""
        self._events[event] = number
        self._order[event] = len(self._order)

    def same(self, events: Sequence[EventKey]) -> bool:
        """Return whether events surely write the same."""
        found = {self._events[event] for event in events}
        return len(found) == 1 and None not in found

    def before(self, a: EventKey, b: EventKey) -> bool:
        """Return whether one event of a core comes before another one of it."""
        return self._order[a] < self._order[b]


class _Core:
    """Follows one core: what its memories, registers and engines hold, as numbers."""

    def __init__(self, values: Values, source: Source, syncs: frozenset[str]) -> None:
        self._values = values
        self._source = source
        self._syncs = syncs
        self._words = [template.words for template in source.recording.templates]
        self._signatures: dict[int, int] = {}
        self._memories: dict[int, int] = {}
        self._registers: dict[int, int] = {}
        self._state = values.number("state")
        self._epoch = 0  # how often the cores have met

    def block(self, block: Block, *, known: bool = True) -> None:
        """Number the events of a block.

        Args:
            block: as it was recorded.
            known: it runs once.
        """
        for at in starts(block.code, self._words).tolist():
            number = block.code[at]
            if number < 0:
                loop = block.loops[block.code[at + 1]]
                self._unknown(loop.body, loop.counters)
                self.block(loop.body, known=False)
                self._unknown(loop.body, loop.counters)
                continue
            found = self._event(block, at, number)
            self._values.note((id(block), at), found if known else None)

    def _leaves(self, block: Block, at: int, number: int) -> Iterator[tuple[Leaf, int, int]]:
        """Iterate over an event's leaves with their places."""
        for i, leaf in enumerate(self._source.roles[number]):
            yield leaf, block.code[at + 2 + 2 * i], block.code[at + 3 + 2 * i]

    def _event(self, block: Block, at: int, number: int) -> int:
        template = self._source.recording.templates[number]
        meets = template.row.name in self._syncs
        parts: list[Hashable] = [self._signature(number, template)]
        for leaf, place, byte in self._leaves(block, at, number):
            is_register = isinstance(leaf.form, RegisterForm)
            if leaf.reads or leaf.role is Role.READWRITE:
                parts.append(self._registers.get(place, 0) if is_register else self._held(place))
            parts.append(0 if is_register else byte)
        stateful = template.row.name in _RANDOM or any(
            name.startswith("reduce_") for name in template.row.names
        )
        if stateful:
            parts.append(self._state)
        made = self._values.number(tuple(parts))
        if stateful:
            self._state = made
        for leaf, place, byte in self._leaves(block, at, number):
            if not leaf.writes:
                continue
            if isinstance(leaf.form, RegisterForm):
                self._registers[place] = made
            else:
                # What is written of it, and what was there.
                key = ("written", self._held(place), made, leaf.name, leaf.form, byte)
                self._memories[place] = self._fresh() if meets else self._values.number(key)
        if meets:
            self._meet()
        return made

    def _signature(self, number: int, template: Template) -> int:
        found = self._signatures.get(number)
        if found is None:
            attributes = repr(sorted(template.attributes.items()))
            forms = tuple((name, repr(form)) for name, form in template.operands)
            key = (template.row.name, forms, attributes, template.accumulate, template.engine)
            found = self._signatures[number] = self._values.number(key)
        return found

    def _held(self, storage: int) -> int:
        """Return the number of what a memory holds."""
        found = self._memories.get(storage)
        if found is None:
            found = self._memories[storage] = self._values.number(self._first(storage))
        return found

    def _first(self, storage: int) -> Hashable:
        recording = self._source.recording
        made = recording.storages[storage]
        if storage in recording.constants:
            return "constant", bytes(made.bytes)
        if made.region is MemoryRegion.shared_hbm:
            return "shared", id(self._source.storages[storage]), self._epoch
        if made.address is not None:  # others may lie there
            return object()
        return "new", made.dtype, made.shape

    def _fresh(self) -> int:
        return self._values.number(object())

    def _meet(self) -> None:
        """Both cores see what either has written."""
        self._epoch += 1
        for storage in list(self._memories):
            if self._source.recording.storages[storage].region is MemoryRegion.shared_hbm:
                del self._memories[storage]

    def _unknown(self, block: Block, counters: Sequence[Any]) -> None:
        """Forget what a loop writes."""
        for counter in counters:
            self._registers[counter] = self._fresh()
        for at in starts(block.code, self._words).tolist():
            number = block.code[at]
            if number < 0:
                loop = block.loops[block.code[at + 1]]
                self._unknown(loop.body, loop.counters)
                continue
            for leaf, place, _ in self._leaves(block, at, number):
                if leaf.writes and isinstance(leaf.form, RegisterForm):
                    self._registers[place] = self._fresh()
                elif leaf.writes:
                    self._memories[place] = self._fresh()
        self._state = self._fresh()
