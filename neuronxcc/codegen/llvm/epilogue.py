"""Epilogues: functions that run on a tile of a matrix product while it is in the cache.

An epilogue reads a tile of sums, the maker of an operand writes a tile of its elements.
"""

from __future__ import annotations

from neuronxcc.codegen.errors import CodegenUnsupported
from neuronxcc.codegen.llvm.emitter import Emitter, Val
from neuronxcc.codegen.llvm.formats import memory_elem
from neuronxcc.codegen.llvm.function import Emitted, pointers, wrap
from neuronxcc.codegen.llvm.host import Host
from neuronxcc.codegen.llvm.points import Points
from neuronxcc.codegen.loop import Kernel, Kind
from neuronxcc.codegen.space import Space

_PARAMETERS = (
    "ptr %bufs, i64 %batch, i64 %row0, i64 %rows, i64 %col0, i64 %cols, ptr %tile, i64 %tile_stride"
)


def emit(kernel: Kernel, host: Host, name: str) -> Emitted:
    """The epilogue function of a kernel over (batch, m, n) whose slot 0 is the tile."""
    if len(kernel.dims) != 3 or any(d.kind is Kind.REDUCE for d in kernel.dims):
        raise CodegenUnsupported("an epilogue runs over the parallel dimensions batch, m, n")
    if any(s.combine is not None for s in kernel.stores):
        raise CodegenUnsupported("a combining store in an epilogue")
    em = Emitter(host)
    space = Space(kernel, ((0,), (1,), (2,)))
    tile = Val("ptr", 0, "%tile", 0)
    points = Points(em, space, [tile, *pointers(em, len(kernel.slots), first=1)])
    rows, cols, row0, col0, stride = (
        Val("i64", 0, f"%{n}", 0) for n in ("rows", "cols", "row0", "col0", "tile_stride")
    )
    zero = em.const("i64", 0)
    points.position[0] = Val("i64", 0, "%batch", 0)
    full = em.binary("and", cols, em.const("i64", -host.lanes))

    def visit(column: Val) -> None:
        points.tile_column = column
        points.position[2] = em.binary("add", col0, column)
        points.visit()

    with em.loop(zero, rows, may_be_empty=True) as row:
        points.position[1] = em.binary("add", row0, row.index)
        points.tile_row = em.gep(
            memory_elem(kernel.slots[0].dtype), tile, em.binary("mul", row.index, stride)
        )
        points.lie_along(2, host.lanes)
        with em.loop(zero, full, host.lanes, may_be_empty=True) as loop:
            visit(loop.index)
        if host.masked:
            with em.when(em.compare("slt", full, cols)):
                lane = em.lane_constants("i32", range(host.lanes))
                rest = em.integer(em.binary("sub", cols, full), "i32")
                points.mask = em.compare("slt", lane, em.splat(rest, host.lanes))
                visit(full)
                points.mask = None
        else:
            points.single()
            with em.loop(full, cols, may_be_empty=True) as loop:
                visit(loop.index)
    return Emitted(wrap(em, name, _PARAMETERS), em.declarations, 0, 0, 0)
