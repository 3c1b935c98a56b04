"""Functions of one variable: activation, activation_reduce, activate2, exponential."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nki.isa import convert, cost, enums
from nki.isa.act import activate, outside
from nki.isa.alu import apply
from nki.isa.cast import Array
from nki.isa.rows.accumulate import accumulate
from nki.isa.rows.common import (
    FLOAT32,
    FLOATS,
    INTEGERS,
    NUMERIC,
    Arrays,
    number_or_vector,
    on,
    read,
    source,
    target,
    vector,
)
from nki.isa.rules import load_needs_init, requires, same_free, same_partitions
from nki.isa.spec import Attribute, Call, Instruction, Operand, Role, Rule, Tile
from nki.isa.state import Finding, Step

__all__ = ["ROWS"]

Attributes = Mapping[str, Any]

_COMMANDS = ("idle", "reset", "reduce", "reset_reduce")
_STAGES = (
    ("multiply", "add"),
    ("multiply", "subtract"),
    ("multiply", "bypass"),
    ("add", "bypass"),
    ("subtract", "bypass"),
    ("bypass", "bypass"),
)
_EXP_DST = (FLOATS | INTEGERS) - {"float8_e4m3fn", "uint32"}
_EXP_SRC = (FLOATS | INTEGERS) - {"float8_e4m3fn", "tfloat32"}
_EXP_RES = FLOATS - {"float8_e4m3fn"}


def _function(step: Step, name: str, value: Array, parameter: Array | None = None) -> Array:
    bad = int(np.count_nonzero(outside(name, value)))
    if bad:
        step.findings.append(
            Finding(
                "NKI142",
                f"{bad} of {value.size} inputs of {name} lie outside of its documented range",
            )
        )
    return activate(name, value, parameter)


def _activation(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    value = read(step, operands, "data") * read(step, operands, "scale")
    if "bias" in operands:
        value = value + read(step, operands, "bias")
    result = _function(step, attributes["op"], value)
    op = attributes["reduce_op"] or "add"
    registers = accumulate(step, result, op, attributes["reduce_cmd"])
    written = {"dst": result}
    if "reduce_res" in operands:
        written["reduce_res"] = registers
    return written


def _activation_reduce(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    return _activation(step, operands, {**attributes, "reduce_cmd": "reset_reduce"})


def _activate2(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    value = read(step, operands, "data")
    shape = value.shape
    for i in (0, 1):
        op = attributes[f"op{i}"]
        if op != "bypass":
            other = read(step, operands, f"imm{i}")
            value = apply(op, value, other, reverse=attributes[f"reverse{i}"])
    value = np.broadcast_to(value, shape)
    result = _function(step, attributes["op"], value, read(step, operands, "relu_param"))
    op = attributes["reduce_op"] or "add"
    registers = accumulate(step, result, op, attributes["reduce_cmd"])
    return {"dst": result, "reduce_res": registers} if "reduce_res" in operands else {"dst": result}


def _exponential(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    result = activate("exp", read(step, operands, "src") - read(step, operands, "max_value"))
    initial = read(step, operands, "reduce_init")
    registers = accumulate(step, result, "add", attributes["reduce_cmd"], initial)
    return {"dst": result, "reduce_res": registers} if "reduce_res" in operands else {"dst": result}


def _reduce_needs_op(call: Call) -> bool:
    reduces = call.attributes["reduce_cmd"] in ("reduce", "reset_reduce")
    return not reduces or call.attributes["reduce_op"] is not None


_NEEDS_OP = requires(
    "NKI127",
    "{instruction} reduce_cmd.{command} needs reduce_op",
    "pass reduce_op=nl.add",
    _reduce_needs_op,
    command=lambda call: call.attributes["reduce_cmd"],
)
_BIAS_V2 = requires(
    "NKI102",
    "{instruction} bias must be a tensor of one element per partition on NeuronCore-v2",
    "write the number to a tensor of shape (partitions, 1) with nisa.memset",
    lambda call: call.operands["bias"] is None or isinstance(call.operands["bias"], Tile),
    generations=(2,),
)
_RECIPROCAL_V2 = requires(
    "NKI116",
    "{instruction} of nl.reciprocal cannot have a bias on NeuronCore-v2",
    "add the bias with nisa.tensor_scalar first",
    lambda call: call.attributes["op"] != "reciprocal" or call.operands["bias"] is None,
    generations=(2,),
)
_PRELU = requires(
    "NKI114",
    "{instruction} cannot run nl.prelu, which needs a parameter",
    "use nisa.activate2 with relu_param",
    lambda call: call.attributes["op"] != "prelu",
)
_ACTIVATION_RULES: tuple[Rule, ...] = (
    same_partitions("dst", "data", "bias", "scale", "reduce_res"),
    same_free("dst", "data"),
    _BIAS_V2,
    _RECIPROCAL_V2,
    _PRELU,
)
_BIAS = number_or_vector("bias", default=None, dtypes=NUMERIC - {"tfloat32"})
_SCALE = number_or_vector("scale", default=1.0, dtypes=FLOAT32)
_RESULT = vector("reduce_res", role=Role.WRITE, default=None)


def _immediates_agree(call: Call) -> bool:
    tiles = [call.get("imm0"), call.get("imm1")]
    return tiles[0] is None or tiles[1] is None or tiles[0].dtype == tiles[1].dtype


def _number(name: str, default: float) -> Operand:
    return number_or_vector(name, default=default, dtypes=FLOAT32)


ROWS = (
    Instruction(
        "activation",
        (
            target(indirect=True),
            Attribute("op", convert.activation),
            source("data", indirect=True),
            _BIAS,
            _SCALE,
            Attribute("reduce_op", convert.op("add", none=True), None),
            _RESULT,
            Attribute("reduce_cmd", convert.member(enums.reduce_cmd, *_COMMANDS), "idle"),
            convert.NAME,
        ),
        on("scalar"),
        _activation,
        cost.plus_read("data"),
        (*_ACTIVATION_RULES, _NEEDS_OP),
    ),
    Instruction(
        "activation_reduce",
        (
            target(indirect=True),
            Attribute("op", convert.activation),
            source("data", indirect=True),
            Attribute("reduce_op", convert.op("add")),
            vector("reduce_res", role=Role.WRITE, nullable=True),
            _BIAS,
            _SCALE,
            convert.NAME,
        ),
        on("scalar"),
        _activation_reduce,
        cost.plus_read("data"),
        _ACTIVATION_RULES,
    ),
    Instruction(
        "activate2",
        (
            target(indirect=True),
            Attribute("op", convert.activation),
            source("data", indirect=True),
            number_or_vector("imm0"),
            number_or_vector("imm1"),
            Attribute("op0", convert.op("multiply", "add", "subtract", bypass=True)),
            Attribute("op1", convert.op("add", "subtract", bypass=True)),
            number_or_vector("relu_param", default=0.0),
            Attribute("reverse0", convert.flag, default=False),
            Attribute("reverse1", convert.flag, default=False),
            Attribute(
                "reduce_op",
                convert.op("add", "maximum", "minimum", "abs_max", "abs_min", none=True),
                None,
            ),
            _RESULT,
            Attribute("reduce_cmd", convert.member(enums.reduce_cmd, *_COMMANDS), "idle"),
            convert.NAME,
        ),
        on("scalar", first=4),
        _activate2,
        cost.plus_read("data"),
        (
            same_partitions("dst", "data", "imm0", "imm1", "relu_param", "reduce_res"),
            same_free("dst", "data"),
            requires(
                "NKI114",
                "activate2 does not support (op0, op1) = {pair}",
                "use (multiply, add), (multiply, subtract), (multiply, bypass), (add, bypass), "
                "(subtract, bypass) or (bypass, bypass)",
                lambda c: (c.attributes["op0"], c.attributes["op1"]) in _STAGES,
                pair=lambda c: f"({c.attributes['op0']}, {c.attributes['op1']})",
            ),
            requires(
                "NKI116",
                "activate2 reverse0 and reverse1 need an operator to reverse",
                "leave them out where the operator is nl.bypass",
                lambda c: (
                    not any(
                        c.attributes[f"reverse{i}"] and c.attributes[f"op{i}"] == "bypass"
                        for i in (0, 1)
                    )
                ),
            ),
            requires(
                "NKI108",
                "activate2 imm0 and imm1 have different data types",
                "give both tensors the same data type",
                _immediates_agree,
            ),
            _NEEDS_OP,
        ),
    ),
    Instruction(
        "exponential",
        (
            target(dtypes=_EXP_DST, indirect=True),
            source("src", _EXP_SRC, indirect=True),
            _number("max_value", 0.0),
            vector("reduce_res", _EXP_RES, role=Role.WRITE, default=None),
            Attribute(
                "reduce_cmd",
                convert.member(enums.reduce_cmd, "idle", "reset_reduce", "reduce", "load_reduce"),
                "idle",
            ),
            _number("reduce_init", 0.0),
            convert.NAME,
        ),
        on("vector", first=4),
        _exponential,
        cost.by(
            lambda call: max(cost.MIN_II, call.tile("src").free / 4),
            "trainium3_arch.rst: four times the throughput of activation(op=nl.exp)",
        ),
        (
            same_partitions("dst", "src", "max_value", "reduce_res", "reduce_init"),
            same_free("dst", "src"),
            *load_needs_init("reduce_init"),
        ),
    ),
)
