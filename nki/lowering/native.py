"""Native functions in works: operands as the rows that they take, and what they leave behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from neuronxcc.codegen.loop import Scalar
from neuronxcc.program.natives import native
from neuronxcc.program.tape_functions import TapeNative
from nki.dtypes import info
from nki.lowering import values
from nki.lowering.loops import Lanes
from nki.lowering.operands import Operand, Pointer, Reach, f32, rows_of
from nki.lowering.shapes import merge
from nki.lowering.work import Work
from nki.recording import TileForm

__all__ = ["Rows", "call", "given", "number_rows", "raw", "rows", "wanted"]


class Rows(NamedTuple):
    """A slot that has one row per partition, elements side by side.

    Attributes:
        pointer: of the first row.
        step: bytes from row to row; 0 if all partitions share one.
    """

    pointer: Pointer
    step: int


def rows(operand: Operand) -> Rows | None:
    """Return an operand as rows; None if its elements do not lie side by side."""
    if operand.moved or merge(operand.free_dims) not in ((), ((operand.free, 1),)):
        return None
    return Rows(operand.pointer, operand.strides[0] * operand.itemsize)


def _dense(operand: Operand) -> Rows:
    found = rows(operand)
    assert found is not None, operand
    return found


def raw(work: Work, name: str, *, apart_from: str = "") -> Rows:
    """Return the items of an operand that is read.

    Args:
        work: what is being made.
        name: of the operand.
        apart_from: a result that must not take the operand's place before all of it is read.
    """
    operand = work.operand(name)
    shared = apart_from and work.leaf(name) == work.leaf(apart_from)
    found = None if shared else rows(operand)
    return found if found is not None else _dense(work.dense(operand))


def given(
    work: Work,
    name: str,
    dtype: str = "float32",
    make: Callable[[Lanes, Scalar], Scalar] | None = None,
) -> Rows:
    """Return an operand that is read, cast to float32 as engines read it, or with its own type.

    Args:
        work: what is being made.
        name: of a tensor operand.
        dtype: of the rows: float32, or the operand's own.
        make: computes something else of the float32 value, with the kernel that does it.
    """
    operand = work.operand(name)
    if operand.dtype == dtype and make is None:
        return raw(work, name)
    cast = work.temporary(operand.shape, dtype)
    lanes = Lanes(work, "read", [cast, operand])
    value = lanes.read(name)
    lanes.store(cast, value if make is None else make(lanes, value))
    lanes.finish()
    return _dense(cast)


def number_rows(work: Work, name: str) -> Rows:
    """Return an operand that is a number or has one element per partition, as float32."""
    form = work.form(name)
    if isinstance(form, TileForm):
        return given(work, name)
    return Rows(f32(form), 0)


class Wanted(NamedTuple):
    """A result: where the function writes its rows, and what then brings them to the operand."""

    rows: Rows
    finish: Callable[[], None]


def _nothing() -> None:
    pass


def wanted(work: Work, name: str, dtype: str = "", *, keeps: bool = False) -> Wanted:
    """Return rows for a result.

    Args:
        work: what is being made.
        name: of the operand.
        dtype: that the function writes, to be cast as engines do; by default the operand's own.
        keeps: what the function does not write stays as it is.
    """
    operand = work.operand(name)
    same = dtype in ("", operand.dtype)
    found = rows(operand) if same else None
    if found is not None:
        return Wanted(found, _nothing)
    made = work.temporary(operand.shape, dtype or operand.dtype)
    if keeps:
        assert same
        work.copy_bits(operand, made)

    def finish() -> None:
        lanes = Lanes(work, "write", [operand, made])
        cast = None if same else values.cast(lanes.load(made), operand.dtype)
        lanes.store(operand, lanes.bits(made) if cast is None else cast)
        lanes.finish()

    return Wanted(_dense(made), finish)


def call(
    work: Work,
    name: str,
    partitions: int,
    slots: Sequence[Rows],
    params: Callable[[int], Sequence[int]],
    most: int = 0,
) -> None:
    """Note a call of a native function that works lane by lane.

    Args:
        work: what is being made.
        name: of the function.
        partitions: how many rows there are.
        slots: of the function; those with step 0 are the same for every chunk.
        params: the parameters for a number of rows.
        most: rows of a chunk if their number is a multiple of that; by default as for kernels.
    """
    count = rows_of(partitions)
    if most:
        count = most if partitions % most == 0 else partitions
    numbers = tuple(params(count))
    chunks = partitions // count
    function = TapeNative(
        name,
        numbers,
        lanes=True,
        advance=tuple(count * slot.step if chunks > 1 else 0 for slot in slots),
    )
    touched = native(name).declare(numbers)
    work.add(
        function,
        [slot.pointer for slot in slots],
        [Reach(slot.low, slot.high, slot.written) for slot in touched],
        chunks,
    )


def item_bytes(work: Work, name: str) -> int:
    """Return the bytes of an element of an operand."""
    return info(work.dtype(name)).itemsize
