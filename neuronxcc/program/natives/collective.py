"""Copies of as many elements as memory says: chunks of collectives."""

from __future__ import annotations

from collections.abc import Sequence

from neuronxcc.ir.arithmetic import Array
from neuronxcc.program.natives.table import Native, NativeError, NativeSlot, Params, named


def _declare(params: Params) -> tuple[NativeSlot, ...]:
    size, dst, src, _ = named("bytes of an element, dst, src, most", params, (1, 0, 0, 0))
    number = NativeSlot(0, 4)
    return (NativeSlot(0, dst * size, written=True), NativeSlot(0, src * size), *[number] * 3)


def _run(params: Params, slots: Sequence[Array]) -> None:
    size, dst, src, most = params
    count, start, to = (int.from_bytes(slot[:4].tobytes(), "little") for slot in slots[2:])
    for what, end, limit in (
        ("copies", count, most),
        ("reads its source up to", start + count, src),
        ("writes its destination up to", to + count, dst),
    ):
        if end > limit:
            raise NativeError(
                "NKI320",
                f"a chunk of a collective {what} {end} elements, and there are {limit}",
                "correct the counts and displacements in the metadata tensor",
            )
    source = slots[1][start * size : (start + count) * size]
    slots[0][to * size : (to + count) * size] = source.copy()


# counted_copy(bytes of an element, dst, src, most): dst[dst_at : dst_at + count] =
# src[src_at : src_at + count] of so many elements each, side by side; slots: dst, src, and u32
# count, src_at, dst_at.
NATIVES = {"counted_copy": Native(_declare, _run)}
