"""A decoded module: what the protobuf says, checked as far as its structure goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import DecodeError

from neuronxcc.frontends.hlo import foreign
from neuronxcc.frontends.hlo.errors import (
    INVALID,
    NOT_A_MODULE,
    HloError,
    RefusedError,
    Where,
    invalid,
)
from neuronxcc.frontends.hlo.schema import message
from neuronxcc.frontends.hlo.shards import localise
from neuronxcc.frontends.hlo.types import Type, type_of

MAX_FRAMES: Final = 64  # that are looked through for a line of the user's
MAX_DEVICES: Final = 1 << 20


class Frames:
    """Finds the user's line of an instruction."""

    def __init__(self, index: Any) -> None:
        self._index = index

    def place(self, metadata: Any) -> tuple[str, int]:
        """File and line, ("", 0) if the module doesn't say."""
        if metadata.source_file:
            return metadata.source_file, metadata.source_line
        frame = self._entry("stack_frames", metadata.stack_frame_id)
        location = self._entry("file_locations", frame.file_location_id) if frame else None
        if location is None:
            return "", 0
        names, number = self._index.file_names, location.file_name_id
        return (names[number - 1], location.line) if 0 < number <= len(names) else ("", 0)

    def _entry(self, name: str, number: int) -> Any:
        entries = getattr(self._index, name)
        return entries[number - 1] if 0 < number <= len(entries) else None


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: the message, and what every user of it wants to know.

    Attributes:
        proto: The message.
        type: Of its result.
        operands: Positions of its operands in the computation; all lower than its own.
        called: Computations it calls, by their position in the module.
    """

    proto: Any
    type: Type
    operands: tuple[int, ...]
    called: tuple[int, ...]

    @property
    def name(self) -> str:
        """As in the module."""
        return str(self.proto.name)

    @property
    def opcode(self) -> str:
        """As XLA prints it, "dynamic-slice"."""
        return str(self.proto.opcode)


@dataclass(frozen=True, slots=True)
class Computation:
    """A function of a module.

    Attributes:
        name: As in the module.
        instructions: Operands before users.
        root: Position of the instruction that is the result.
        params: Positions of the parameters, by number.
    """

    name: str
    instructions: tuple[Instruction, ...]
    root: int
    params: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Module:
    """A checked module.

    Attributes:
        name: As given.
        computations: Those that are called before their callers.
        entry: Position of the entry computation.
        proto: The message.
        frames: Source positions.
        devices: Numbers of replicas and of partitions, (0, 0) if the module has no assignment.
    """

    name: str
    computations: tuple[Computation, ...]
    entry: int
    proto: Any
    frames: Frames
    devices: tuple[int, int] = (0, 0)

    def where(self, instruction: Instruction) -> Where:
        """For errors about an instruction."""
        metadata = instruction.proto.metadata
        file, line = self.frames.place(metadata)
        return Where(instruction.name, instruction.opcode, file, line, metadata.op_name)


def decode(content: bytes) -> Module:
    """Read a module.

    Args:
        content: A serialised `HloModuleProto`, or the `HloProto` around it that XLA dumps.

    Raises:
        HloError: The bytes are neither, or the module contradicts itself.
    """
    proto = _parse(content)
    localise(proto)
    frames = Frames(proto.stack_frame_index)
    by_id: dict[int, int] = {}
    computations: list[Computation] = []
    for computation in _callees_first(proto.computations):
        computations.append(_computation(computation, by_id, frames))
        by_id[computation.id] = len(computations) - 1
    entry = by_id.get(proto.entry_computation_id)
    if entry is None:
        named = [n for n, c in enumerate(computations) if c.name == proto.entry_computation_name]
        if len(named) != 1:
            raise _broken(f"module '{proto.name}' has no entry computation")
        entry = named[0]
    return Module(proto.name, tuple(computations), entry, proto, frames, _devices(proto))


def _devices(proto: Any) -> tuple[int, int]:
    """Replicas and partitions.

    Raises:
        HloError: There is an assignment of less or far more than one device.
    """
    if not proto.HasField("device_assignment"):
        return 0, 0
    replicas = proto.device_assignment.replica_count
    partitions = proto.device_assignment.computation_count
    if not 0 < replicas * partitions <= MAX_DEVICES or replicas < 0:
        raise _broken(f"a device assignment of {replicas} replicas and {partitions} partitions")
    return replicas, partitions


def _parse(content: bytes) -> Any:
    for name, part in (("Module", None), ("Dump", "hlo_module")):
        proto = message(name)()
        try:
            proto.ParseFromString(content)
        except DecodeError:
            continue
        module = getattr(proto, part) if part else proto
        if module.computations:
            return module
    raise HloError(
        NOT_A_MODULE,
        f"the input ({len(content)} bytes) is no HloModuleProto with a computation",
        foreign.remedy(content),
    )


def _broken(text: str, where: Where | None = None) -> HloError:
    refusal = invalid(text)
    return HloError(INVALID, str(refusal), refusal.remedy, where)


def _callees_first(protos: Sequence[Any]) -> Iterator[Any]:
    """The computations, each after those it calls.

    Raises:
        HloError: Some call each other in a circle, two have one number, or one is missing.
    """
    by_id = {proto.id: proto for proto in protos}
    if len(by_id) != len(protos):
        raise _broken("two computations have the same number")
    calls = {
        proto.id: [c for i in proto.instructions for c in i.called_computation_ids]
        for proto in protos
    }
    done: set[int] = set()
    for proto in protos:
        open_: dict[int, Iterator[int]] = {}
        if proto.id not in done:
            open_[proto.id] = iter(calls[proto.id])
        while open_:
            current = next(reversed(open_))
            callee = next(open_[current], None)
            if callee is None:
                del open_[current]
                done.add(current)
                yield by_id[current]
            elif callee in open_:
                raise _broken(f"computation '{by_id[callee].name}' calls itself")
            elif callee not in by_id:
                name = by_id[current].name
                raise _broken(f"computation '{name}' calls number {callee}, which is missing")
            elif callee not in done:
                open_[callee] = iter(calls[callee])


def _computation(proto: Any, by_id: dict[int, int], frames: Frames) -> Computation:
    places: dict[int, int] = {}
    instructions: list[Instruction] = []
    params: dict[int, int] = {}
    for message_ in proto.instructions:
        file, line = frames.place(message_.metadata)
        where = Where(message_.name, message_.opcode, file, line, message_.metadata.op_name)
        if message_.id in places:
            raise _broken(f"two instructions have number {message_.id}", where)
        missing = [n for n in message_.operand_ids if n not in places]
        if missing:
            raise _broken(f"operand {missing[0]} does not come before its user", where)
        try:
            type_ = type_of(message_.shape, message_.name)
        except RefusedError as refusal:
            raise HloError(refusal.code, str(refusal), refusal.remedy, where) from None
        operands = tuple(places[n] for n in message_.operand_ids)
        called = tuple(by_id[n] for n in message_.called_computation_ids)
        places[message_.id] = len(instructions)
        if message_.opcode == "parameter":
            if message_.parameter_number in params:
                raise _broken(f"parameter {message_.parameter_number} is there twice", where)
            params[message_.parameter_number] = len(instructions)
        instructions.append(Instruction(message_, type_, operands, called))
    if proto.root_id not in places:
        raise _broken(f"computation '{proto.name}' has no root")
    if sorted(params) != list(range(len(params))):
        raise _broken(f"computation '{proto.name}' has parameters {sorted(params)}")
    ordered = tuple(params[n] for n in range(len(params)))
    return Computation(proto.name, tuple(instructions), places[proto.root_id], ordered)
