"""Copies and fills: memset, fill, tensor_copy, tensor_copy_predicated, and device_print."""

from __future__ import annotations

import numpy as np

from neuronxcc.codegen import build
from neuronxcc.codegen.loop import Scalar
from neuronxcc.ir.op import Op
from nki.dtypes import info
from nki.isa.cast import write
from nki.isa.rows.hidden import SENTINEL
from nki.lowering import values
from nki.lowering.implement import implements
from nki.lowering.loops import Flat, Lanes
from nki.lowering.operands import Constant, Print
from nki.lowering.work import Work
from nki.memory import sentinel_bytes

__all__ = ["copied", "stored_number"]

_LANES = 128


def stored_number(value: float, dtype: str) -> Constant:
    """Return the item that writing a number stores, as constant bytes."""
    if info(dtype).is_packed:
        return Constant(bytes(info(dtype).itemsize))
    if info(dtype).is_int and float(value).is_integer() and abs(value) < 1 << 32:
        value = int(value)  # float32 does not hold all of 32 bits
    kind = np.int64 if isinstance(value, int) else np.float32
    with np.errstate(all="ignore"):
        return Constant(write(np.full((), value, kind), dtype).tobytes())


def _fill(work: Work, item: Constant) -> None:
    dtype = work.dtype("dst")
    few = work.operand("dst").partitions <= _LANES
    loop = work.lanes("dst") if few else work.flat("dst")
    loop.store("dst", loop.get(item, values.bits_type(dtype)))
    loop.finish()


@implements("memset")
def _memset(work: Work) -> None:
    _fill(work, stored_number(work.attributes["value"], work.dtype("dst")))


@implements("fill")
def _hidden_fill(work: Work) -> None:
    value, dtype = work.attributes["value"], work.dtype("dst")
    new = value == SENTINEL
    _fill(work, Constant(sentinel_bytes(dtype)) if new else stored_number(value, dtype))


def copied(loop: Lanes | Flat, name: str, dst: str = "dst") -> Scalar:
    """Return what a copy stores: the same bits if the types agree, else the value that is cast."""
    if loop.work.dtype(name) == loop.work.dtype(dst):
        return loop.bits(name)
    return values.cast(loop.read(name), loop.work.dtype(dst))


@implements("tensor_copy")
def _tensor_copy(work: Work) -> None:
    work.operand("dst", moved=True)
    lanes = work.lanes("dst", "src")
    lanes.store("dst", copied(lanes, "src"))
    lanes.finish()


@implements("tensor_copy_predicated")
def _predicated(work: Work) -> None:
    lanes = work.lanes("dst", "src", "predicate")
    if work.is_tile("src"):
        new = lanes.bits("src")
    else:
        number = stored_number(float(work.form("src")), work.dtype("dst"))
        new = lanes.get(number, values.bits_type(work.dtype("dst")))
    predicate = lanes.load("predicate")
    chosen = build.compare("NE", predicate, 0)
    if work.attributes["reverse_pred"]:
        chosen = build.op(Op.NOT, chosen)
    # Elements that are not chosen are stored too: a select is faster than a masked store.
    lanes.store("dst", build.select(chosen, new, lanes.bits("dst")))
    lanes.finish()


@implements("device_print")
def _print(work: Work) -> None:
    operand = work.operand("src")
    if operand.moved:
        operand = work.dense(operand)
    work.actions.append(Print(work.attributes["prefix"], operand))
