"""From a recording to a program: events become instructions of tapes, loops become steps."""

from __future__ import annotations

from collections.abc import Iterator

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
from nki.recording import Block, Event, Loop, Recording, RegisterForm, Template
from nki.returned import outputs_of

__all__ = ["lower"]

_REGISTER = -1  # stands for the register file among the memories of an event


def lower(recording: Recording) -> Program:
    """Return the program of a recording.

    It takes all array arguments, contiguous; those that the kernel writes are changed in place. Its
    results are whole storages: see `nki.returned.outputs_of`.
    """
    return _Lowering(recording).program()


class _Lowering:
    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        storages = outputs_of(recording)
        self.memories = Memories(recording, storages)
        self._results = storages
        self._overlaps: dict[int, Overlaps] = {}
        self._works: dict[tuple[int, Variant], Work] = {}
        self._locations = [f"{file}:{line}" for file, line in recording.locations]
        self._last = self._last_uses()
        self._group = 0  # number of the current group, for lifetimes
        self._depth = 0
        self._taken: list[int] = []

    # --- lifetimes ------------------------------------------------------------------------------

    def _last_uses(self) -> dict[int, int]:
        """For every storage the number of the outermost item that uses it last."""
        found: dict[int, int] = {}
        for number, item in enumerate(self.recording.items()):
            for storage in self._used(item):
                found[storage] = number
        return found

    def _used(self, item: Event | Loop) -> Iterator[int]:
        if isinstance(item, Event):
            for form, (number, _) in zip(self._look(item.template).forms, item.places, strict=True):
                if not isinstance(form, RegisterForm):
                    yield number
            return
        for inner in item.body.items(self.recording.templates):
            yield from self._used(inner)

    # --- the program ----------------------------------------------------------------------------

    def program(self) -> Program:
        steps = self._block(self.recording.body)
        start = _Tape(self)
        for buffer, size, at in self.memories.initial():
            start.copy(buffer, size, at)
        steps = [*start.steps(), *steps]
        results = tuple(self.memories.storage(number) for number in self._results)
        self.memories.used(results, self._group)
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
        for number, item in enumerate(block.items(self.recording.templates)):
            used = set(self._used(item)) if outermost else set()
            if isinstance(item, Event):
                self._event(item, tape, steps)
            else:
                steps.extend(tape.steps())
                for storage in sorted(used):
                    # Before any scratch memory of the loop, which the next iteration writes again.
                    self.memories.storage(storage)
                steps.append(self._loop(item))
            for storage in used:
                if self._last[storage] == number:
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
            touched = set(self._taken)
            self._taken.clear()
            self._group += 1
            for group in (first, self._group):
                self.memories.used(touched, group)
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

    # --- events ---------------------------------------------------------------------------------

    def _event(self, event: Event, tape: _Tape, steps: list[Step]) -> None:
        template = event.template
        overlaps = self._look(template)
        forms, memories = overlaps.forms, self.memories
        buffers = [
            _REGISTER if isinstance(form, RegisterForm) else memories.storage(place[0])
            for form, place in zip(forms, event.places, strict=True)
        ]
        variant = overlaps.variant(buffers, event.places, self.recording.storages)
        work = self._work(template, variant)
        scratch = [memories.take(*kind) for kind in work.scratch]
        leaves = []
        for buffer, (number, byte) in zip(buffers, event.places, strict=True):
            if buffer == _REGISTER:
                leaves.append((memories.registers(), 4 * number))
            else:
                leaves.append((buffer, byte))
        location = self._locations[event.location]
        for action in work.actions:
            if isinstance(action, Print):
                steps.extend(tape.steps())
                steps.append(self._print(action, leaves, scratch, template, location))
            else:
                tape.add(action, self._resolve(action, leaves, scratch, template), location)
        for buffer, kind in zip(scratch, work.scratch, strict=True):
            memories.give(buffer, *kind)

    def _look(self, template: Template) -> Overlaps:
        found = self._overlaps.get(id(template))
        if found is None:
            found = self._overlaps[id(template)] = Overlaps(template)
        return found

    def _work(self, template: Template, variant: Variant) -> Work:
        key = (id(template), variant)
        found = self._works.get(key)
        if found is None:
            found = self._works[key] = work_of(template, variant)
        return found

    def _resolve(
        self,
        action: Action,
        leaves: list[tuple[int, int]],
        scratch: list[int],
        template: Template,
    ) -> list[tuple[int, int]]:
        return [self._place(pointer, leaves, scratch, template) for pointer in action.pointers]

    def _place(
        self,
        pointer: Pointer,
        leaves: list[tuple[int, int]],
        scratch: list[int],
        template: Template,
    ) -> tuple[int, int]:
        if isinstance(pointer, Leaf):
            buffer, byte = leaves[pointer.number]
            return buffer, byte + pointer.offset
        if isinstance(pointer, Constant):
            return 0, self.memories.constant(pointer.data) + pointer.offset
        if isinstance(pointer, Scratch):
            return scratch[pointer.number], pointer.offset
        assert isinstance(pointer, State)
        return self.memories.state(template.core, pointer), pointer.offset

    def _print(
        self,
        action: Print,
        leaves: list[tuple[int, int]],
        scratch: list[int],
        template: Template,
        location: str,
    ) -> PrintStep:
        operand = action.operand
        buffer, byte = self._place(operand.pointer, leaves, scratch, template)
        self._group += 1
        self.use((buffer,))
        assert byte % operand.itemsize == 0
        dtype = stored_type(operand.dtype)
        view = View(buffer, dtype, operand.shape, operand.strides, byte // operand.itemsize)
        return PrintStep(action.prefix, view, location)

    def use(self, buffers: tuple[int, ...]) -> None:
        """Note that the current group uses buffers."""
        self.memories.used(buffers, self._group)
        if self._depth:
            self._taken.extend(buffers)

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
        if not len(self._writer):
            return []
        step = self._writer.step()
        self._writer, self._group, self._numbers = TapeWriter(), None, {}
        return [step]

    def add(self, action: Action, places: list[tuple[int, int]], location: str) -> None:
        """Append an instruction."""
        touches = []
        advances = getattr(action.function, "advance", ()) or (0,) * len(places)
        for (buffer, byte), reach, advance in zip(places, action.reaches, advances, strict=True):
            if buffer:  # buffer 0 is constant
                touches.append(
                    Touch(buffer, byte + reach.low, byte + reach.high, advance, reach.written)
                )
        chunks = action.chunks
        if self._group is None or not self._group.takes(touches, chunks):
            self._lowering.next_group()
            self._group = Group(chunks)
            self._writer.group(chunks)
        self._group.add(touches)
        self._lowering.use(tuple([touch.buffer for touch in touches]))
        known = self._numbers.get(id(action))
        if known is None:
            number = self._writer.function(action.function)
            known = self._numbers[id(action)] = (action, number)
        flat = [word for place in places for word in place]
        self._writer.add(known[1], self._writer.location(location), flat)

    def copy(self, buffer: int, size: int, at: int) -> None:
        """Append a copy of bytes of buffer 0 to the beginning of another one."""
        action = _bytes_copy(size)
        self.add(action, [(buffer, 0), (0, at)], "")


def _bytes_copy(size: int) -> Action:
    unit = DType.U32 if size % 4 == 0 else DType.U8
    count = size // unit.itemsize
    store = Store(Access(0, (1,)), build.load(unit, 1, (1,)))
    kernel = Kernel("nki_initial", (Dim(count),), (Slot(unit), Slot(unit)), (store,))
    reaches = (Reach(0, size, written=True), Reach(0, size, written=False))
    return Action(TapeLoop(kernel), (), reaches, 0)
