"""The DMA engines: dma_copy, dma_transpose, dma_compute.

Where one side is on chip and a partition of it is one step of the other side, a copy works lane by
lane, so that it shares a lane group with the instructions on the tile.
"""

from __future__ import annotations

from dataclasses import replace

from neuronxcc.codegen import build
from neuronxcc.codegen.loop import Scalar
from neuronxcc.ir.op import Op
from nki.isa.rows.dma_rules import AXES
from nki.lowering import values
from nki.lowering.implement import implements
from nki.lowering.index_checks import check_all
from nki.lowering.indices import Moved
from nki.lowering.indirect import row_index, validity
from nki.lowering.loops import Flat, Lanes
from nki.lowering.operands import Operand
from nki.lowering.shapes import merge, split
from nki.lowering.work import Work

__all__ = ["by_lanes"]

_LONGEST_ROW = 1 << 16  # elements of a single partition that one thread copies


def _on_chip(work: Work, operand: Operand) -> bool:
    form = work.form(operand.name)
    return form is not None and form.region.on_chip


def by_lanes(operand: Operand, partitions: int) -> Operand | None:
    """Return the same elements as (partitions, ...); None if one stride does not reach them."""
    if operand.shape[0] == partitions:
        return operand
    halves = split(operand.dims, partitions)
    if halves is None:
        return None
    outer, inner = merge(halves[0]), halves[1]
    if len(outer) > 1:
        return None
    shape = (partitions, *(extent for extent, _ in inner))
    step = outer[0][1] if outer else 0
    return replace(operand, shape=shape, strides=(step, *(stride for _, stride in inner)))


class _Copy:
    """A kernel on operands of equal size, which stores where nothing is skipped.

    Attributes:
        loop: the kernel.
        operands: as it knows them.
    """

    def __init__(self, work: Work, *names: str) -> None:
        """Begin.

        Args:
            work: what is being made.
            names: the written operand and those that are read.
        """
        checks = [validity(work, name) for name in names[1:]]
        self._masks = [mask for mask in checks if mask is not None]
        operands = [work.operand(name, moved=True) for name in names]
        self.loop, known = _begin(work, [*operands, *self._masks], operands)
        self.operands = known[: len(operands)]
        self._masks = known[len(operands) :]

    def read(self, position: int) -> Scalar:
        """Return what operand number `position` holds, as float32."""
        source = self.operands[position]
        return values.to_float32(self.loop.load(source), source.dtype)

    def store(self, item: Scalar) -> None:
        """Store an item, and end the kernel."""
        chosen: Scalar | None = None
        for mask in self._masks:
            valid = build.compare("NE", self.loop.load(mask), 0)
            chosen = valid if chosen is None else build.op(Op.AND, chosen, valid)
        self.loop.store(self.operands[0], item, mask=chosen)
        self.loop.finish()


def _begin(
    work: Work, operands: list[Operand], named: list[Operand]
) -> tuple[Lanes | Flat, list[Operand]]:
    """Begin a kernel on operands of equal size; return it and how it knows the operands."""
    chip = next((operand for operand in named if _on_chip(work, operand)), None)
    if chip is not None and (chip.partitions > 1 or chip.free <= _LONGEST_ROW):
        lanes = [by_lanes(operand, chip.partitions) for operand in operands]
        known = [operand for operand in lanes if operand is not None]
        if len(known) == len(operands):
            return Lanes(work, work.template.row.name, known), known
    return Flat(work, work.template.row.name, operands), operands


@implements("dma_copy")
def _copy(work: Work) -> None:
    source = work.form("src").indirect
    if source is not None and source.kind == "vector" and _gathers_rows(work):
        _gather_rows(work)
        return
    copy = _Copy(work, "dst", "src")
    dst, src = copy.operands
    if src.dtype == dst.dtype:
        copy.store(copy.loop.bits(src))
    else:
        copy.store(values.cast(copy.read(1), dst.dtype))


def _gathers_rows(work: Work) -> bool:
    """Return whether a vector chooses a row of HBM for every partition of the destination."""
    dst, moved = work.form("dst"), Moved(work, "src")
    source = moved.source
    return (
        isinstance(source, Operand)
        and dst.indirect is None
        and dst.shape[0] == moved.form.shape[0] <= source.partitions
        and not work.variant.staged
    )


def _gather_rows(work: Work) -> None:
    moved = Moved(work, "src")
    check_all(moved)
    here = work.plain("src")
    still = replace(here, strides=(0, *here.strides[1:]))
    dst = work.operand("dst")
    lanes = Lanes(work, "dma_copy", [dst, still])
    item = row_index(lanes, moved)
    mask = moved.inside(item)
    kind = values.bits_type if still.dtype == dst.dtype else values.stored_type
    loaded = lanes.get(
        still.pointer,
        kind(still.dtype),
        lanes.steps(still),
        advance=lanes.advance(still),
        indices=[moved.index(item)],
        mask=mask,
    )
    if still.dtype != dst.dtype:
        loaded = values.cast(values.to_float32(loaded, still.dtype), dst.dtype)
    lanes.store(dst, loaded, mask=mask)
    lanes.finish()


@implements("dma_transpose")
def _transpose(work: Work) -> None:
    valid = validity(work, "src")
    src, dst = work.operand("src"), work.operand("dst")
    axes = work.attributes["axes"] or AXES[len(src.shape)]
    turned = _turn(work.apart(src, dst), axes)
    masks = [] if valid is None else [_turn(valid, axes)]
    loop = Flat(work, "dma_transpose", [dst, turned, *masks])
    chosen = build.compare("NE", loop.load(masks[0]), 0) if masks else None
    loop.store(dst, loop.bits(turned), mask=chosen)
    loop.finish()


def _turn(operand: Operand, axes: tuple[int, ...]) -> Operand:
    """Return an operand with its dimensions in another order."""
    return replace(
        operand,
        shape=tuple(operand.shape[axis] for axis in axes),
        strides=tuple(operand.strides[axis] for axis in axes),
    )


@implements("dma_compute")
def _compute(work: Work) -> None:
    form = work.template.form("srcs")
    assert isinstance(form, tuple)
    copy = _Copy(work, "dst", *[f"srcs[{i}]" for i in range(len(form))])
    total = copy.loop.number(0.0)
    for position in range(1, len(copy.operands)):
        # From 0 on, as the engine, which makes 0 of -0.
        total = build.op(Op.ADD, total, copy.read(position))
    copy.store(values.cast(total, copy.operands[0].dtype))
