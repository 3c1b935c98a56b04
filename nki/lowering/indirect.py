"""Operands that an index moves at run time: copies between them and dense memory.

Indices are clamped to what stays in memory, so that a kernel cannot leave it; before that a native
function checks them and stops the program with NKI132, or, where the instruction skips what is out
of bounds, a mask leaves it out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neuronxcc.codegen import build
from neuronxcc.codegen.loop import Scalar
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.op import Op
from neuronxcc.neff.tape import TapeNative
from nki.dtypes import info
from nki.lowering import values
from nki.lowering.overlap import index_bytes
from nki.lowering.work import Lanes, Leaf, Loop, Operand, Reach, Work, element_strides
from nki.recording import RegisterForm, TileForm

__all__ = ["gather", "moving", "scatter"]

Index = tuple[Scalar, int, int, int]


@dataclass(frozen=True, slots=True)
class _Moved:
    """An indirect form with what else is known of it."""

    work: Work
    name: str
    form: TileForm

    @property
    def skips(self) -> bool:
        """Whether elements that are out of bounds are left out."""
        return bool(self.work.attributes.get("oob_mode") == "skip")

    @property
    def highest(self) -> int:
        """The greatest index that is in bounds."""
        number = self.work.first(self.name)
        return max(self.work.variant.highest[number], 0)

    @property
    def source(self) -> Operand | Leaf:
        """The tensor of indices, or a register's place."""
        assert self.form.indirect is not None
        source = self.form.indirect.source
        leaf = Leaf(self.work.first(self.name) + 1)
        if isinstance(source, RegisterForm):
            return leaf
        return Operand("", source.dtype, source.shape, element_strides(source), leaf)


