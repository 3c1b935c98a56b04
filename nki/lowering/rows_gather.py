"""Movement by index or mask: local_gather, nc_n_gather, nc_stream_shuffle, sequence_bounds."""

from __future__ import annotations

from nki.dtypes import info
from nki.lowering.implement import implements
from nki.lowering.native import Rows, call, item_bytes, raw, wanted
from nki.lowering.work import Work

__all__: list[str] = []

_GROUP = 16
_QUADRANT = 32


def _gather(work: Work, data: str, index: str, group: int, count: int, width: int) -> None:
    source = work.operand(data)
    out = wanted(work, "dst")
    slots = (out.rows, raw(work, data, apart_from="dst"), raw(work, index, apart_from="dst"))
    call(
        work,
        "gather",
        source.partitions,
        slots,
        lambda rows: (
            rows,
            group,
            count,
            width,
            source.free,
            source.itemsize,
            item_bytes(work, index),
            *(slot.step for slot in slots),
        ),
        most=_GROUP if group == _GROUP else 0,
    )
    out.finish()


@implements("local_gather")
def _local_gather(work: Work) -> None:
    count, width = work.attributes["num_valid_indices"], work.attributes["num_elem_per_idx"]
    if count is None:
        count = work.operand("index").free * _GROUP
    _gather(work, "src_buffer", "index", _GROUP, count, width)


@implements("nc_n_gather")
def _n_gather(work: Work) -> None:
    _gather(work, "data", "indices", 1, work.operand("dst").free, 1)


@implements("nc_stream_shuffle")
def _shuffle(work: Work) -> None:
    target = work.operand("dst")
    out, source = wanted(work, "dst", keeps=True), raw(work, "src")
    size = target.free * target.itemsize
    mask = work.attributes["shuffle_mask"]
    call(
        work,
        "shuffle",
        target.partitions,
        (out.rows, source),
        lambda rows: (rows, size, out.rows.step, source.step, *mask),
        most=_QUADRANT,
    )
    out.finish()


@implements("sequence_bounds")
def _bounds(work: Work) -> None:
    segments, target = work.operand("segment_ids"), work.operand("dst")
    direct = target.strides[1] > 0 and (target.strides[2] == 1 or segments.free == 1)
    out = target if direct else work.temporary(target.shape, target.dtype)
    ends = out.strides[1] * out.itemsize
    is_float = int(info(segments.dtype).is_float)
    slots = (Rows(out.pointer, 0), raw(work, "segment_ids"))
    call(work, "sequence_bounds", 1, slots, lambda _: (segments.free, is_float, ends))
    if not direct:
        work.copy_bits(out, target)
