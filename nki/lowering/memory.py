"""The buffers of a program: which memory a place of an event is, and where temporaries lie.

Memories are numbered as they are met. One that nobody else can see (a tile, scratch memory of an
instruction) takes over a *slab*, a buffer that another one of equal partitions no longer needs:
then instructions on both may share a lane group, since a partition of one is a partition of the
other. Slabs that are never alive in the same group may share bytes of the scratchpad.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Literal
from neuronxcc.program.memory import Buffer
from nki.checks.flow import written
from nki.lowering.shapes import row_major
from nki.lowering.values import stored_type
from nki.lowering.work import State
from nki.memory import Storage
from nki.recording import Recording

__all__ = ["Memories"]

ALIGNMENT = 64


@dataclass(slots=True)
class _Slab:
    """A temporary buffer."""

    size: int
    first: int = -1  # groups in which it is alive
    last: int = -1
    offset: int = -1


@dataclass
class Memories:
    """All memories of a recording.

    Attributes:
        recording: what they belong to.
        outputs: storages that become results and are no inputs, in the order of the results.
    """

    recording: Recording
    outputs: list[int] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    _slabs: dict[int, _Slab] = field(default_factory=dict)  # by buffer
    _free: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    _storages: dict[int, int] = field(default_factory=dict)
    _shared: dict[int, int] = field(default_factory=dict)
    _states: dict[tuple[int, str], int] = field(default_factory=dict)
    _initial: list[tuple[int, bytes]] = field(default_factory=list)
    _constants: bytearray = field(default_factory=bytearray)
    _constant_at: dict[bytes, int] = field(default_factory=dict)
    _registers: int = -1

    def __post_init__(self) -> None:
        recording = self.recording
        # The constants come first: their content is known last.
        self._add(Buffer("constant", DType.U8, (0,), (1,)))
        for index, number in enumerate(recording.inputs):
            self._storages[number] = self._boundary("input", index, number)
        written = self._written_constants()
        for number in recording.constants:
            storage = recording.storages[number]
            if number not in self._storages and number not in written:
                array = np.array(storage.bytes)
                shape = array.shape
                self._storages[number] = self._add(
                    Buffer("constant", DType.U8, shape, (1,), literal=Literal(array))
                )
        for index, number in enumerate(self.outputs):
            self._storages[number] = self._boundary("output", index, number)
        for number in sorted(written - set(self._storages)):
            self._storages[number] = self._lasting(recording.storages[number].nbytes)
        for number in sorted(written):
            self._initial.append((self._storages[number], bytes(recording.storages[number].bytes)))

    def _written_constants(self) -> set[int]:
        """Constants that need memory of their own: written to, or handed out as results."""
        known = set(self.recording.constants)
        found = known & set(self.outputs)
        if known:
            found |= known & written(self.recording)
        return found - set(self.recording.inputs)

    def _add(self, buffer: Buffer) -> int:
        self.buffers.append(buffer)
        return len(self.buffers) - 1

    def _boundary(self, kind: str, index: int, number: int) -> int:
        storage = self.recording.storages[number]
        dtype = DType.PRED if storage.dtype == "bool_" else stored_type(storage.dtype)
        shape = tuple(storage.shape)
        return self._add(
            Buffer(kind, dtype, shape, row_major(shape), index=index, name=storage.name)
        )

    def _temp(self, size: int) -> int:
        number = self._add(Buffer("temp", DType.U8, (size,), (1,)))
        self._slabs[number] = _Slab(size)
        return number

    def _lasting(self, size: int) -> int:
        """Memory that is alive from the beginning to the end."""
        number = self._temp(size)
        self._slabs[number].first, self._slabs[number].last = 0, 1 << 62
        return number

    # --- which buffer ----------------------------------------------------------------------------

    def storage(self, number: int) -> int:
        """Return the buffer of a storage, which takes a slab when it is first asked for."""
        found = self._storages.get(number)
        if found is None:
            storage = self.recording.storages[number]
            if storage.address is not None:
                found = self._memory(storage)
            else:
                found = self.take(*_class(storage))
            self._storages[number] = found
        return found

    def _memory(self, storage: Storage) -> int:
        memory = storage.memory
        if id(memory) not in self._shared:
            self._shared[id(memory)] = self._lasting(memory.partitions * memory.pitch)
        return self._shared[id(memory)]

    def release(self, number: int) -> None:
        """Say that a storage will not be used again."""
        storage = self.recording.storages[number]
        buffer = self._storages[number]
        if buffer in self._slabs and storage.address is None and self._slabs[buffer].last < 1 << 62:
            self._free.setdefault(_class(storage), []).append(buffer)

    def take(self, partitions: int, row_bytes: int) -> int:
        """Return a slab that nobody uses."""
        free = self._free.get((partitions, row_bytes))
        return free.pop() if free else self._temp(partitions * row_bytes)

    def give(self, buffer: int, partitions: int, row_bytes: int) -> None:
        """Give a slab back."""
        self._free.setdefault((partitions, row_bytes), []).append(buffer)

    def state(self, core: int, state: State) -> int:
        """Return the buffer of a core's state."""
        key = (core, state.name)
        if key not in self._states:
            self._states[key] = number = self._lasting(len(state.initial))
            self._initial.append((number, state.initial))
        return self._states[key]

    def registers(self) -> int:
        """Return the buffer of the registers, which are 0 at first."""
        if self._registers < 0:
            count = max(self.recording.registers, 1)
            self._registers = self._lasting(4 * count)
            self._initial.append((self._registers, bytes(4 * count)))
        return self._registers

    def constant(self, data: bytes) -> int:
        """Return where in buffer 0 some bytes are."""
        at = self._constant_at.get(data)
        if at is None:
            unit = min(ALIGNMENT, 1 << (len(data) - 1).bit_length())
            self._constants.extend(bytes(-len(self._constants) % unit))
            at = self._constant_at[data] = len(self._constants)
            self._constants.extend(data)
        return at

    # --- at the end ------------------------------------------------------------------------------

    def used(self, buffers: Iterable[int], group: int) -> None:
        """Note that a group uses buffers."""
        for number in buffers:
            slab = self._slabs.get(number)
            if slab is not None:
                if slab.first < 0:
                    slab.first = group
                slab.last = max(slab.last, group)

    def initial(self) -> list[tuple[int, int, int]]:
        """Return (buffer, bytes, where in buffer 0) of what is copied when the program starts."""
        return [(buffer, len(data), self.constant(data)) for buffer, data in self._initial]

    def place(self) -> int:
        """Decide where all temporaries lie; return the size of the scratchpad."""
        total = 0
        placed: list[_Slab] = []
        for number, slab in sorted(self._slabs.items(), key=lambda item: -item[1].size):
            around = sorted(
                (other.offset, other.offset + other.size)
                for other in placed
                if other.first <= slab.last and slab.first <= other.last
            )
            at = 0
            for begin, end in around:
                if at + slab.size <= begin:
                    break
                at = max(at, end + -end % ALIGNMENT)
            slab.offset = at
            placed.append(slab)
            total = max(total, at + slab.size)
            old = self.buffers[number]
            self.buffers[number] = Buffer("temp", old.dtype, old.shape, old.strides, offset=at)
        data = np.frombuffer(bytes(self._constants) or b"\0", np.uint8)
        self.buffers[0] = Buffer("constant", DType.U8, data.shape, (1,), literal=Literal(data))
        return total


def _class(storage: Storage) -> tuple[int, int]:
    """Storages of one class can take each other's memory."""
    if storage.region.on_chip:
        return storage.shape[0], storage.row_bytes
    return 1, storage.nbytes