def _checked(moved: _Moved, partitions: int, rows: int) -> None:
    """Let a native function look at the indices first."""
    indirect = moved.form.indirect
    assert indirect is not None
    if moved.skips:
        return
    source = moved.source
    if isinstance(source, Leaf):
        _check(moved, source, 1, 0, moved.highest + 1, partitions // rows, 0)
        return
    narrow = info(source.dtype).itemsize != 4
    if indirect.kind == "scalar":
        if narrow:
            source = _widened(moved.work, source)
        _check(moved, source.pointer, 1, 0, moved.highest + 1, partitions // rows, 0)
        return
    if narrow:
        source = _widened(moved.work, source)
    _check_all(moved, source)


def _widened(work: Work, source: Operand) -> Operand:
    """Return indices as int32."""
    wide = work.temporary(source.shape, "int32")
    lanes = Lanes(work, "index", [wide, source])
    lanes.store(wide, values.cast(values.to_integer(lanes.load(source)), "int32"))
    lanes.finish()
    return wide


def _check_all(moved: _Moved, source: Operand) -> None:
    """Check the indices that a vector or a tensor index uses, column by column."""
    form = moved.form
    assert form.indirect is not None
    step = source.strides[0] if source.partitions > 1 else 1
    if form.indirect.kind == "vector":
        left, bound = form.shape[0], moved.highest + 1
    else:
        left, bound = source.partitions * source.free, moved.highest + 1
    columns = element_offsets(source)
    for offset in columns:
        if left <= 0:
            break
        count = min(left, source.partitions)
        pointer = source.pointer._replace(offset=source.pointer.offset + 4 * offset)
        rows = Lanes(moved.work, "rows", [source]).rows
        if count == source.partitions and rows < count:
            _check(moved, pointer, rows, step, bound, count // rows, 4 * step * rows)
        else:
            _check(moved, pointer, count, step, bound, 0, 0)
        left -= count


def element_offsets(source: Operand) -> list[int]:
    """Return where the elements of a partition are, in elements."""
    offsets = [0]
    for extent, stride in source.free_dims:
        offsets = [base + i * stride for base in offsets for i in range(extent)]
    return offsets


def _check(
    moved: _Moved,
    pointer: Leaf | object,
    count: int,
    stride: int,
    bound: int,
    chunks: int,
    advance: int,
) -> None:
    function = TapeNative(
        "check_index",
        (count, stride, bound),
        lanes=chunks > 0,
        advance=(advance,) if chunks > 0 else (),
    )
    reach = Reach(0, 4 * ((count - 1) * stride + 1), written=False)
    moved.work.add(function, [pointer], [reach], chunks)  # type: ignore[list-item]


def _clamped(moved: _Moved, index: Scalar) -> Scalar:
    zero = build.const(0, DType.S64)
    return build.op(Op.CLAMP, zero, build.convert(index, DType.S64), moved.highest)


def _inside(moved: _Moved, index: Scalar) -> Scalar | None:
    if not moved.skips:
        return None
    wide = build.convert(index, DType.S64)
    return build.op(Op.AND, build.compare("GE", wide, 0), build.compare("LE", wide, moved.highest))


def _element_step(form: TileForm) -> int:
    step, size = index_bytes(form), info(form.dtype).itemsize
    assert step % size == 0
    return step // size


def moving(lanes: Lanes, name: str) -> tuple[list[Index], Scalar | None]:
    """Return the index of a scalar or vector indirection for a kernel, and the mask of skips."""
    work = lanes.work
    form = work.form(name)
    moved = _Moved(work, name, form)
    source = moved.source
    if isinstance(source, Leaf):
        index = lanes.get(source, DType.S32)
    elif form.indirect.kind == "scalar":
        index = lanes.get(source.pointer, values.stored_type(source.dtype))
    else:
        steps = (source.strides[0], *[0] * (len(lanes.extents) - 1))
        advance = lanes.rows * source.strides[0] * source.itemsize if lanes.chunks > 1 else 0
        index = lanes.get(source.pointer, values.stored_type(source.dtype), steps, advance=advance)
    step = _element_step(form)
    return [(_clamped(moved, index), step, 0, moved.highest)], _inside(moved, index)


def _fits_lanes(moved: _Moved) -> bool:
    """Whether partition i of dense memory needs partition i of the index only."""
    indirect = moved.form.indirect
    assert indirect is not None
    if indirect.kind == "tensor":
        return False
    if indirect.kind == "vector":
        source = moved.source
        return isinstance(source, Operand) and source.partitions >= moved.form.shape[0]
    return True


def gather(work: Work, name: str, dense: Operand) -> None:
    """Copy an indirect operand to dense memory of its shape; what is skipped becomes 0."""
    _transfer(work, name, dense, inward=True)


def scatter(work: Work, name: str, dense: Operand) -> None:
    """Copy dense memory to an indirect operand, in the order of its elements."""
    _transfer(work, name, dense, inward=False)


def _transfer(work: Work, name: str, dense: Operand, *, inward: bool) -> None:
    form = work.form(name)
    moved = _Moved(work, name, form)
    here = Operand(name, form.dtype, form.shape, element_strides(form), Leaf(work.first(name)))
    assert dense.shape == here.shape
    if form.indirect.kind == "vector":
        here = Operand(name, here.dtype, here.shape, (0, *here.strides[1:]), here.pointer)
    if _fits_lanes(moved):
        lanes = Lanes(work, "gather" if inward else "scatter", [dense, here])
        if not inward and form.indirect.kind == "vector":
            # Two indices may be equal: then the last one counts, so rows are done in order.
            _whole(moved, here, dense, inward=inward)
            return
        _checked(moved, here.partitions, lanes.rows)
        indices, mask = moving(lanes, name)
        _copy(lanes, lanes.steps(here), here, lanes.steps(dense), dense, indices, mask,
              inward=inward, advances=(lanes.advance(here), lanes.advance(dense)))  # fmt: skip
        lanes.finish()
        return
    _whole(moved, here, dense, inward=inward)


def _whole(moved: _Moved, here: Operand, dense: Operand, *, inward: bool) -> None:
    """The same by one kernel over all dimensions."""
    work, form = moved.work, moved.form
    assert form.indirect is not None
    _checked(moved, 1, 1)
    loop = Loop(work, "gather" if inward else "scatter", here.shape)
    source = moved.source
    if form.indirect.kind == "scalar":
        raise AssertionError("scalars move lane by lane")
    assert isinstance(source, Operand)
    columns = _columns(source)
    if form.indirect.kind == "vector":
        number = build.index(0)
        count = source.partitions
        row = build.op(Op.REMAINDER, number, count)
        column = build.op(Op.DIVIDE, number, count)
        last_column = (here.shape[0] - 1) // count
    else:
        group = form.indirect.group
        lane, i = build.index(0), build.index(1)
        base = build.op(Op.MULTIPLY, build.op(Op.DIVIDE, lane, group), group)
        row = build.op(Op.ADD, base, build.op(Op.REMAINDER, i, group))
        row = build.op(Op.MINIMUM, row, source.partitions - 1)
        column = build.op(Op.DIVIDE, i, group)
        last_column = (here.shape[1] - 1) // group
    zero = build.const(0, DType.S64)
    row = build.op(Op.CLAMP, zero, row, source.partitions - 1)
    column = build.op(Op.CLAMP, zero, column, last_column)
    index = loop.get(
        source.pointer,
        values.stored_type(source.dtype),
        indices=[
            (row, source.strides[0], 0, source.partitions - 1),
            (column, columns, 0, last_column),
        ],
    )
    steps = list(here.strides)
    if form.indirect.kind == "tensor":
        steps[1] = 0
        step = 1
    else:
        step = _element_step(form)
    indices = [(_clamped(moved, index), step, 0, moved.highest)]
    _copy(loop, steps, here, dense.strides, dense, indices, _inside(moved, index), inward=inward,
          advances=(0, 0))  # fmt: skip
    loop.finish()


def _columns(source: Operand) -> int:
    """The stride from column to column of an index tensor."""
    dims = [(extent, stride) for extent, stride in source.free_dims if extent > 1]
    assert len(dims) <= 1, "an index tensor of several free dimensions"
    return dims[0][1] if dims else 0


def _copy(
    loop: Loop,
    here_steps: Sequence[int],
    here: Operand,
    dense_steps: Sequence[int],
    dense: Operand,
    indices: list[Index],
    mask: Scalar | None,
    *,
    inward: bool,
    advances: tuple[int, int],
) -> None:
    kind = values.stored_type(here.dtype)
    if inward:
        item = loop.get(
            here.pointer, kind, here_steps, indices=indices, mask=mask, advance=advances[0]
        )
        loop.put(dense.pointer, item, dense_steps, advance=advances[1])
    else:
        item = loop.get(dense.pointer, kind, dense_steps, advance=advances[1])
        loop.put(here.pointer, item, here_steps, indices=indices, mask=mask, advance=advances[0])
