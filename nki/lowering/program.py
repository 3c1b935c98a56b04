"""From a recording to a program: events become instructions of tapes, loops become steps."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from neuronxcc.codegen import build
from neuronxcc.codegen.loop import Access, Dim, Kernel, Slot, Store
from neuronxcc.ir.dtypes import DType
from neuronxcc.program.memory import Register, View
from neuronxcc.program.program import AnyStep, ForStep, Program, WhileStep
from neuronxcc.program.steps.printing import PrintStep
from neuronxcc.program.tape_functions import TapeLoop
from neuronxcc.program.tape_writer import TapeWriter
from nki.checks.flow import Ints, starts
from nki.lowering.groups import Group, Touch
from nki.lowering.implement import work_of
from nki.lowering.memory import Memories
from nki.lowering.overlap import Overlaps
from nki.lowering.values import stored_type
from nki.lowering.work import (
    Action,
    Constant,
    Leaf,
    Pointer,
    Print,
    Reach,
    Scratch,
    State,
    Variant,
    Work,
)
from nki.recording import Block, Loop, Recording, Template
from nki.returned import outputs_of

__all__ = ["lower"]

_REGISTER = -1  # stands for the register file among the memories of an event


def lower(recording: Recording) -> Program:
    """Return the program of a recording.

    It takes all array arguments, contiguous; those that the kernel writes are changed in place. Its
    results are whole storages: see `nki.returned.outputs_of`.
    """
    return _Lowering(recording).program()


class _Plan:
    """A template with what is needed of it for every event."""

    def __init__(self, template: Template) -> None:
        self.template = template
        self.overlaps = Overlaps(template)
        self.works: dict[Variant, _Prepared] = {}
        # By id, which is sooner found than what it consists of; `overlaps` keeps its variants.
        self.known: dict[int, _Prepared] = {}


class _Slot(NamedTuple):
    """A slot of an action, with its pointer resolved as far as the template knows it."""

    kind: type[Leaf | Scratch | Constant | State]
    number: int  # of the leaf or scratch memory, else the buffer
    offset: int
    low: int
    high: int
    advance: int
    written: bool


class _Prepared(NamedTuple):
    """A work with the slots of its actions."""

    work: Work
    actions: list[tuple[Action | Print, list[_Slot]]]


class _Lowering:
    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        storages = outputs_of(recording)
        inputs = set(recording.inputs)
        self.memories = Memories(recording, [n for n in storages if n not in inputs])
        self._results = storages
        self._plans: list[_Plan | None] = [None] * len(recording.templates)
        self._words = [template.words for template in recording.templates]
        self._locations = [f"{file}:{line}" for file, line in recording.locations]
        self._buffers: dict[int, int] = {}
        self._ends = self._last_uses()
        self._group = 0  # number of the current group, for lifetimes
        self._depth = 0
        self._taken: set[int] = set()

    # --- lifetimes -------------------------------------------------------------------------------

    def _last_uses(self) -> dict[int, list[int]]:
        """For every outermost item the storages that nothing uses after it."""
        last = np.full(len(self.recording.storages), -1, np.int64)
        for items, storages in self._uses(self.recording.body):
            np.maximum.at(last, storages, items[:, None])
        ends: dict[int, list[int]] = {}
        for storage in np.flatnonzero(last >= 0).tolist():
            ends.setdefault(int(last[storage]), []).append(storage)
        return ends

    def _uses(self, block: Block) -> Iterator[tuple[Ints, Ints]]:
        """Iterate over (numbers of items of a block, a row of the storages that each uses)."""
        at = starts(block.code, self._words)
        if not len(at):
            return
        code = np.frombuffer(block.code, np.int64)
        numbers = code[at]
        for template in np.unique(numbers).tolist():
            items = np.flatnonzero(numbers == template)
            if template >= 0:
                words = np.array(self._plan(template).overlaps.storages, np.int64)
                yield items, code[at[items][:, None] + 2 + words]
                continue
            for item in items.tolist():
                loop = block.loops[int(code[at[item] + 1])]
                yield np.array([item]), self._used(loop.body)[None]

    def _used(self, block: Block) -> Ints:
        """Return the storages that a block uses."""
        found = [storages.reshape(-1) for _, storages in self._uses(block)]
        return np.unique(np.concatenate([np.zeros(0, np.int64), *found]))

    def _plan(self, number: int) -> _Plan:
        plan = self._plans[number]
        if plan is None:
            plan = self._plans[number] = _Plan(self.recording.templates[number])
        return plan

    def _items(self, block: Block) -> Iterator[tuple[int, array[int], _Plan | None]]:
        """Iterate over the items of a block: position, code, and the plan, None for a loop."""
        code = block.code
        for at in starts(code, self._words).tolist():
            number = code[at]
            yield at, code, None if number < 0 else self._plan(number)

    # --- the program -----------------------------------------------------------------------------

    def program(self) -> Program:
        steps = self._block(self.recording.body)
        start = _Tape(self)
        for buffer, size, at in self.memories.initial():
            start.copy(buffer, size, at)
        steps = [*start.steps(), *steps]
        results = tuple(self.memories.storage(number) for number in self._results)
        self.use(results)
        scratch = self.memories.place()
        return Program(
            self.recording.name,
            tuple(self.memories.buffers),
            tuple(steps),
            results,
            scratch,
        )

    def _block(self, block: Block) -> list[AnyStep]:
        steps: list[AnyStep] = []
        tape = _Tape(self)
        outermost = self._depth == 0
        for number, (at, code, plan) in enumerate(self._items(block)):
            if plan is None:
                steps.extend(tape.steps())
                loop = block.loops[code[at + 1]]
                if outermost:
                    for storage in self._used(loop.body).tolist():
                        # Not memory that an instruction of the loop has taken for itself before,
                        # which takes it again in the next iteration.
                        self._buffer(storage)
                steps.append(self._loop(loop))
            else:
                words = code[at + 2 : at + 2 + plan.template.words]
                self._event(plan, code[at + 1], words, tape, steps)
            if outermost:
                for storage in self._ends.get(number, ()):
                    self.memories.release(storage)
        steps.extend(tape.steps())
        return steps

    def _loop(self, loop: Loop) -> AnyStep:
        file = self.memories.registers()
        first = self._group = self._group + 1
        self._depth += 1
        body = tuple(self._block(loop.body))
        self._depth -= 1
        if self._depth == 0:
            # Whatever a loop uses is alive in all of it.
            self._group += 1
            for group in (first, self._group):
                self.memories.used(self._taken, group)
            self._taken.clear()
        counters = tuple(Register(file, counter) for counter in loop.counters)
        ends = [
            end if isinstance(end, int) else Register(file, end[0])
            for end in (loop.lower, loop.upper)
        ]
        if loop.kind == "for":
            return ForStep(counters, ends[0], ends[1], loop.step, body)
        assert isinstance(ends[0], Register)
        assert isinstance(ends[1], Register)
        return WhileStep(counters, ends[0], ends[1], body)

    # --- events ----------------------------------------------------------------------------------

    def _buffer(self, storage: int) -> int:
        found = self._buffers.get(storage)
        if found is None:
            found = self._buffers[storage] = self.memories.storage(storage)
        return found

    def _event(
        self, plan: _Plan, location: int, words: array[int], tape: _Tape, steps: list[AnyStep]
    ) -> None:
        memories, known = self.memories, self._buffers
        buffers = [_REGISTER] * (len(words) // 2)
        for word in plan.overlaps.storages:
            number = known.get(words[word])
            buffers[word // 2] = self._buffer(words[word]) if number is None else number
        variant = plan.overlaps.variant(buffers, words, self.recording.storages)
        prepared = plan.known.get(id(variant))
        if prepared is None:
            prepared = self._prepared(plan, variant)
        kinds = prepared.work.scratch
        scratch = [memories.take(*kind) for kind in kinds]
        for action, slots in prepared.actions:
            places = self._resolve(slots, words, buffers, scratch)
            if isinstance(action, Print):
                steps.extend(tape.steps())
                steps.append(self._print(action, places, self._locations[location]))
            else:
                tape.add(action, places, slots, self._locations[location])
        if scratch:
            for buffer, kind in zip(scratch, kinds, strict=True):
                memories.give(buffer, *kind)

    def _prepared(self, plan: _Plan, variant: Variant) -> _Prepared:
        prepared = plan.works.get(variant)
        if prepared is None:
            prepared = plan.works[variant] = self._prepare(plan.template, variant)
        plan.known[id(variant)] = prepared
        return prepared

    def _resolve(
        self, slots: list[_Slot], words: array[int], buffers: list[int], scratch: list[int]
    ) -> list[int]:
        """Return buffer and byte of every slot, flat."""
        places: list[int] = []
        for kind, number, offset, _, _, _, _ in slots:
            if kind is Leaf:
                buffer, byte = buffers[number], words[2 * number + 1] + offset
                if buffer == _REGISTER:
                    buffer, byte = self.memories.registers(), 4 * words[2 * number]
            elif kind is Scratch:
                buffer, byte = scratch[number], offset
            else:
                buffer, byte = number, offset
            places += (buffer, byte)
        return places

    def _prepare(self, template: Template, variant: Variant) -> _Prepared:
        work = work_of(template, variant)
        actions: list[tuple[Action | Print, list[_Slot]]] = []
        for action in work.actions:
            if isinstance(action, Print):
                nothing = Reach(0, 0, written=False)
                slots = [self._slot(action.operand.pointer, nothing, 0, template)]
            else:
                advances = getattr(action.function, "advance", ()) or (0,) * len(action.pointers)
                slots = [
                    self._slot(pointer, reach, advance, template)
                    for pointer, reach, advance in zip(
                        action.pointers, action.reaches, advances, strict=True
                    )
                ]
            actions.append((action, slots))
        return _Prepared(work, actions)

    def _slot(self, pointer: Pointer, reach: Reach, advance: int, template: Template) -> _Slot:
        offset = pointer.offset
        if isinstance(pointer, Leaf | Scratch):
            number = pointer.number
        elif isinstance(pointer, Constant):
            number, offset = 0, self.memories.constant(pointer.data) + offset
        else:
            number = self.memories.state(template.core, pointer)
        return _Slot(type(pointer), number, offset, reach.low, reach.high, advance, reach.written)

    def _print(self, action: Print, places: list[int], location: str) -> PrintStep:
        operand, (buffer, byte) = action.operand, places
        self.next_group()
        self.use((buffer,))
        assert byte % operand.itemsize == 0
        dtype = stored_type(operand.dtype)
        view = View(buffer, dtype, operand.shape, operand.strides, byte // operand.itemsize)
        return PrintStep(action.prefix, view, location)

    def use(self, buffers: Iterable[int]) -> None:
        """Note that the current group uses buffers."""
        self.memories.used(buffers, self._group)
        if self._depth:
            self._taken.update(buffers)

    def next_group(self) -> None:
        """Begin another group."""
        self._group += 1


class _Tape:
    """Instructions between two other steps."""

    def __init__(self, lowering: _Lowering) -> None:
        self._lowering = lowering
        self._writer = TapeWriter()
        self._group: Group | None = None
        self._numbers: dict[int, tuple[Action, int]] = {}

    def steps(self) -> list[AnyStep]:
        """Return the tape, if anything is on it, and begin another one."""
        self._group = None
        if not len(self._writer):
            return []
        step = self._writer.step()
        self._writer, self._numbers = TapeWriter(), {}
        return [step]

    def add(self, action: Action, places: list[int], slots: Iterable[_Slot], location: str) -> None:
        """Append an instruction with buffer and byte of its slots, flat."""
        chunks = action.chunks
        # What is touched matters only where chunks may meet.
        touches = _touches(places, slots) if chunks > 1 else ()
        group = self._group
        if group is None or not group.takes(touches, chunks):
            self._lowering.next_group()
            group = self._group = Group(chunks)
            self._writer.group(chunks)
        group.add(touches)
        self._lowering.use(places[::2])
        known = self._numbers.get(id(action))
        if known is None:
            number = self._writer.function(action.function)
            known = self._numbers[id(action)] = (action, number)
        self._writer.add(known[1], self._writer.location(location), places)

    def copy(self, buffer: int, size: int, at: int) -> None:
        """Append a copy of bytes of buffer 0 to the beginning of another one."""
        self.add(_bytes_copy(size), [buffer, 0, 0, at], (), "")


def _touches(places: list[int], slots: Iterable[_Slot]) -> list[Touch]:
    pairs = iter(places)
    return [
        (buffer, byte + slot.low, byte + slot.high, slot.advance, slot.written)
        for slot, buffer, byte in zip(slots, pairs, pairs, strict=True)
        if buffer  # 0 is constant
    ]


def _bytes_copy(size: int) -> Action:
    unit = DType.U32 if size % 4 == 0 else DType.U8
    count = size // unit.itemsize
    store = Store(Access(0, (1,)), build.load(unit, 1, (1,)))
    kernel = Kernel("nki_initial", (Dim(count),), (Slot(unit), Slot(unit)), (store,))
    reaches = (Reach(0, size, written=True), Reach(0, size, written=False))
    return Action(TapeLoop(kernel), (), reaches, 0)
