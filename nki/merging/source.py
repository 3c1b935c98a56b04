"""One core's recording, as the merged one sees it: with numbers of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from nki.checks.flow import Ints, Leaf, leaf_roles, listed, starts
from nki.dtypes import info
from nki.isa.objects import VirtualRegister
from nki.memory import MemoryRegion, Storage
from nki.merging.writer import Writer
from nki.pattern import AccessPattern, Indirect
from nki.recorder import Recorder
from nki.recording import (
    Block,
    Event,
    Loop,
    Place,
    RegisterForm,
    Result,
    TileForm,
)
from nki.tensor import NkiTensor, tensor_of
from nki.trees import mapped

__all__ = ["Rewritten", "Source", "name_of"]


def name_of(cores: int, ranks: int, lane: int) -> str:
    """Return what messages call a participant of a launch."""
    rank, core = divmod(lane, cores)
    names = [f"core {core}"] if cores > 1 or ranks == 1 else []
    names += [f"rank {rank}"] if ranks > 1 else []
    return " of ".join(names)


def _at(form: TileForm, byte: int) -> AccessPattern:
    """Return the pattern of a form at a byte of its storage."""
    dtype, _, shape, strides, partition, _ = form.pattern
    offset = byte // info(dtype).itemsize
    # Without `_replace`, which takes five times as long: it is done for most instructions.
    return tuple.__new__(AccessPattern, (dtype, offset, shape, strides, partition, None))


class Rewritten:
    """The code of one block with the numbers of the merged recording.

    Attributes:
        block: as it was recorded.
        old: its code.
        code: the same with new numbers; those of loops stay what they were.
        at: where each event and each loop begins.
        numbers: the old number of the template there, -1 for loops.
    """

    def __init__(self, block: Block, code: Ints, at: Ints, numbers: Ints) -> None:
        self.block = block
        self.old = block.code
        self.code = code
        self.at = at
        self.numbers = numbers


class Source:
    """One participant.

    Attributes:
        recorder: who recorded it.
        lane: its number among all participants.
        storages: the merged recording's storages by number here.
        roles: of the leaves of each template.
    """

    def __init__(
        self, recorder: Recorder, writer: Writer, shared: Mapping[int, Storage], registers: int
    ) -> None:
        """Enter storages, templates and lines into the merged recording.

        Args:
            recorder: what recorded the participant.
            writer: the merged recording.
            shared: by id, for storages that are another core's too: the one that counts.
            registers: how many the participants before have.
        """
        recording = recorder.recording
        self.recorder = recorder
        self.recording = recording
        self.lane = recorder.lane
        self.storages = [shared.get(id(s), s) for s in recording.storages]
        self.registers = registers
        self._numbers = np.array([writer.forms.number(s) for s in self.storages], np.int64)
        self._lines = np.array([writer.line(where) for where in recording.locations], np.int64)
        self._templates = np.array([writer.adopt(t) for t in recording.templates], np.int64)
        self.roles: list[tuple[Leaf, ...]] = [leaf_roles(t) for t in recording.templates]
        self._words = [t.words for t in recording.templates]
        # Of each template the leaves in shared HBM, and which leaves they are.
        self._shared = [
            [
                (i, leaf, leaf.form)
                for i, leaf in enumerate(leaves)
                if isinstance(leaf.form, TileForm) and leaf.form.region is MemoryRegion.shared_hbm
            ]
            for leaves in self.roles
        ]
        kinds: dict[tuple[bool, ...], int] = {}
        # Templates by which of their words name a register: few kinds, so that whole blocks are
        # rewritten by a few operations on arrays.
        shapes = [tuple(isinstance(x.form, RegisterForm) for x in leaves) for leaves in self.roles]
        self._kind = np.array([kinds.setdefault(s, len(kinds)) for s in shapes], np.int64)
        self._kinds = list(kinds)

    def number(self, old: int) -> int:
        """Return the new number of a storage."""
        return int(self._numbers[old])

    def line(self, old: int) -> int:
        """Return the new number of a line."""
        return int(self._lines[old])

    def where(self, old: int) -> tuple[str, int]:
        """Return the user's line with a number of this recording."""
        return self.recording.locations[old]

    # --- code ----------------------------------------------------------------------------------

    def rewrite(self, block: Block) -> Rewritten:
        """Return a block with the numbers of the merged recording."""
        at = starts(block.code, self._words)
        code = np.array(block.code, np.int64)
        old = code[at]
        events = at[old >= 0]
        numbers = code[events]
        if len(events):
            kinds = self._kind[numbers]
            for kind, registers in enumerate(self._kinds):
                chosen = events[kinds == kind]
                for i, is_register in enumerate(registers):
                    words = chosen + 2 + 2 * i
                    if is_register:
                        code[words] += self.registers
                    else:
                        code[words] = self._numbers[code[words]]
            code[events] = self._templates[numbers]
            code[events + 1] = self._lines[code[events + 1]]
        return Rewritten(block, code, at, old)

    def whole(self, block: Block) -> Block:
        """Return a block, loops included, with the numbers of the merged recording."""
        made = Block()
        made.code.frombytes(self.rewrite(block).code.tobytes())
        made.loops = [self.loop(loop, self.whole(loop.body)) for loop in block.loops]
        return made

    def loop(self, loop: Loop, body: Block) -> Loop:
        """Return a loop with another body and the merged recording's registers."""
        return Loop(
            loop.kind,
            tuple(counter + self.registers for counter in loop.counters),
            self._bound(loop.lower),
            self._bound(loop.upper),
            loop.step,
            body,
            self.line(loop.location),
        )

    def _bound(self, bound: int | tuple[int]) -> int | tuple[int]:
        return bound if isinstance(bound, int) else (bound[0] + self.registers,)

    def event(self, code: Any, at: int) -> Event:
        """Return the event at a position of a block's old code."""
        template = self.recording.templates[code[at]]
        places = code[at + 2 : at + 2 + template.words]
        pairs = tuple(zip(places[::2], places[1::2], strict=True))
        return Event(template, code[at + 1], pairs)

    def shared_operands(self, code: Any, at: int) -> Iterator[tuple[Leaf, NkiTensor]]:
        """Iterate over the operands in shared HBM of the event at a position of old code."""
        number = code[at]
        for i, leaf, form in self._shared[number]:
            if form.indirect is None and not form.addressed:
                storage, byte = code[at + 2 + 2 * i], code[at + 3 + 2 * i]
                yield leaf, tensor_of(self.storages[storage], _at(form, byte))
            else:
                yield leaf, self.tensor(form, self.event(code, at).places[i:])

    @property
    def name(self) -> str:
        """Its name in messages."""
        return name_of(self.recorder.cores, self.recorder.ranks, self.lane)

    def touching_shared(self) -> Any:
        """Return for each template whether it has a tensor in shared HBM."""
        return np.array(
            [
                not template.hidden and bool(leaves)
                for template, leaves in zip(self.recording.templates, self._shared, strict=True)
            ],
            np.bool_,
        )

    # --- operands ------------------------------------------------------------------------------

    def tensor(self, form: TileForm, places: Sequence[Place]) -> NkiTensor:
        """Return the view that a form is at a place of this recording, of the merged storage."""
        number, byte = places[0]
        storage = self.storages[number]
        if form.addressed:
            row, byte = divmod(byte - storage.base, storage.pitch)
            byte += row * storage.row_bytes
        pattern = form.pattern._replace(offset=byte // info(form.dtype).itemsize)
        found = form.indirect
        if found is not None:
            index: Any
            if isinstance(found.source, RegisterForm):
                index = VirtualRegister(number=places[1][0] + self.registers)
            else:
                index = self.tensor(found.source, places[1:])
            indirect = Indirect(found.kind, index, found.stride, found.axis, found.bound)
            pattern = pattern._replace(indirect=indirect)
        return tensor_of(storage, pattern)

    def operands(self, event: Event) -> dict[str, list[NkiTensor]]:
        """Return the tensors of an event by name, one or several."""
        found: dict[str, list[NkiTensor]] = {}
        for name, form, places in event.operands():
            tensors = found[name] = []
            at = 0
            for item in listed(form):
                if isinstance(item, TileForm):
                    tensors.append(self.tensor(item, places[at:]))
                    at += 1 if item.indirect is None else 2
        return found

    def results(self, form: Any) -> Any:
        """Return what the kernel returns, with the storages of the merged recording."""
        return mapped(form, Result, lambda one: one._replace(storage=self.number(one.storage)))
