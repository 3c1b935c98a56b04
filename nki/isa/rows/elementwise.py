"""Arithmetic element by element.

tensor_tensor, tensor_scalar, scalar_tensor_tensor, reciprocal, tensor_tensor_scan.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nki.isa import convert, cost
from nki.isa.alu import ALU, apply
from nki.isa.cast import Array, bit_pattern, to_integer, truncated
from nki.isa.operator_rules import alu_rules
from nki.isa.rows.common import (
    Arrays,
    flat,
    number_or_vector,
    on,
    read,
    source,
    target,
)
from nki.isa.rules import (
    not_all_psum,
    requires,
    same_free,
    same_partitions,
)
from nki.isa.spec import Attribute, Call, Instruction
from nki.isa.state import Step

__all__ = ["ROWS", "integer_path", "tensor_scalar_value", "wrap"]

Attributes = Mapping[str, Any]

_WIDE_INTEGERS = ("int32", "uint32")
_ARITHMETIC = tuple(op.name for op in ALU.values() if not op.bitvec)
_BINARY = tuple(op.name for op in ALU.values() if not op.unary)


def wrap(value: Array, like: Array) -> Array:
    """Keep the low bits of int64 results in the integer type of another array."""
    return value.astype(np.int64).astype(like.dtype)


def integer_path(call: Call, *names: str) -> bool:
    """Return whether all these operands are 32-bit integers, with which GpSimd computes exactly."""
    return all(call.tile(name).dtype in _WIDE_INTEGERS for name in names)


def _bits(value: Array, like: Array) -> Array:
    """Return an operand of a bitvec operator as a pattern of the width of another: (P, F).

    Wider patterns lose their upper bits, narrower ones are filled with zeros: no integer is cast.
    Floats lose their fractions.
    """
    array = flat(value)
    pattern = bit_pattern(array if array.dtype.kind in "iu" else truncated(array))
    return pattern.astype(bit_pattern(like).dtype)


def _written_bits(pattern: Array, dst: Array) -> Array:
    return pattern.astype(bit_pattern(dst).dtype).view(dst.dtype)


# tensor_tensor


def _tensor_tensor_engine(call: Call) -> str:
    if call.attributes["op"] == "power":
        return "gpsimd"
    arithmetic = not ALU[call.attributes["op"]].bitvec
    psum = any(tile.region == "psum" for _, _, tile in call.tiles())
    if arithmetic and integer_path(call, "dst", "data1", "data2") and not psum:
        return "gpsimd"
    return "vector"


def _tensor_tensor(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    op, dst = attributes["op"], operands["dst"]
    if ALU[op].bitvec:
        wide = max(
            (operands["data1"], operands["data2"]), key=lambda value: int(value.dtype.itemsize)
        )
        result = apply(op, _bits(operands["data1"], wide), _bits(operands["data2"], wide))
        return {"dst": _written_bits(result, dst)}
    exact = all(step.dtypes[n] in _WIDE_INTEGERS for n in ("dst", "data1", "data2"))
    if step.engine == "gpsimd" and exact and op != "power":
        x, y = (to_integer(flat(operands[name])) for name in ("data1", "data2"))
        return {"dst": wrap(apply(op, x, y), dst)}
    return {"dst": apply(op, read(step, operands, "data1"), read(step, operands, "data2"))}


def _tensor_tensor_cycles(call: Call) -> float:
    a, b = call.tile("data1"), call.tile("data2")
    fast = call.attributes["op"] in ("add", "multiply", "subtract") and all(
        tile.dtype == "bfloat16" and tile.region == "sbuf" for _, _, tile in call.tiles()
    )
    psum = "psum" in (a.region, b.region)
    return max(cost.MIN_II, a.free if psum or fast else 2 * a.free)


# tensor_scalar


def tensor_scalar_value(
    step: Step, operands: Arrays, data: Array, stages: tuple[tuple[str, str, bool], ...]
) -> Array:
    """Apply stages of (operator, name of the operand, reversed) to float32 data of (P, F)."""
    value = data
    for op, name, reverse in stages:
        other = read(step, operands, name) if name in operands else np.zeros((1, 1), np.float32)
        value = np.broadcast_to(apply(op, value, other, reverse=reverse), data.shape)
    return value


def _stages(attributes: Attributes) -> tuple[tuple[str, str, bool], ...]:
    return tuple(
        (attributes[f"op{i}"], f"operand{i}", attributes[f"reverse{i}"])
        for i in (0, 1)
        if attributes.get(f"op{i}") is not None
    )


def _tensor_scalar(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    stages = _stages(attributes)
    data, dst = operands["data"], operands["dst"]
    if not ALU[stages[0][0]].bitvec:
        return {"dst": tensor_scalar_value(step, operands, read(step, operands, "data"), stages)}
    pattern = bit_pattern(flat(data))
    for op, name, reverse in stages:
        other = _bits(operands[name], data) if name in operands else np.zeros_like(pattern[:1, :1])
        x, y = np.broadcast_arrays(pattern, other)
        pattern = apply(op, x, y, reverse=reverse)
    return {"dst": _written_bits(pattern, dst)}


def _tensor_scalar_engine(call: Call) -> str:
    attributes = call.attributes
    return "gpsimd" if "rsqrt" in (attributes["op0"], attributes["op1"]) else "vector"


def _scalar_engine_ops(call: Call) -> bool:
    pair = (call.attributes["op0"], call.attributes["op1"])
    known = (("multiply", "add"), ("multiply", None), ("add", None))
    return call.engine != "scalar" or pair in known


def _gpsimd_only_rsqrt(call: Call) -> bool:
    asked = call.attributes["engine"] == "gpsimd"
    return not asked or "rsqrt" in (call.attributes["op0"], call.attributes["op1"])


def _rsqrt_engine(call: Call) -> bool:
    uses = "rsqrt" in (call.attributes["op0"], call.attributes["op1"])
    return not uses or call.engine == "gpsimd"


def _bitvec_on_vector(call: Call) -> bool:
    return not ALU[call.attributes["op0"]].bitvec or call.engine == "vector"


def _arithmetic_vectors_float(call: Call) -> bool:
    if ALU[call.attributes["op0"]].bitvec:
        return True
    tiles = [call.get("operand0"), call.get("operand1")]
    return all(tile is None or tile.dtype == "float32" for tile in tiles)


def _op1_pair(call: Call) -> bool:
    op1, operand1 = call.attributes["op1"], call.operands["operand1"]
    if op1 is None:
        return operand1 is None
    return operand1 is not None or ALU[op1].unary


def _op0_operand(call: Call) -> bool:
    return call.operands["operand0"] is not None or ALU[call.attributes["op0"]].unary


def _tensor_scalar_cycles(call: Call) -> float:
    free = call.tile("data").free
    # "4x lower" throughput than the Scalar Engine, whose activation takes max(MIN_II, N).
    return max(cost.MIN_II, 4 * free if call.engine == "gpsimd" else free)


# scalar_tensor_tensor, reciprocal, tensor_tensor_scan


def _scalar_tensor_tensor(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    data = read(step, operands, "data")
    stages = _stages(attributes)
    first = tensor_scalar_value(step, operands, data, stages[:1])
    return {"dst": tensor_scalar_value(step, operands, first, stages[1:])}


def _scalar_tensor_tensor_cycles(call: Call) -> float:
    tiles = [call.tile("data"), call.tile("operand1")]
    ops = (call.attributes["op0"], call.attributes["op1"])
    fast = all(t.dtype == "bfloat16" for t in tiles) and ops == ("subtract", "multiply")
    free = tiles[0].free
    return free if fast and free % 2 == 0 else 2 * free


def _reciprocal(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    del attributes
    data = read(step, operands, "data")
    return {"dst": apply("reciprocal", data, data)}


def _scan(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    data0, data1 = read(step, operands, "data0"), read(step, operands, "data1")
    state = np.broadcast_to(read(step, operands, "initial")[:, 0], data0.shape[:1])
    result = np.empty_like(data0)
    for column in range(data0.shape[1]):
        inner = apply(attributes["op0"], data0[:, column], state, reverse=attributes["reverse0"])
        state = apply(attributes["op1"], inner, data1[:, column], reverse=attributes["reverse1"])
        result[:, column] = state
    return {"dst": result}


_REVERSE0 = Attribute("reverse0", convert.flag, default=False)
_REVERSE1 = Attribute("reverse1", convert.flag, default=False)

ROWS = (
    Instruction(
        "tensor_tensor",
        (
            target(indirect=True),
            source("data1", indirect=True),
            source("data2"),
            Attribute("op", convert.op(*_BINARY)),
            convert.engine(),
            convert.NAME,
        ),
        on("vector", "gpsimd", choose=_tensor_tensor_engine),
        _tensor_tensor,
        cost.by(_tensor_tensor_cycles),
        (
            same_partitions("dst", "data1", "data2"),
            same_free("dst", "data1", "data2"),
            not_all_psum("data1", "data2"),
            *alu_rules(("op", None), integers=("dst", "data1", "data2")),
            requires(
                "NKI113",
                "tensor_tensor operator power runs on the gpsimd engine only",
                "leave engine open; power reads and writes sbuf only",
                lambda call: call.attributes["op"] != "power" or call.engine == "gpsimd",
            ),
        ),
    ),
    Instruction(
        "tensor_scalar",
        (
            target(indirect=True),
            source("data", indirect=True),
            Attribute("op0", convert.op()),
            number_or_vector("operand0", nullable=True),
            _REVERSE0,
            Attribute("op1", convert.op(none=True), None),
            number_or_vector("operand1", default=None),
            _REVERSE1,
            convert.engine(),
            convert.NAME,
        ),
        on("vector", "scalar", "gpsimd", v2=("vector", "gpsimd"), choose=_tensor_scalar_engine),
        _tensor_scalar,
        cost.by(_tensor_scalar_cycles, f"{cost.OCTOBER}; {cost.SHARED} for gpsimd"),
        (
            same_partitions("dst", "data", "operand0", "operand1"),
            same_free("dst", "data"),
            *alu_rules(("op0", "operand0"), ("op1", "operand1"), integers=("dst", "data")),
            requires(
                "NKI101",
                "tensor_scalar operator {op} needs operand0",
                "pass a number or a tensor of one element per partition",
                _op0_operand,
                op=lambda call: call.attributes["op0"],
            ),
            requires(
                "NKI101",
                "tensor_scalar op1 and operand1 must be given together",
                "pass both, or leave both out",
                _op1_pair,
            ),
            requires(
                "NKI107",
                "tensor_scalar operands of arithmetic operators must be float32",
                "convert the tensor with nisa.tensor_copy",
                _arithmetic_vectors_float,
            ),
            requires(
                "NKI113",
                "tensor_scalar bitvec operators run on the vector engine only, not on {engine}",
                "leave engine open",
                _bitvec_on_vector,
                engine=lambda call: call.engine,
            ),
            requires(
                "NKI113",
                "tensor_scalar runs on the gpsimd engine for rsqrt only",
                "use nisa.engine.vector or nisa.engine.scalar, or leave engine open",
                _gpsimd_only_rsqrt,
            ),
            requires(
                "NKI113",
                "tensor_scalar operator rsqrt runs on the gpsimd engine only",
                "leave engine open, or use nisa.activation(op=nl.rsqrt) on the scalar engine",
                _rsqrt_engine,
            ),
            requires(
                "NKI114",
                "tensor_scalar operators {ops} do not run on the scalar engine of NeuronCore-v3",
                "it has multiply then add, multiply, and add; use nisa.engine.vector",
                _scalar_engine_ops,
                generations=(3,),
                ops=lambda call: f"({call.attributes['op0']}, {call.attributes['op1']})",
            ),
        ),
    ),
    Instruction(
        "scalar_tensor_tensor",
        (
            target(),
            source("data"),
            Attribute("op0", convert.op(*_ARITHMETIC)),
            number_or_vector("operand0"),
            Attribute("op1", convert.op(*_ARITHMETIC)),
            source("operand1"),
            _REVERSE0,
            _REVERSE1,
            convert.NAME,
        ),
        on("vector"),
        _scalar_tensor_tensor,
        cost.by(_scalar_tensor_tensor_cycles),
        (
            same_partitions("dst", "data", "operand0", "operand1"),
            same_free("dst", "data", "operand1"),
            not_all_psum("data", "operand1"),
            *alu_rules(("op0", None), ("op1", None)),
        ),
    ),
    Instruction(
        "reciprocal",
        (target(), source("data"), convert.NAME),
        on("vector"),
        _reciprocal,
        cost.streaming("data", 8, cost.SHARED),
        (same_partitions("dst", "data"), same_free("dst", "data")),
    ),
    Instruction(
        "tensor_tensor_scan",
        (
            target(),
            source("data0"),
            source("data1"),
            number_or_vector("initial"),
            Attribute("op0", convert.op(*[op for op in _ARITHMETIC if op in _BINARY])),
            Attribute("op1", convert.op(*[op for op in _ARITHMETIC if op in _BINARY])),
            _REVERSE0,
            _REVERSE1,
            convert.NAME,
        ),
        on("vector"),
        _scan,
        cost.streaming("data0", 2),
        (
            same_partitions("dst", "data0", "data1", "initial"),
            same_free("dst", "data0", "data1"),
            not_all_psum("data0", "data1"),
            *alu_rules(("op0", None), ("op1", None)),
        ),
    ),
)
