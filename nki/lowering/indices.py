"""Indices that operands have at run time: as expressions of kernels, and checked before.

Indices are clamped to what stays in memory, so that a kernel cannot leave it; before that a native
function checks them and stops the program with NKI132, or, where the instruction skips what is out
of bounds, a mask leaves it out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from neuronxcc.codegen import build
from neuronxcc.codegen.loop import Scalar
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.op import Op
from neuronxcc.program.tape_functions import TapeNative
from nki.dtypes import info
from nki.lowering import values
from nki.lowering.operands import Leaf, Operand, Pointer, Reach, element_strides, rows_of
from nki.lowering.operands import moved as shifted
from nki.lowering.overlap import index_bytes
from nki.recording import IndirectForm, RegisterForm, TileForm

if TYPE_CHECKING:
    from nki.lowering.loops import Loop
    from nki.lowering.work import Work

__all__ = ["Index", "Moved", "check_all", "check_scalar", "moving"]

Index = tuple[Scalar, int, int, int]  # expression, stride, least and greatest value


@dataclass(frozen=True, slots=True)
class Moved:
    """An indirect operand with what is known of its index."""

    work: Work
    name: str

    @property
    def form(self) -> TileForm:
        """Its form."""
        form = self.work.form(self.name)
        assert isinstance(form, TileForm)
        return form

    @property
    def indirect(self) -> IndirectForm:
        """What moves it."""
        assert self.form.indirect is not None
        return self.form.indirect

    @property
    def kind(self) -> str:
        """`scalar`, `vector` or `tensor`."""
        return self.indirect.kind

    @property
    def skips(self) -> bool:
        """Whether elements that are out of bounds are left out."""
        return bool(self.work.attributes.get("oob_mode") == "skip")

    @property
    def highest(self) -> int:
        """The greatest index that is in bounds, -1 if none is."""
        return self.work.variant.highest[self.work.first(self.name)]

    @property
    def step(self) -> int:
        """Elements from one index to the next."""
        if self.kind == "tensor":
            return 1
        step, size = index_bytes(self.form), info(self.form.dtype).itemsize
        assert step % size == 0
        return step // size

    @property
    def source(self) -> Operand | Leaf:
        """The tensor of indices, or a register's place."""
        source = self.indirect.source
        leaf = Leaf(self.work.first(self.name) + 1)
        if isinstance(source, RegisterForm):
            return leaf
        return Operand("", source.dtype, source.shape, element_strides(source), leaf)

    def index(self, item: Scalar) -> Index:
        """Return what an access takes for a loaded index."""
        wide = build.convert(item, DType.S64)
        zero = build.const(0, DType.S64)
        highest = max(self.highest, 0)
        clamped = build.op(Op.CLAMP, zero, wide, build.const(highest, DType.S64))
        return clamped, self.step, 0, highest

    def inside(self, item: Scalar) -> Scalar | None:
        """Return whether a loaded index is in bounds; None if it is checked before."""
        if not self.skips:
            return None
        wide = build.convert(item, DType.S64)
        low, high = build.compare("GE", wide, 0), build.compare("LE", wide, self.highest)
        return build.op(Op.AND, low, high)


def check_scalar(work: Work, name: str) -> None:
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


def _words(work: Work, source: Operand) -> Operand:
    """Return indices as int32."""
    if info(source.dtype).itemsize == 4:
        return source
    wide = work.temporary(source.shape, "int32")
    lanes = work.lanes(wide, source)
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


def moving(loop: Loop, name: str) -> tuple[Index, Scalar | None]:
    """Return the index that a scalar moves an operand by, and the mask of what is skipped."""
    moved = Moved(loop.work, name)
    source = moved.source
    if isinstance(source, Leaf):
        item = loop.get(source, DType.S32)
    else:
        item = loop.get(source.pointer, values.stored_type(source.dtype))
    return moved.index(item), moved.inside(item)
