"""Indices that operands have at run time, checked before they are used.

A native function looks at them and stops the program with NKI132 if one is out of bounds.
"""

from __future__ import annotations

from neuronxcc.program.tape_functions import TapeNative
from nki.dtypes import info
from nki.lowering import values
from nki.lowering.draft import Draft
from nki.lowering.indices import Moved
from nki.lowering.loops import Lanes
from nki.lowering.operands import Operand, Pointer, Reach, rows_of
from nki.lowering.operands import moved as shifted

__all__ = ["check_all", "check_scalar"]


def check_scalar(work: Draft, name: str) -> None:
    """Let a native function look at the scalar that moves an operand."""
    moved = Moved(work, name)
    if moved.skips:
        return
    source = moved.source
    partitions = moved.form.shape[0] if moved.form.pattern.partition else 1
    pointer = _words(work, source).pointer if isinstance(source, Operand) else source
    _look(moved, pointer, 1, 0, partitions // rows_of(partitions), 0)


def check_all(moved: Moved) -> None:
    """Let a native function look at all indices of a vector or a tensor, column by column."""
    if moved.skips:
        return
    assert isinstance(moved.source, Operand)
    source = _words(moved.work, moved.source)
    shape = moved.form.shape
    step = source.strides[0] if source.partitions > 1 else 1
    rows = rows_of(source.partitions)
    left = shape[0] if moved.kind == "vector" else source.size
    if moved.kind == "tensor":
        # Those of a group of partitions that are used.
        left = min(left, -(-shape[1] // moved.indirect.group) * source.partitions)
    for offset in _offsets(source):
        if left <= 0:
            break
        count = min(left, source.partitions)
        pointer = shifted(source.pointer, 4 * offset)
        if count == source.partitions:
            _look(moved, pointer, rows, step, count // rows, 4 * step * rows)
        else:
            _look(moved, pointer, count, step, 0, 0)
        left -= count


def _words(work: Draft, source: Operand) -> Operand:
    """Return indices as int32."""
    if info(source.dtype).itemsize == 4:
        return source
    wide = work.temporary(source.shape, "int32")
    lanes = Lanes(work, work.template.row.name, [wide, source])
    lanes.store(wide, values.cast(values.to_integer(lanes.load(source)), "int32"))
    lanes.finish()
    return wide


def _offsets(source: Operand) -> list[int]:
    """Return where the elements of a partition are, in elements."""
    offsets = [0]
    for extent, stride in source.free_dims:
        offsets = [base + i * stride for base in offsets for i in range(extent)]
    return offsets


def _look(
    moved: Moved, pointer: Pointer, count: int, stride: int, chunks: int, advance: int
) -> None:
    lanes = chunks > 0
    function = TapeNative(
        "check_index",
        (count, stride, moved.highest + 1),
        lanes=lanes,
        advance=(advance,) if lanes else (),
    )
    reach = Reach(0, 4 * ((count - 1) * stride + 1), written=False)
    moved.work.add(function, [pointer], [reach], chunks)
