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
from nki.lowering.indices import Moved, check_all
from nki.lowering.indirect import row_index
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


def _loop(work: Work, *names: str) -> tuple[Lanes | Flat, list[Operand]]:
    """Begin a kernel on operands of equal size; return it and how it knows the operands."""
    operands = [work.operand(name, moved=True) for name in names]
    chip = next((operand for operand in operands if _on_chip(work, operand)), None)
    if chip is not None and (chip.partitions > 1 or chip.free <= _LONGEST_ROW):
        lanes = [by_lanes(operand, chip.partitions) for operand in operands]
        known = [operand for operand in lanes if operand is not None]
        if len(known) == len(operands):
            return Lanes(work, work.template.row.name, known), known
    return Flat(work, work.template.row.name, operands), operands


def _cast(loop: Lanes | Flat, source: Operand, target: Operand) -> Scalar:
    item = loop.load(source)
    if source.dtype == target.dtype:
        return item
    return values.cast(values.to_float32(item, source.dtype), target.dtype)


@implements("dma_copy")
def _copy(work: Work) -> None:
    source, target = work.form("src").indirect, work.form("dst").indirect
    if source is not None and source.kind == "vector" and _gathers_rows(work):
        _gather_rows(work)
        return
    if _skips(work) and any(i is not None and i.kind != "scalar" for i in (source, target)):
        _skipping(work)
        return
    loop, (dst, src) = _loop(work, "dst", "src")
    mask = loop.inside("src") if _skips(work) and src.moved else None
    loop.store(dst, _cast(loop, src, dst), mask=mask)
    loop.finish()


def _skips(work: Work) -> bool:
    return bool(work.attributes["oob_mode"] == "skip")


def _gathers_rows(work: Work) -> bool:
    """Whether a vector chooses a row of HBM for every partition of the destination."""
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
    loaded = lanes.get(
        still.pointer,
        values.stored_type(still.dtype),
        lanes.steps(still),
        advance=lanes.advance(still),
        indices=[moved.index(item)],
        mask=mask,
    )
    if still.dtype != dst.dtype:
        loaded = values.cast(values.to_float32(loaded, still.dtype), dst.dtype)
    lanes.store(dst, loaded, mask=mask)
    lanes.finish()


def _skipping(work: Work) -> None:
    """A copy of which an index vector skips rows: the destination keeps what it has there."""
    from nki.lowering.indirect import transfer_rows  # noqa: PLC0415

    transfer_rows(work)


@implements("dma_transpose")
def _transpose(work: Work) -> None:
    src, dst = work.operand("src"), work.operand("dst", moved=True)
    axes = work.attributes["axes"] or AXES[len(src.shape)]
    turned = replace(
        src,
        shape=tuple(src.shape[axis] for axis in axes),
        strides=tuple(src.strides[axis] for axis in axes),
    )
    loop = Flat(work, "dma_transpose", [dst, turned])
    loop.store(dst, loop.load(turned))
    loop.finish()


@implements("dma_compute")
def _compute(work: Work) -> None:
    names = [f"srcs[{i}]" for i in range(len(work.template.form("srcs")))]  # type: ignore[arg-type]
    loop, (dst, *sources) = _loop(work, "dst", *names)
    total: Scalar | None = None
    for source in sources:
        part = values.to_float32(loop.load(source), source.dtype)
        # As the engine, from 0 on, which makes 0 of -0.
        total = build.op(Op.ADD, part, 0.0 if total is None else total)
    assert total is not None
    loop.store(dst, values.cast(total, dst.dtype))
    loop.finish()
