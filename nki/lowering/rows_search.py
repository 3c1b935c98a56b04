"""Searches: max8, nc_find_index8, nc_match_replace8, nonzero_with_count, topk."""

from __future__ import annotations

from neuronxcc.codegen import build
from neuronxcc.ir.dtypes import DType
from nki.lowering.implement import implements
from nki.lowering.loops import Lanes
from nki.lowering.native import Rows, Wanted, call, given, raw, wanted
from nki.lowering.operands import f32
from nki.lowering.work import Work

__all__: list[str] = []

_GROUP = 16


@implements("max8")
def _max8(work: Work) -> None:
    source = work.operand("src")
    out, x = wanted(work, "dst", "float32"), given(work, "src")
    call(
        work,
        "max8",
        source.partitions,
        (out.rows, x),
        lambda rows: (rows, source.free, out.rows.step, x.step),
    )
    out.finish()


def _indices(work: Work, name: str) -> Wanted:
    """Return where a search puts positions: uint32, of which a uint16 keeps the low half."""
    operand = work.operand(name)
    if operand.dtype == "uint32":
        return wanted(work, name)
    made = work.temporary(operand.shape, "uint32")

    def finish() -> None:
        lanes = Lanes(work, "write", [operand, made])
        lanes.store(operand, build.convert(lanes.load(made), DType.U16))
        lanes.finish()

    return Wanted(Rows(made.pointer, 4 * made.free), finish)


@implements("nc_find_index8")
def _find_index8(work: Work) -> None:
    data = work.operand("data")
    index, x, values = _indices(work, "dst"), given(work, "data"), given(work, "vals")
    slots = (index.rows, x, values)
    call(
        work,
        "find_index8",
        data.partitions,
        slots,
        lambda rows: (rows, data.free, *(slot.step for slot in slots)),
    )
    index.finish()


@implements("nc_match_replace8")
def _match_replace8(work: Work) -> None:
    data = work.operand("data")
    out, x, values = wanted(work, "dst", "float32"), given(work, "data"), given(work, "vals")
    index = _indices(work, "dst_idx") if work.has("dst_idx") else None
    found = work.temporary((data.partitions, 8), "uint32") if index is None else None
    places = Rows(found.pointer, 32) if found is not None else index.rows  # type: ignore[union-attr]
    slots = (out.rows, places, x, values)
    call(
        work,
        "match_replace8",
        data.partitions,
        (*slots, Rows(f32(work.attributes["imm"]), 0)),
        lambda rows: (rows, data.free, *(slot.step for slot in slots)),
    )
    out.finish()
    if index is not None:
        index.finish()


@implements("nonzero_with_count")
def _nonzero(work: Work) -> None:
    source = work.operand("src")
    out, x = wanted(work, "dst", keeps=True), raw(work, "src")
    # -0 is 0.
    mask = 0x7FFFFFFF if source.dtype == "float32" else 0xFFFFFFFF
    attributes = work.attributes
    call(
        work,
        "nonzero_with_count",
        source.partitions,
        (out.rows, x),
        lambda rows: (
            rows,
            _GROUP,
            source.free,
            mask,
            attributes["index_offset"],
            attributes["padding_val"],
            out.rows.step,
            x.step,
        ),
        most=_GROUP,
    )
    out.finish()


@implements("topk")
def _topk(work: Work) -> None:
    k = work.operand("val_dst").free
    values, indices = wanted(work, "val_dst"), wanted(work, "idx_dst")
    slots = (values.rows, indices.rows, raw(work, "src"))
    call(
        work,
        "topk",
        work.operand("src").partitions,
        slots,
        lambda rows: (rows, k, work.attributes["n"], *(slot.step for slot in slots)),
        most=_GROUP,
    )
    values.finish()
    indices.finish()
