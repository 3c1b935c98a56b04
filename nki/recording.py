"""Recordings: the instructions of a kernel in order, with loops as nested blocks.

A kernel of a million instructions is recorded in some tens of megabytes: whatever two uses of an
instruction have in common is a :class:`Template`, kept once, and an event is a few integers in one
array: the template, the user's line, and where each operand lies.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from neuronxcc.targets import Target
from nki.isa.spec import Call, Instruction
from nki.isa.state import Finding
from nki.memory import MemoryRegion, Storage
from nki.pattern import AccessPattern

__all__ = [
    "REGISTER",
    "Block",
    "Event",
    "Form",
    "Grid",
    "IndirectForm",
    "Loop",
    "Place",
    "Recording",
    "RegisterForm",
    "Result",
    "Template",
    "TileForm",
    "leaves",
]


class RegisterForm(NamedTuple):
    """An operand that is a register; its place is (number of the register, 0)."""


REGISTER = RegisterForm()


class IndirectForm(NamedTuple):
    """How a value that is known only at run time moves an operand; see `nki.pattern.Indirect`.

    Attributes:
        kind: "scalar", "vector" or "tensor".
        stride: elements of the operand's type for one step of the index.
        axis: see `nki.pattern.Indirect`.
        bound: an index from 0 to below this is in bounds.
        group: partitions that share their offsets, of kind "tensor".
        source: where the index comes from; its place follows that of the operand.
    """

    kind: str
    stride: int
    axis: int
    bound: int
    group: int
    source: TileForm | RegisterForm


class TileForm(NamedTuple):
    """A tensor operand without its place, which is (storage, byte).

    The place counts bytes in `Storage.bytes` of the storage: those of the core's whole memory where
    the storage has an explicit address.

    Attributes:
        pattern: the view, with offset 0 and without its indirection.
        strides: distances in those bytes between neighbours of each dimension.
        region: where it lies.
        row: its first partition if it is on chip, counted in the core where the storage has an
            address, else in the storage.
        limit: bytes of the memory that the place counts in.
        addressed: the storage has an explicit address.
        row_bytes: bytes that the storage has in one partition.
        indirect: what moves it at run time.
    """

    pattern: AccessPattern
    strides: tuple[int, ...]
    region: MemoryRegion
    row: int
    limit: int
    addressed: bool
    row_bytes: int
    indirect: IndirectForm | None

    @property
    def dtype(self) -> str:
        """NKI's name of the type."""
        return self.pattern.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes."""
        return self.pattern.shape


Grid = tuple[int, ...]  # programs along each axis of a launch grid, () without one
Form = TileForm | RegisterForm | float | int | tuple[TileForm, ...] | None
Place = tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """An instruction with everything but the places of its operands.

    Attributes:
        row: of the instruction table.
        operands: name and form, in the order of the row; numbers are forms themselves.
        attributes: canonical.
        call: the checked call, for costs.
        core: which core's state it uses; kernels on several cores are merged into one recording.
        accumulate: of a product, what `accumulate=None` was found to mean here.
        hidden: no instruction of the user's: it fills memory that is new.
        words: integers that the places of an event take.
    """

    row: Instruction
    operands: tuple[tuple[str, Form], ...]
    attributes: Mapping[str, Any]
    call: Call
    core: int = 0
    accumulate: bool | None = None
    hidden: bool = False
    words: int = 0

    @property
    def engine(self) -> str:
        """Who runs it."""
        return self.call.engine

    @property
    def generation(self) -> int:
        """The NeuronCore version, 2, 3 or 4."""
        return self.call.generation

    def form(self, name: str) -> Form:
        """Return the form of an operand; None if it is absent."""
        return next((form for known, form in self.operands if known == name), None)


def leaves(form: Form) -> Iterator[TileForm | RegisterForm]:
    """Iterate over what has a place, in the order of the places: an index follows its tensor."""
    if isinstance(form, RegisterForm):
        yield form
    elif isinstance(form, TileForm):
        yield form
        if form.indirect is not None:
            yield form.indirect.source
    elif isinstance(form, tuple):
        for item in form:
            yield from leaves(item)


class Event(NamedTuple):
    """One use of an instruction.

    Attributes:
        template: what it is.
        location: number of the user's line in `Recording.locations`.
        places: (storage or register, byte) for every leaf of the operands.
    """

    template: Template
    location: int
    places: tuple[Place, ...]

    def operands(self) -> Iterator[tuple[str, Form, tuple[Place, ...]]]:
        """Iterate over name, form and the places of the form's leaves."""
        at = 0
        for name, form in self.template.operands:
            count = sum(1 for _ in leaves(form))
            yield name, form, self.places[at : at + count]
            at += count


