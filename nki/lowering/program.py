"""From a recording to a program: events become instructions of tapes, loops become steps."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from neuronxcc.codegen import build
from neuronxcc.codegen.loop import Access, Dim, Kernel, Slot, Store
from neuronxcc.ir.dtypes import DType
from neuronxcc.neff.program import ForStep, PrintStep, Program, Register, Step, View, WhileStep
from neuronxcc.neff.tape import TapeLoop, TapeWriter
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
        self._locations = [f"{file}:{line}" for file, line in recording.locations]
        self._buffers: dict[int, int] = {}
        self._ends = self._last_uses()
        self._group = 0  # number of the current group, for lifetimes
        self._depth = 0
        self._taken: set[int] = set()

    # --- lifetimes -------------------------------------------------------------------------------

    def _last_uses(self) -> dict[int, list[int]]:
        """For every outermost item the storages that nothing uses after it."""
        last: dict[int, int] = {}
        self._uses(self.recording.body, last, None)
        ends: dict[int, list[int]] = {}
        for storage, number in last.items():
            ends.setdefault(number, []).append(storage)
        return ends

    def _uses(self, block: Block, last: dict[int, int], item: int | None) -> None:
        """Note for every storage that a block uses the number of the item, or of its item."""
        number = -1
        for at, code, plan in self._items(block):
            number += 1
            place = number if item is None else item
            if plan is None:
                self._uses(block.loops[code[at + 1]].body, last, place)
            else:
                for word in plan.overlaps.storages:
                    last[code[at + 2 + word]] = place

    def _items(self, block: Block) -> Iterator[tuple[int, array[int], _Plan | None]]:
        """Iterate over the items of a block: position, code, and the plan, None for a loop."""
        code, at, end = block.code, 0, len(block.code)
        while at < end:
            number = code[at]
            if number < 0:
                yield at, code, None
                at += 2
                continue
            plan = self._plans[number]
            if plan is None:
                plan = self._plans[number] = _Plan(self.recording.templates[number])
            yield at, code, plan
            at += 2 + plan.template.words

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

    def _block(self, block: Block) -> list[Step]:
        steps: list[Step] = []
        tape = _Tape(self)
        outermost = self._depth == 0
        for number, (at, code, plan) in enumerate(self._items(block)):
            if plan is None:
                steps.extend(tape.steps())
                loop = block.loops[code[at + 1]]
                if outermost:
                    used: dict[int, int] = {}
                    self._uses(loop.body, used, 0)
                    for storage in used:
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

    def _loop(self, loop: Loop) -> Step:
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
        self, plan: _Plan, location: int, words: array[int], tape: _Tape, steps: list[Step]
    ) -> None:
        memories = self.memories
        buffers = [_REGISTER] * (len(words) // 2)
        for word in plan.overlaps.storages:
            buffers[word // 2] = self._buffer(words[word])
        variant = plan.overlaps.variant(buffers, words, self.recording.storages)
        prepared = plan.works.get(variant)
        if prepared is None:
            prepared = plan.works[variant] = self._prepare(plan.template, variant)
        kinds = prepared.work.scratch
        scratch = [memories.take(*kind) for kind in kinds]
        for action, slots in prepared.actions:
            places, touches = self._resolve(slots, words, buffers, scratch)
            if isinstance(action, Print):
                steps.extend(tape.steps())
                steps.append(self._print(action, places, self._locations[location]))
            else:
                tape.add(action, places, touches, self._locations[location])
        for buffer, kind in zip(scratch, kinds, strict=True):
            memories.give(buffer, *kind)

    def _resolve(
        self, slots: list[_Slot], words: array[int], buffers: list[int], scratch: list[int]
    ) -> tuple[list[int], list[Touch]]:
        """Return buffer and byte of every slot, flat, and what is touched there."""
        places: list[int] = []
        touches: list[Touch] = []
        for kind, number, offset, low, high, advance, written in slots:
            if kind is Leaf:
                buffer, byte = buffers[number], words[2 * number + 1] + offset
                if buffer == _REGISTER:
                    buffer, byte = self.memories.registers(), 4 * words[2 * number]
            elif kind is Scratch:
                buffer, byte = scratch[number], offset
            else:
                buffer, byte = number, offset
            places += (buffer, byte)
            if buffer:  # buffer 0 is constant
                touches.append((buffer, byte + low, byte + high, advance, written))
        return places, touches

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

    def steps(self) -> list[Step]:
        """Return the tape, if anything is on it, and begin another one."""
        self._end()
        if not len(self._writer):
            return []
        step = self._writer.step()
        self._writer, self._numbers = TapeWriter(), {}
        return [step]

    def _end(self) -> None:
        if self._group is not None:
            self._lowering.use(self._group.buffers)
            self._group = None

    def add(self, action: Action, places: list[int], touches: list[Touch], location: str) -> None:
        """Append an instruction."""
        chunks = action.chunks
        if self._group is None or not self._group.takes(touches, chunks):
            self._end()
            self._lowering.next_group()
            self._group = Group(chunks)
            self._writer.group(chunks)
        self._group.add(touches)
        known = self._numbers.get(id(action))
        if known is None:
            number = self._writer.function(action.function)
            known = self._numbers[id(action)] = (action, number)
        self._writer.add(known[1], self._writer.location(location), places)

    def copy(self, buffer: int, size: int, at: int) -> None:
        """Append a copy of bytes of buffer 0 to the beginning of another one."""
        self.add(_bytes_copy(size), [buffer, 0, 0, at], [(buffer, 0, size, 0, True)], "")


def _bytes_copy(size: int) -> Action:
    unit = DType.U32 if size % 4 == 0 else DType.U8
    count = size // unit.itemsize
    store = Store(Access(0, (1,)), build.load(unit, 1, (1,)))
    kernel = Kernel("nki_initial", (Dim(count),), (Slot(unit), Slot(unit)), (store,))
    reaches = (Reach(0, size, written=True), Reach(0, size, written=False))
    return Action(TapeLoop(kernel), (), reaches, 0)
