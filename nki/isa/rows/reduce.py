"""Reductions.

tensor_reduce, tensor_partition_reduce, tensor_scalar_reduce, tensor_scalar_cumulative.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nki.isa import convert, cost, enums
from nki.isa.alu import ALU, fold
from nki.isa.cast import Array, bit_pattern, to_float32
from nki.isa.operator_rules import alu_rules, bitvec_integers
from nki.isa.rows.accumulate import accumulate, accumulate_steps
from nki.isa.rows.common import (
    FLOAT32,
    SBUF,
    Arrays,
    flat,
    number_or_vector,
    on,
    read,
    source,
    target,
    vector,
)
from nki.isa.rows.elementwise import tensor_scalar_value
from nki.isa.rules import load_needs_init, requires, same_free, same_partitions
from nki.isa.spec import Attribute, Call, Instruction, Role
from nki.isa.state import Step

__all__ = ["ROWS"]

Attributes = Mapping[str, Any]

_REDUCTIONS = tuple(op.name for op in ALU.values() if op.reduces)
_ARITHMETIC = tuple(op.name for op in ALU.values() if not op.bitvec)
_CUMULATIVE_DTYPES = frozenset(
    {
        "bfloat16", "float16", "float32", "float8_e4m3", "float8_e4m3fn", "float8_e5m2",
        "uint8", "uint16", "int8", "int16",
    }
)  # fmt: skip


# tensor_reduce


def _axes(rank: int, axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(axis % rank if -rank <= axis < rank else axis for axis in axes))


def _reduced(call: Call) -> tuple[int, ...]:
    return _axes(len(call.tile("data").shape), call.attributes["axis"])


def _last_axes(call: Call) -> bool:
    rank, axes = len(call.tile("data").shape), _reduced(call)
    return bool(axes) and axes[0] > 0 and axes == tuple(range(axes[0], rank))


def _kept(call: Call) -> int:
    shape = call.tile("data").shape
    return int(np.prod(shape[1 : _reduced(call)[0]], dtype=np.int64))


def _tensor_reduce(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    data, op = operands["data"], attributes["op"]
    first = _axes(data.ndim, attributes["axis"])[0]
    rows = int(np.prod(data.shape[:first], dtype=np.int64))
    if ALU[op].bitvec:
        pattern = fold(op, bit_pattern(data).reshape(rows, -1))
        dst = operands["dst"]
        return {"dst": pattern.astype(bit_pattern(dst).dtype).view(dst.dtype)}
    value = fold(op, to_float32(data, step.dtypes["data"]).reshape(rows, -1))
    return {"dst": -value if attributes["negate"] else value}


def _tensor_reduce_cycles(call: Call) -> float:
    halved = call.attributes["op"] in ("add", "maximum") and all(
        tile.dtype == "bfloat16" for _, _, tile in call.tiles()
    )
    free = call.tile("data").free
    return free / 2 if halved else free


# tensor_partition_reduce

_PARTITION = ("add", "average", "maximum", "bitwise_or", "bitwise_and")


def _partition_reduce(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    data, op = flat(operands["data"]), attributes["op"]
    if op.startswith("bitwise"):
        dst = operands["dst"]
        pattern = fold(op, bit_pattern(data).T)
        return {"dst": pattern.astype(bit_pattern(dst).dtype).view(dst.dtype)}
    value = read(step, operands, "data").T
    total = fold("maximum" if op == "maximum" else "add", value)
    return {"dst": total / np.float32(data.shape[0]) if op == "average" else total}


def _partition_dst(call: Call) -> bool:
    dst, data = call.tile("dst"), call.tile("data")
    return dst.partitions == 1 and dst.free == data.free


# tensor_scalar_reduce and tensor_scalar_cumulative


def _scalar_reduce(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    data = read(step, operands, "data")
    stage = (attributes["op0"], "operand0", attributes["reverse0"])
    value = tensor_scalar_value(step, operands, data, (stage,))
    initial = read(step, operands, "reduce_init") if "reduce_init" in operands else None
    registers = accumulate(step, value, attributes["reduce_op"], attributes["reduce_cmd"], initial)
    if "reduce_res" not in operands:
        return {"dst": value}
    return {
        "dst": value,
        "reduce_res": -registers if attributes["reduce_res_negate"] else registers,
    }


def _cumulative(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    stage = (attributes["op0"], "imm0", False)
    value = tensor_scalar_value(step, operands, read(step, operands, "src"), (stage,))
    initial = read(step, operands, "imm1") if "imm1" in operands else None
    steps = accumulate_steps(
        step, np.ascontiguousarray(value), attributes["op1"], attributes["reduce_cmd"], initial
    )
    return {"dst": steps}


def _reduce_cmd(*allowed: str, default: str) -> Attribute:
    return Attribute("reduce_cmd", convert.member(enums.reduce_cmd, *allowed), default)


ROWS = (
    Instruction(
        "tensor_reduce",
        (
            target(indirect=True),
            Attribute("op", convert.op(*_REDUCTIONS)),
            source("data", indirect=True),
            Attribute("axis", convert.axes),
            Attribute("negate", convert.flag, default=False),
            Attribute("keepdims", convert.flag, default=False),
            convert.NAME,
        ),
        on("vector"),
        _tensor_reduce,
        cost.by(_tensor_reduce_cycles),
        (
            same_partitions("dst", "data"),
            requires(
                "NKI133",
                "tensor_reduce axis {axis} of shape {shape} are not the last free dimensions",
                "permute the view so that reduced dimensions come last; to reduce over partitions "
                "use nisa.nc_transpose, nisa.nc_matmul with ones, or nisa.tensor_partition_reduce",
                _last_axes,
                axis=lambda call: call.attributes["axis"],
                shape=lambda call: call.tile("data").shape,
            ),
            requires(
                "NKI106",
                "tensor_reduce dst has {got} elements per partition, the reduction gives {want}",
                "allocate dst with the dimensions that are left",
                lambda call: call.tile("dst").free == _kept(call),
                got=lambda call: call.tile("dst").free,
                want=_kept,
            ),
            bitvec_integers("op", integers=("dst", "data")),
            requires(
                "NKI116",
                "tensor_reduce negate needs an arithmetic operator, got {op}",
                "leave negate out for bitvec operators",
                lambda c: not (c.attributes["negate"] and ALU[c.attributes["op"]].bitvec),
                op=lambda call: call.attributes["op"],
            ),
        ),
    ),
    Instruction(
        "tensor_partition_reduce",
        (
            target(regions=SBUF),
            Attribute("op", convert.op(*_PARTITION)),
            source("data", regions=SBUF),
            convert.NAME,
        ),
        on("gpsimd"),
        _partition_reduce,
        cost.by(
            lambda call: cost.GPSIMD_START + call.tile("data").free,
            "unpublished; as the other GpSimd instructions of " + cost.OCTOBER,
        ),
        (
            requires(
                "NKI105",
                "tensor_partition_reduce dst has shape {got}, it must be one partition of {want} "
                "elements",
                "allocate dst with shape (1, elements per partition of data)",
                _partition_dst,
                got=lambda call: call.tile("dst").shape,
                want=lambda call: call.tile("data").free,
            ),
            requires(
                "NKI107",
                "tensor_partition_reduce operator {op} needs integers",
                "reinterpret the bits with .view(nl.uint32) or a type of its own size",
                lambda c: (
                    not c.attributes["op"].startswith("bitwise")
                    or all(tile.info.is_int for _, _, tile in c.tiles())
                ),
                op=lambda call: call.attributes["op"],
            ),
        ),
    ),
    Instruction(
        "tensor_scalar_reduce",
        (
            target(indirect=True),
            source("data", indirect=True),
            Attribute("op0", convert.op(*_ARITHMETIC)),
            number_or_vector("operand0", nullable=True, dtypes=FLOAT32),
            Attribute("reduce_op", convert.op("add", "multiply", "maximum", "minimum")),
            vector("reduce_res", role=Role.WRITE, default=None),
            Attribute("reverse0", convert.flag, default=False),
            _reduce_cmd("reset_reduce", "reduce", "load_reduce", default="reset_reduce"),
            number_or_vector("reduce_init", default=None, dtypes=FLOAT32),
            Attribute("reduce_res_negate", convert.flag, default=False),
            convert.NAME,
        ),
        on("vector"),
        _scalar_reduce,
        cost.plus_read("data"),
        (
            same_partitions("dst", "data", "operand0", "reduce_res", "reduce_init"),
            same_free("dst", "data"),
            *alu_rules(("op0", "operand0")),
            *load_needs_init("reduce_init"),
            requires(
                "NKI101",
                "tensor_scalar_reduce operator {op} needs operand0",
                "pass a number or a tensor of one element per partition",
                lambda c: c.operands["operand0"] is not None or ALU[c.attributes["op0"]].unary,
                op=lambda call: call.attributes["op0"],
            ),
            requires(
                "NKI116",
                "tensor_scalar_reduce reverse0 is documented as not supported yet",
                "negate afterwards, or use nisa.tensor_scalar and nisa.tensor_reduce",
                lambda call: not call.attributes["reverse0"],
            ),
        ),
    ),
    Instruction(
        "tensor_scalar_cumulative",
        (
            target(dtypes=_CUMULATIVE_DTYPES, indirect=True),
            source("src", _CUMULATIVE_DTYPES, indirect=True),
            Attribute("op0", convert.op(*_ARITHMETIC)),
            Attribute("op1", convert.op("add", "subtract", "multiply", "maximum", "minimum")),
            number_or_vector("imm0", dtypes=FLOAT32),
            number_or_vector("imm1", default=None, dtypes=FLOAT32),
            _reduce_cmd("reset_reduce", "reduce", "load_reduce", default="reset_reduce"),
            convert.NAME,
        ),
        on("vector"),
        _cumulative,
        cost.streaming("src", 1, "unpublished; as tensor_scalar of " + cost.OCTOBER),
        (
            same_partitions("dst", "src", "imm0", "imm1"),
            same_free("dst", "src"),
            *alu_rules(("op0", "imm0")),
            *load_needs_init("imm1"),
        ),
    ),
)
