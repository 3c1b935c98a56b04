"""The instructions of collectives in merged recordings: combine, counted_copy."""

from __future__ import annotations

import struct

from neuronxcc.codegen.loop import Scalar
from neuronxcc.program.natives import native
from neuronxcc.program.tape_functions import TapeNative
from nki.dtypes import info
from nki.lowering import alu, values
from nki.lowering.implement import implements
from nki.lowering.loops import Flat
from nki.lowering.operands import Constant, Operand, Pointer, Reach
from nki.lowering.shapes import merge
from nki.lowering.work import Work

__all__: list[str] = []


@implements("combine")
def _combine(work: Work) -> None:
    srcs = work.template.form("srcs")
    assert isinstance(srcs, tuple)
    names = [f"srcs[{i}]" for i in range(len(srcs))]
    sources = [work.operand(name) for name in names]
    dst = work.operand("dst")
    loop = Flat(work, "combine", [dst, *sources])
    whole = info(dst.dtype).is_int
    total: Scalar | None = None
    for source in sources:
        item = loop.load(source)
        wide = values.to_integer(item) if whole else values.to_float32(item, source.dtype)
        total = wide if total is None else alu.apply(work.attributes["op"], total, wide)
    assert total is not None
    loop.store(dst, values.cast(total, dst.dtype))
    loop.finish()


def _is_flat(operand: Operand) -> bool:
    """Return whether all elements lie side by side in their order."""
    return merge(operand.dims) in ((), ((operand.size, 1),))


def _number(work: Work, name: str) -> Pointer:
    if work.is_tile(name):
        return work.operand(name).pointer
    return Constant(struct.pack("<I", work.form(name)))


@implements("counted_copy")
def _counted_copy(work: Work) -> None:
    dst, src = work.operand("dst"), work.operand("src")
    out, given = dst, src
    if not _is_flat(dst):
        out = work.temporary(dst.shape, dst.dtype)
        work.copy_bits(dst, out)
    if not _is_flat(src):
        given = work.dense(src)
    params = dst.itemsize, dst.size, src.size, work.attributes["most"]
    numbers = [_number(work, name) for name in ("count", "src_at", "dst_at")]
    reaches = [
        Reach(slot.low, slot.high, slot.written) for slot in native("counted_copy").declare(params)
    ]
    work.add(TapeNative("counted_copy", params), [out.pointer, given.pointer, *numbers], reaches)
    if out is not dst:
        work.copy_bits(out, dst)
