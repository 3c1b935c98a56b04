"""The parts of works: pointers, operands, and actions."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from neuronxcc.program.tape_functions import TapeLoop, TapeNative, TapeProduct
from nki.dtypes import info
from nki.lowering.shapes import Dims
from nki.recording import TileForm

__all__ = [
    "LANES",
    "MOST_ROWS",
    "Action",
    "Constant",
    "Leaf",
    "Operand",
    "Pointer",
    "Print",
    "Reach",
    "Scratch",
    "State",
    "Variant",
    "element_strides",
    "f32",
    "moved",
    "rows_of",
    "s32",
    "virtual",
]

MOST_ROWS = 16  # partitions that a lane function takes at a time


@dataclass(frozen=True, slots=True)
class Leaf:
    """The place of a leaf of the template's operands, and bytes from there.

    For a register it is its word in the register file.
    """

    number: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Constant:
    """Bytes that never change; equal ones are kept once."""

    data: bytes
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Scratch:
    """Memory of this work alone: number in `Work.scratch`."""

    number: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class State:
    """Memory that lasts from instruction to instruction, one for every core.

    Attributes:
        name: what it is.
        initial: its bytes when the program starts.
        offset: bytes.
    """

    name: str
    initial: bytes
    offset: int = 0


Pointer = Leaf | Constant | Scratch | State
_NOWHERE = Scratch(-1)


def moved(pointer: Pointer, by: int) -> Pointer:
    """Return a pointer some bytes further."""
    return replace(pointer, offset=pointer.offset + by)


class Reach(NamedTuple):
    """The bytes that an action may touch from a pointer on, for one chunk: low <= byte < high."""

    low: int
    high: int
    written: bool


@dataclass(frozen=True, slots=True)
class Action:
    """A function of the tape with its pointers.

    Attributes:
        function: what runs.
        pointers: of its slots.
        reaches: likewise.
        chunks: how often a lane function is called, 0 for a function that is none.
    """

    function: TapeLoop | TapeProduct | TapeNative
    pointers: tuple[Pointer, ...]
    reaches: tuple[Reach, ...]
    chunks: int


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor operand, whose elements are chosen by no vector or tensor.

    Attributes:
        name: of the parameter, with an index for those in lists: ``srcs[1]``.
        dtype: NKI's name.
        shape: sizes.
        strides: of them, in elements.
        pointer: where element 0 is.
        moved: a scalar index is added to that when an item is loaded or stored.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    pointer: Pointer
    moved: bool = False

    @property
    def partitions(self) -> int:
        """The size of dimension 0."""
        return self.shape[0]

    @property
    def free(self) -> int:
        """Elements per partition."""
        return math.prod(self.shape[1:])

    @property
    def size(self) -> int:
        """All elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return info(self.dtype).itemsize

    def shifted(self, elements: int) -> Pointer:
        """Return a pointer to another element."""
        return moved(self.pointer, elements * self.itemsize)

    def element(self, number: int) -> Operand:
        """Return one element of every partition, (partitions, 1)."""
        at = 0
        for extent, stride in reversed(self.free_dims):
            number, position = divmod(number, extent)
            at += position * stride
        return replace(
            self,
            name="",
            shape=(self.partitions, 1),
            strides=(self.strides[0], 0),
            pointer=self.shifted(at),
        )

    @property
    def is_virtual(self) -> bool:
        """Return whether it is no memory, but only tells strides; see `virtual`."""
        return self.pointer == _NOWHERE

    @property
    def free_dims(self) -> Dims:
        """(extent, stride) of all dimensions but the first."""
        return tuple(zip(self.shape[1:], self.strides[1:], strict=True))

    @property
    def dims(self) -> Dims:
        """(extent, stride) of all dimensions."""
        return tuple(zip(self.shape, self.strides, strict=True))


@dataclass(frozen=True, slots=True)
class Print:
    """Prints an operand: see `PrintStep`."""

    prefix: str
    operand: Operand


class Variant(NamedTuple):
    """The properties of an event that a work depends on, beside its template.

    Attributes:
        staged: written operands that overlap others: they are computed in scratch memory, and
            copied when everything has been read.
        same: for every leaf the first leaf with the same form at the same place.
        highest: for every leaf that an index moves, the greatest index that stays in its memory.
    """

    staged: bool = False
    same: tuple[int, ...] = ()
    highest: tuple[int, ...] = ()


def rows_of(partitions: int) -> int:
    """Return the partitions of a chunk: the greatest divisor that is at most `MOST_ROWS`."""
    return max(r for r in range(1, min(partitions, MOST_ROWS) + 1) if partitions % r == 0)


def virtual(shape: tuple[int, ...], strides: tuple[int, ...]) -> Operand:
    """Return an operand without memory, whose strides a kernel is to tell: `Lanes.along`."""
    return Operand("", "int32", shape, strides, _NOWHERE)


def element_strides(form: TileForm) -> tuple[int, ...]:
    """Return the strides of a form in elements."""
    size = info(form.dtype).itemsize
    strides = []
    for extent, stride in zip(form.shape, form.strides, strict=True):
        assert extent == 1 or stride % size == 0, form
        strides.append(stride // size if extent > 1 else 0)
    return tuple(strides)


def f32(value: float) -> Constant:
    """Return a float32 number as constant bytes."""
    return Constant(np.float32(value).tobytes())


def s32(value: int) -> Constant:
    """Return an int32 number, of whose bits the low ones are kept, as constant bytes."""
    return Constant(struct.pack("<I", value & 0xFFFFFFFF))


# The numbers of partitions.
LANES = Constant(np.arange(128, dtype=np.int32).tobytes())
