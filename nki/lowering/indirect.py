"""Copies between operands that an index moves and dense memory."""

from __future__ import annotations

from dataclasses import replace

from neuronxcc.codegen import build
from neuronxcc.codegen.loop import Scalar
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.op import Op
from nki.lowering import values
from nki.lowering.draft import Draft
from nki.lowering.index_checks import check_all, check_scalar
from nki.lowering.indices import IndexTerm, Moved
from nki.lowering.loops import Lanes, LoopMaker
from nki.lowering.operands import Operand
from nki.lowering.shapes import merge

__all__ = ["row_index", "transfer", "validity"]


def transfer(work: Draft, name: str, dense: Operand, *, inward: bool) -> None:
    """Copy an indirect operand to dense memory of its shape, or the other way round.

    What is skipped becomes 0, or is not written. Where two indices are equal, the later one counts.
    """
    moved = Moved(work, name)
    here = work.plain(name)
    if moved.kind == "scalar":
        check_scalar(work, name)
        lanes = Lanes(work, "move", [dense, here])
        index, mask = lanes.moving(name)
        _copy(lanes, _place(lanes, here), _place(lanes, dense), index, mask, inward=inward)
        lanes.finish()
        return
    check_all(moved)
    lanes_fit = moved.kind == "vector" and _one_column(moved) and inward
    if lanes_fit:
        still = replace(here, strides=(0, *here.strides[1:]))
        lanes = Lanes(work, "gather", [dense, still])
        item = row_index(lanes, moved)
        _copy(lanes, _place(lanes, still), _place(lanes, dense),
              moved.index(item), moved.inside(item), inward=inward)  # fmt: skip
        lanes.finish()
        return
    loop = LoopMaker(work, "gather" if inward else "scatter", here.shape)
    item = _table_item(loop, moved)
    steps = list(here.strides)
    steps[0 if moved.kind == "vector" else 1] = 0
    _copy(loop, (here, tuple(steps), 0), (dense, dense.strides, 0),
          moved.index(item), moved.inside(item), inward=inward)  # fmt: skip
    loop.finish()


def validity(work: Draft, name: str) -> Operand | None:
    """Return for every element of an operand 1 if it is in bounds, else 0, as uint8.

    None if nothing is skipped.
    """
    form = work.form(name)
    if form.indirect is None or not Moved(work, name).skips:
        return None
    moved = Moved(work, name)
    valid = work.temporary(form.shape, "uint8")
    loop = LoopMaker(work, "valid", form.shape)
    if moved.kind == "scalar":
        _, inside = loop.moving(name)
    else:
        inside = moved.inside(_table_item(loop, moved))
    assert inside is not None
    loop.put(valid.pointer, build.convert(inside, DType.U8), valid.strides)
    loop.finish()
    return valid


def _one_column(moved: Moved) -> bool:
    """Return whether partition i of dense memory needs partition i of the index only."""
    source = moved.source
    return isinstance(source, Operand) and source.partitions >= moved.form.shape[0]


def row_index(lanes: Lanes, moved: Moved) -> Scalar:
    """Return the index of a vector for the partition of a lane kernel."""
    source = moved.source
    assert isinstance(source, Operand)
    steps = (source.strides[0], *[0] * (len(lanes.extents) - 1))
    advance = lanes.rows * source.strides[0] * source.itemsize if lanes.chunks > 1 else 0
    return lanes.get(source.pointer, values.stored_type(source.dtype), steps, advance=advance)


def _table_item(loop: LoopMaker, moved: Moved) -> Scalar:
    """Return the index of a vector read column by column, or of a tensor, in a whole kernel."""
    source, shape = moved.source, moved.form.shape
    assert isinstance(source, Operand)
    if moved.kind == "vector":
        number = build.index(0)
        row = build.op(Op.REMAINDER, number, source.partitions)
        column = build.op(Op.DIVIDE, number, source.partitions)
        last = (shape[0] - 1) // source.partitions
    else:
        group = moved.indirect.group
        lane, i = build.index(0), build.index(1)
        base = build.op(Op.MULTIPLY, build.op(Op.DIVIDE, lane, group), group)
        row = build.op(Op.ADD, base, build.op(Op.REMAINDER, i, group))
        column = build.op(Op.DIVIDE, i, group)
        last = (shape[1] - 1) // group
    zero = build.const(0, DType.S64)
    row = build.op(Op.CLAMP, zero, row, build.const(source.partitions - 1, DType.S64))
    column = build.op(Op.CLAMP, zero, column, build.const(last, DType.S64))
    places = [
        (row, source.strides[0], 0, source.partitions - 1),
        (column, _columns(source), 0, last),
    ]
    return loop.get(source.pointer, values.stored_type(source.dtype), indices=places)


def _columns(source: Operand) -> int:
    """The stride from column to column of an index tensor."""
    dims = merge(source.free_dims)
    assert len(dims) <= 1, "an index tensor with free dimensions that do not merge"
    return dims[0][1] if dims else 0


_Place = tuple[Operand, tuple[int, ...], int]


def _place(lanes: Lanes, operand: Operand) -> _Place:
    return operand, lanes.steps(operand), lanes.advance(operand)


def _copy(
    loop: LoopMaker,
    here: _Place,
    dense: _Place,
    index: IndexTerm,
    mask: Scalar | None,
    *,
    inward: bool,
) -> None:
    kind = values.bits_type(here[0].dtype)
    if inward:
        item = loop.get(here[0].pointer, kind, here[1], advance=here[2], indices=[index], mask=mask)
        loop.put(dense[0].pointer, item, dense[1], advance=dense[2])
    else:
        item = loop.get(dense[0].pointer, kind, dense[1], advance=dense[2])
        loop.put(here[0].pointer, item, here[1], advance=here[2], indices=[index], mask=mask)
