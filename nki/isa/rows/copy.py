"""Copies and fills on chip: tensor_copy, memset, tensor_copy_predicated."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from nki.dtypes import info
from nki.isa import convert, cost
from nki.isa.cast import Array, write
from nki.isa.rows.common import Arrays, copied, flat, on, raw, source, target
from nki.isa.rules import not_all_psum, requires, same_dtype, same_free, same_partitions
from nki.isa.spec import ANY_DTYPE, Attribute, Call, Instruction, Kind, Operand, Role, Rule
from nki.isa.state import Step

__all__ = ["ROWS", "packed_copy"]

Attributes = Mapping[str, Any]

_PREDICATES = frozenset({"uint8", "uint16", "uint32"})


def packed_copy(source_name: str) -> Rule:
    """Make the rule that packed types are copied, not converted."""

    def holds(call: Call) -> bool:
        tiles = [call.tile("dst"), call.tile(source_name)]
        same = tiles[0].dtype == tiles[1].dtype
        return same or not any(tile.info.is_packed for tile in tiles)

    return requires(
        "NKI108",
        "{instruction} cannot convert {x} to {y}",
        "packed types have no conversion: nisa.quantize_mx makes them, or use .view",
        holds,
        x=lambda call: call.tile(source_name).dtype,
        y=lambda call: call.tile("dst").dtype,
    )


def _tensor_copy(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    del attributes
    return {"dst": copied(step, operands, "src")}


def _copy_cycles(call: Call) -> float:
    free = call.tile("src").free
    return max(cost.MIN_II, free)


def _memset(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    shape = operands["dst"].shape
    value, kind = attributes["value"], info(step.dtypes["dst"])
    if kind.is_packed:
        return {"dst": np.zeros(shape, kind.numpy)}
    if isinstance(value, int) or kind.is_int:
        return {"dst": np.full(shape, int(value), np.int64)}
    return {"dst": np.full(shape, value, np.float32)}


def _fits(call: Call) -> bool:
    kind, value = call.tile("dst").info, call.attributes["value"]
    if not kind.is_int:
        return True
    if not (math.isfinite(value) and float(value).is_integer()):
        return False
    limits = np.iinfo(kind.numpy)
    return bool(limits.min <= value <= limits.max)


def _memset_cycles(call: Call) -> float:
    tile = call.tile("dst")
    halved = call.attributes["value"] == 0 and tile.dtype in ("bfloat16", "float16")
    return max(cost.MIN_II, tile.free / 2 if halved else tile.free)


def _memset_engine(call: Call) -> str:
    del call
    return "vector"


def _predicated(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    old = raw(step, operands, "dst")
    if "src" in step.dtypes:
        new = raw(step, operands, "src")
    else:
        number = write(np.asarray(operands["src"]).astype(np.float32), step.dtypes["dst"])
        new = number.reshape(1, 1).view(old.dtype)
    chosen = flat(operands["predicate"]) != 0
    if attributes["reverse_pred"]:
        chosen = ~chosen
    return {"dst": np.where(chosen, new, old)}


def _predicated_cycles(call: Call) -> float:
    regions = {tile.region for name, _, tile in call.tiles() if name != "dst"}
    factor = 2 if regions == {"sbuf"} and call.get("src") is not None else 1
    return max(cost.MIN_II, factor * call.tile("dst").free)


ROWS = (
    Instruction(
        "tensor_copy",
        (
            target(dtypes=ANY_DTYPE, indirect=True),
            source("src", ANY_DTYPE, indirect=True),
            convert.engine(),
            convert.NAME,
        ),
        on("vector", "scalar", "gpsimd", v2=("vector", "gpsimd")),
        _tensor_copy,
        cost.by(_copy_cycles),
        (same_partitions("dst", "src"), same_free("dst", "src"), packed_copy("src")),
    ),
    Instruction(
        "memset",
        (
            target(dtypes=ANY_DTYPE),
            Attribute("value", convert.number),
            convert.engine(),
            convert.NAME,
        ),
        on("vector", "gpsimd", choose=_memset_engine),
        _memset,
        cost.by(_memset_cycles),
        (
            requires(
                "NKI140",
                "memset value {value} does not fit {dtype}",
                "an integer tensor takes a whole number of its range",
                _fits,
                value=lambda call: call.attributes["value"],
                dtype=lambda call: call.tile("dst").dtype,
            ),
            requires(
                "NKI140",
                "memset value of {dtype} must be 0, got {value}",
                "packed types can only be cleared; write other bits through "
                ".view(nl.uint32) or .view(nl.uint16)",
                lambda c: not c.tile("dst").info.is_packed or c.attributes["value"] == 0,
                value=lambda call: call.attributes["value"],
                dtype=lambda call: call.tile("dst").dtype,
            ),
        ),
    ),
    Instruction(
        "tensor_copy_predicated",
        (
            target(role=Role.READWRITE, indirect=True),
            Operand("src", Role.READ, Kind.SCALAR_OR_TILE, dtypes=None),
            source("predicate", _PREDICATES, indirect=True),
            Attribute("reverse_pred", convert.flag, default=False),
            convert.NAME,
        ),
        on("vector"),
        _predicated,
        cost.by(_predicated_cycles),
        (
            same_partitions("dst", "src", "predicate"),
            same_free("dst", "src", "predicate"),
            same_dtype("dst", "src"),
            not_all_psum("src", "predicate"),
        ),
    ),
)
