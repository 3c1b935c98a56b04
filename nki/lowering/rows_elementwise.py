"""Arithmetic element by element: tensor_tensor, tensor_scalar, scalar_tensor_tensor, reciprocal."""

from __future__ import annotations

from neuronxcc.codegen import build
from neuronxcc.codegen.loop import Scalar
from neuronxcc.ir.dtypes import DType
from nki.dtypes import info
from nki.isa.alu import ALU
from nki.lowering import alu, values
from nki.lowering.implement import implements
from nki.lowering.work import Lanes, Work

__all__ = ["staged", "stages"]

_WIDE_INTEGERS = ("int32", "uint32")


@implements("tensor_tensor")
def _tensor_tensor(work: Work) -> None:
    op = work.attributes["op"]
    lanes = work.lanes("dst", "data1", "data2")
    kinds = [work.dtype(name) for name in ("dst", "data1", "data2")]
    if ALU[op].bitvec:
        x, y = lanes.bits("data1"), lanes.bits("data2")
        wide = x.dtype if x.dtype.itemsize >= y.dtype.itemsize else y.dtype
        result = alu.apply(op, build.convert(x, wide), build.convert(y, wide))
        lanes.store("dst", values.from_bits(result, kinds[0]))
    elif work.template.engine == "gpsimd" and op != "power" and _all_wide(kinds):
        # Exact with 64 bits; the low ones are kept.
        result = alu.apply(op, lanes.integer("data1"), lanes.integer("data2"))
        lanes.store("dst", build.convert(result, values.stored_type(kinds[0])))
    else:
        lanes.write("dst", alu.apply(op, lanes.read("data1"), lanes.read("data2")))
    lanes.finish()


def _all_wide(kinds: list[str]) -> bool:
    return all(kind in _WIDE_INTEGERS for kind in kinds)


def stages(work: Work) -> list[tuple[str, str, bool]]:
    """Return (operator, name of its operand, reversed) of op0 and, if it is there, op1."""
    attributes = work.attributes
    return [
        (attributes[f"op{i}"], f"operand{i}", attributes[f"reverse{i}"])
        for i in (0, 1)
        if attributes.get(f"op{i}") is not None
    ]


def staged(lanes: Lanes, value: Scalar, steps: list[tuple[str, str, bool]]) -> Scalar:
    """Apply stages to a float32 value."""
    for op, name, reverse in steps:
        other = lanes.read(name) if lanes.work.has(name) else None
        value = alu.apply(op, value, other, reverse=reverse)
    return value


@implements("tensor_scalar")
def _tensor_scalar(work: Work) -> None:
    steps = stages(work)
    lanes = work.lanes("dst", "data")
    if not ALU[steps[0][0]].bitvec:
        lanes.write("dst", staged(lanes, lanes.read("data"), steps))
    else:
        pattern = lanes.bits("data")
        for op, name, reverse in steps:
            other = _pattern(lanes, name, pattern.dtype) if work.has(name) else None
            pattern = alu.apply(op, pattern, other, reverse=reverse)
        lanes.store("dst", values.from_bits(pattern, work.dtype("dst")))
    lanes.finish()


def _pattern(lanes: Lanes, name: str, wanted: DType) -> Scalar:
    """Return an operand of a bitvec operator: its bits, or an integer's low ones."""
    if not lanes.work.is_tile(name):
        return build.convert(lanes.integer(name), wanted)
    if info(lanes.work.dtype(name)).is_int or lanes.work.dtype(name) == "bool_":
        return build.convert(lanes.bits(name), wanted)
    # A float is taken to the integer before it.
    item = build.convert(lanes.load(name), DType.F32)
    return build.convert(build.convert(item, DType.S64), wanted)


@implements("scalar_tensor_tensor")
def _scalar_tensor_tensor(work: Work) -> None:
    lanes = work.lanes("dst", "data", "operand1")
    lanes.write("dst", staged(lanes, lanes.read("data"), stages(work)))
    lanes.finish()


@implements("reciprocal")
def _reciprocal(work: Work) -> None:
    lanes = work.lanes("dst", "data")
    lanes.write("dst", alu.apply("reciprocal", lanes.read("data"), None))
    lanes.finish()
