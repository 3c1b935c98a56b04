"""Patterns and selections: iota, affine_select, range_select, select_reduce."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nki.isa import convert, cost, enums
from nki.isa.alu import COMPARISONS, apply
from nki.isa.cast import Array, bit_pattern, write
from nki.isa.rows.accumulate import accumulate
from nki.isa.rows.common import (
    FLOAT32,
    FLOATS,
    NUMERIC,
    SBUF,
    Arrays,
    copied,
    flat,
    number_or_vector,
    on,
    read,
    source,
    target,
    vector,
)
from nki.isa.rules import not_all_psum, requires, same_free, same_partitions
from nki.isa.spec import REGISTER, Attribute, Call, Instruction, Kind, Operand, Role
from nki.isa.state import Step

__all__ = ["ROWS", "affine_values"]

Attributes = Mapping[str, Any]

FP32_MIN = float(np.finfo(np.float32).min)
_EXACT_INDEX = 1 << 24  # up to here float32 holds every integer


def affine_values(
    pattern: tuple[tuple[int, int], ...], offset: int, multiplier: int, partitions: int
) -> Array:
    """Return offset + partition * multiplier + pattern in wrapping int32 arithmetic: (P, F)."""
    value = np.zeros(1, np.int64)
    for step, count in pattern:
        value = (value[:, None] + step * np.arange(count, dtype=np.int64)).reshape(-1)
    lanes = np.arange(partitions, dtype=np.int64)[:, None] * multiplier
    return (offset + lanes + value).astype(np.int32)


def _pattern_values(operands: Arrays, attributes: Attributes) -> Array:
    return affine_values(
        attributes["pattern"],
        operands["offset"].item(),
        attributes["channel_multiplier"],
        operands["dst"].shape[0],
    )


def _iota(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    del step
    return {"dst": _pattern_values(operands, attributes)}


def _affine_select(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    value = _pattern_values(operands, attributes)
    chosen = apply(attributes["cmp_op"], value, np.zeros_like(value)) != 0
    dtype = step.dtypes["dst"]
    true = _stored(copied(step, operands, "on_true_tile"), dtype)
    false = _stored(np.full((1, 1), attributes["on_false_value"], np.float32), dtype)
    return {"dst": np.where(chosen, true, false)}


def _stored(value: Array, dtype: str) -> Array:
    """Return the items that writing stores, so that kept bits and cast numbers can be mixed."""
    stored = write(value, dtype)
    return bit_pattern(stored) if dtype == "tfloat32" else stored


def _range_select(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    true = read(step, operands, "on_true_tile")
    first = attributes["range_start"]
    index = np.arange(first, first + true.shape[1], dtype=np.float32)[None, :]
    index = np.broadcast_to(index, true.shape)
    inside = apply(attributes["comp_op0"], index, read(step, operands, "bound0")) != 0
    inside &= apply(attributes["comp_op1"], index, read(step, operands, "bound1")) != 0
    value = np.where(inside, true, np.float32(attributes["on_false_value"]))
    registers = accumulate(step, value, "maximum", attributes["reduce_cmd"])
    return {"dst": value, "reduce_res": registers} if "reduce_res" in operands else {"dst": value}


def _select_reduce(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    chosen = flat(operands["predicate"]) != 0
    if attributes["reverse_pred"]:
        chosen = ~chosen
    value = np.where(chosen, read(step, operands, "on_true"), read(step, operands, "on_false"))
    registers = accumulate(step, value, "maximum", attributes["reduce_cmd"])
    return {"dst": value, "reduce_res": registers} if "reduce_res" in operands else {"dst": value}


def _pattern_size(call: Call) -> int:
    return int(np.prod([count for _, count in call.attributes["pattern"]], dtype=np.int64))


_PATTERN = requires(
    "NKI131",
    "{instruction} pattern makes {got} values per partition, dst has {want}",
    "give the pattern as many elements as dst has per partition",
    lambda call: _pattern_size(call) == call.tile("dst").free,
    got=_pattern_size,
    want=lambda call: call.tile("dst").free,
)


def _false_value(given: Any) -> float:
    value = FP32_MIN if given is ... else float(convert.number(given))
    with np.errstate(over="ignore"):
        is_min = np.float32(value) == np.float32(FP32_MIN)
    if not is_min:
        raise ValueError(
            f"must be FP32_MIN ({FP32_MIN}), got {given}; "
            "the hardware has no other value: select with nisa.select_reduce"
        )
    return FP32_MIN


_OFFSET = Operand("offset", Role.READ, Kind.REGISTER_OR_INT, REGISTER, default=0)
_MULTIPLIER = Attribute("channel_multiplier", convert.INT32)
_PREDICATES = frozenset({"int8", "uint8", "int16", "uint16"})
_RESULT_MAX = Attribute("reduce_op", convert.op("maximum"), "maximum")

ROWS = (
    Instruction(
        "iota",
        (
            target(regions=SBUF),
            Attribute("pattern", convert.pattern),
            _OFFSET,
            Attribute("channel_multiplier", convert.INT32, 0),
            convert.NAME,
        ),
        on("gpsimd"),
        _iota,
        cost.gpsimd("dst"),
        (_PATTERN,),
    ),
    Instruction(
        "affine_select",
        (
            target(regions=SBUF),
            Attribute("pattern", convert.pattern),
            _MULTIPLIER,
            source("on_true_tile", regions=SBUF),
            Attribute("on_false_value", convert.number),
            Attribute("cmp_op", convert.op(*COMPARISONS), "equal"),
            _OFFSET,
            convert.NAME,
        ),
        on("gpsimd"),
        _affine_select,
        cost.gpsimd("on_true_tile"),
        (
            same_partitions("dst", "on_true_tile"),
            same_free("dst", "on_true_tile"),
            _PATTERN,
        ),
    ),
    Instruction(
        "range_select",
        (
            target(),
            source("on_true_tile", FLOATS),
            Attribute("comp_op0", convert.op(*(op for op in COMPARISONS if op != "not_equal"))),
            Attribute("comp_op1", convert.op(*(op for op in COMPARISONS if op != "not_equal"))),
            vector("bound0", FLOAT32),
            vector("bound1", FLOAT32),
            Attribute(
                "reduce_cmd",
                convert.member(enums.reduce_cmd, "idle", "reset", "reduce", "reset_reduce"),
                "reset_reduce",
            ),
            vector("reduce_res", role=Role.WRITE, default=None),
            _RESULT_MAX,
            Attribute("range_start", convert.integer(), 0),
            Attribute("on_false_value", _false_value, FP32_MIN),
            convert.NAME,
        ),
        on("vector", first=3),
        _range_select,
        cost.streaming("on_true_tile"),
        (
            same_partitions("dst", "on_true_tile", "bound0", "bound1", "reduce_res"),
            same_free("dst", "on_true_tile"),
            requires(
                "NKI116",
                "range_select compares indices from {first} to {last}, beyond 2**24",
                "float32, in which they are compared, holds no larger integers exactly",
                lambda c: (
                    abs(c.attributes["range_start"]) <= _EXACT_INDEX
                    and c.attributes["range_start"] + c.tile("dst").free <= _EXACT_INDEX
                ),
                first=lambda c: c.attributes["range_start"],
                last=lambda c: c.attributes["range_start"] + c.tile("dst").free - 1,
            ),
        ),
    ),
    Instruction(
        "select_reduce",
        (
            target(),
            source("predicate", _PREDICATES),
            source("on_true", NUMERIC - {"tfloat32", "int32", "uint32"}),
            number_or_vector("on_false"),
            vector("reduce_res", FLOATS, role=Role.WRITE, default=None),
            Attribute(
                "reduce_cmd",
                convert.member(enums.reduce_cmd, "idle", "reduce", "reset_reduce"),
                "idle",
            ),
            _RESULT_MAX,
            Attribute("reverse_pred", convert.flag, default=False),
            convert.NAME,
        ),
        on("vector"),
        _select_reduce,
        cost.streaming("on_true", 1, "unpublished; as range_select of " + cost.OCTOBER),
        (
            same_partitions("dst", "predicate", "on_true", "on_false", "reduce_res"),
            same_free("dst", "predicate", "on_true"),
            not_all_psum("on_true", "predicate"),
        ),
    ),
)
