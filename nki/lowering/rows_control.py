"""Registers: register_move, register_load, register_store, and arithmetic on them."""

from __future__ import annotations

from neuronxcc.codegen import build
from neuronxcc.codegen.loop import Scalar
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.op import Op
from nki.dtypes import info
from nki.lowering import values
from nki.lowering.implement import implements
from nki.lowering.loops import Flat
from nki.lowering.operands import virtual
from nki.lowering.work import Work

__all__: list[str] = []


def _begin(work: Work, *names: str) -> Flat:
    """Begin a kernel of one point."""
    return work.flat(*(names or (virtual((1,), (0,)),)))


def _word(loop: Flat, name: str) -> Scalar:
    """Return the 32-bit register value of an integer, or the bits of anything else."""
    work = loop.work
    if not work.is_tile(name):
        return build.convert(loop.integer(name), DType.S32)
    item = loop.load(name) if info(work.dtype(name)).is_int else loop.bits(name)
    return build.convert(build.convert(item, DType.S64), DType.S32)


@implements("register_move")
def _move(work: Work) -> None:
    loop = _begin(work)
    loop.put(work.leaf("dst"), _word(loop, "src"), (0,))
    loop.finish()


@implements("register_load")
def _load(work: Work) -> None:
    loop = _begin(work, "src")
    loop.put(work.leaf("dst"), _word(loop, "src"), (0,))
    loop.finish()


@implements("register_store")
def _store(work: Work) -> None:
    work.operand("dst", moved=True)
    loop = _begin(work, "dst")
    word = build.convert(loop.register("src"), DType.U32)
    loop.store("dst", values.from_bits(word, work.dtype("dst")))
    loop.finish()


_ALU = {"add": Op.ADD, "subtract": Op.SUBTRACT, "multiply": Op.MULTIPLY}


@implements("register_alu")
def _alu(work: Work) -> None:
    loop = _begin(work)
    result = build.op(_ALU[work.attributes["op"]], loop.integer("a"), loop.integer("b"))
    loop.put(work.leaf("dst"), build.convert(result, DType.S32), (0,))
    loop.finish()