@dataclass(slots=True)
class Block:
    """Events and loops in order.

    Attributes:
        code: for an event the number of its template, its location and its places; for a loop -1
            and its number in `loops`.
        loops: the loops directly in this block.
    """

    code: array[int] = field(default_factory=lambda: array("q"))
    loops: list[Loop] = field(default_factory=list)

    def items(self, templates: list[Template]) -> Iterator[Event | Loop]:
        """Iterate over events and loops."""
        code, at, end = self.code, 0, len(self.code)
        while at < end:
            number = code[at]
            if number < 0:
                yield self.loops[code[at + 1]]
                at += 2
                continue
            template = templates[number]
            stop = at + 2 + template.words
            places = code[at + 2 : stop]
            yield Event(template, code[at + 1], tuple(zip(places[::2], places[1::2], strict=True)))
            at = stop


@dataclass(slots=True)
class Loop:
    """Control flow that the device decides.

    A "for" runs the body with the counter at lower, lower + step... below upper. A "while" copies
    the register `lower` to the counter, and as long as that is not 0 runs the body and copies the
    register `upper` to it.

    Attributes:
        kind: "for" or "while".
        counters: registers that hold the counter, one for each core.
        lower: an int, or (register,); of a "while" always a register.
        upper: likewise.
        step: at least 1.
        body: what is repeated.
        location: number of the user's line.
    """

    kind: str
    counters: tuple[int, ...]
    lower: int | tuple[int]
    upper: int | tuple[int]
    step: int
    body: Block
    location: int


class Result(NamedTuple):
    """A tensor that the kernel returns: `form` at byte `offset` of storage number `storage`."""

    storage: int
    offset: int
    form: TileForm


@dataclass(slots=True)
class Recording:
    """A kernel that ran.

    Attributes:
        name: of the kernel's function.
        target: what it was checked for.
        templates: all instructions with their forms.
        locations: the user's lines, (file, line).
        storages: every memory that an event names, by number.
        inputs: numbers of the storages of array arguments, in order.
        constants: numbers of the storages that hold data from the start.
        results: what the kernel returns: Results in tuples, lists or dicts, or None.
        body: the instructions.
        registers: how many there are.
        cores: physical cores (times ranks) that take part.
        findings: what is undefined on hardware, with the user's line.
        peeked: Python has seen values of tensors, so another run may take another way.
        compiled: a compiler orders its instructions, allocates its tiles and chooses the engines
            that it leaves open, as for kernels of the first generation.
        innermost: of loops of such a kernel that have no others in them, where the code of all
            their turns begins and ends.
    """

    name: str
    target: Target
    templates: list[Template] = field(default_factory=list)
    locations: list[tuple[str, int]] = field(default_factory=list)
    storages: list[Storage] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    constants: list[int] = field(default_factory=list)
    results: Any = None
    body: Block = field(default_factory=Block)
    registers: int = 0
    cores: int = 1
    findings: list[tuple[Finding, tuple[str, int]]] = field(default_factory=list)
    peeked: bool = False
    compiled: bool = False
    innermost: list[tuple[int, int]] = field(default_factory=list)

    def items(self) -> Iterator[Event | Loop]:
        """Iterate over the events and loops of the outermost block."""
        return self.body.items(self.templates)

    def events(self) -> Iterator[Event]:
        """Iterate over all events, those in loops once."""
        yield from self._events(self.body)

    def _events(self, block: Block) -> Iterator[Event]:
        for item in block.items(self.templates):
            if isinstance(item, Loop):
                yield from self._events(item.body)
            else:
                yield item
