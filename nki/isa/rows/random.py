"""Random numbers: rng, rand2, dropout, set_rng_seed, rand_set_state, rand_get_state.

The bit streams are ours and are described in `nki.isa.xorwow`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nki.isa import convert, cost
from nki.isa.cast import Array
from nki.isa.rows.common import (
    FLOAT32,
    FLOATS,
    INTEGERS,
    SBUF,
    Arrays,
    flat,
    number_or_vector,
    on,
    raw,
    read,
    source,
    target,
)
from nki.isa.rules import requires, same_dtype, same_free, same_partitions
from nki.isa.spec import Call, Instruction, Rule
from nki.isa.state import Step
from nki.isa.xorwow import GPSIMD_STATES, VECTOR_STATES, WORDS, uniform

__all__ = ["ROWS"]

Attributes = Mapping[str, Any]

_UINT32 = frozenset({"uint32"})
_WIDE = frozenset({"int32", "uint32", "float32"})
_RAND2 = (FLOATS | INTEGERS) - {"float8_e4m3fn"}
_WORDS = {"vector": VECTOR_STATES * WORDS, "gpsimd": GPSIMD_STATES * WORDS}
_UNPUBLISHED = "unpublished; as dropout of " + cost.OCTOBER


def _draw(step: Step, lanes: int, count: int) -> Array:
    return step.generator().draw(lanes, count, step.lane)


def _rng(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    del attributes
    dst = operands["dst"]
    bits = _draw(step, *flat(dst).shape)
    unsigned = np.dtype(f"u{dst.dtype.itemsize}")
    return {"dst": bits.astype(unsigned).view(dst.dtype)}  # the least significant bits


def _rand2(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    del attributes
    low, high = read(step, operands, "min"), read(step, operands, "max")
    value = low + uniform(_draw(step, *flat(operands["dst"]).shape)) * (high - low)
    return {"dst": np.clip(value, low, high)}


def _dropout(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    del attributes
    data = raw(step, operands, "data")
    dropped = uniform(_draw(step, *data.shape)) < read(step, operands, "prob")
    return {"dst": np.where(dropped, np.zeros((), data.dtype), data)}


def _set_seed(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    del attributes
    step.generator().seed(int(operands["src_seeds"].reshape(1).view(np.uint32)[0]))
    return {}


def _set_state(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    del attributes
    step.generator().load(flat(operands["src_seeds"]), step.lane)
    return {}


def _get_state(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    del attributes
    return {"dst": step.generator().store(operands["dst"].shape[0], step.lane)}


def _words(name: str) -> Rule:
    return requires(
        "NKI128",
        "{instruction} " + name + " has shape {got}; the {engine} engine has {want} words a lane",
        "use a tensor of shape (lanes, 6) for gpsimd and (lanes, 24) for vector",
        lambda c: len(c.tile(name).shape) == 2 and c.tile(name).free == _WORDS[c.engine],
        got=lambda call: call.tile(name).shape,
        engine=lambda call: call.engine,
        want=lambda call: _WORDS[call.engine],
    )


def _prob_dtype(call: Call) -> bool:
    prob, data = call.get("prob"), call.tile("data")
    return prob is None or not data.info.is_int or prob.dtype == "float32"


def _ordered(call: Call) -> bool:
    low, high = call.operands["min"], call.operands["max"]
    both = isinstance(low, (int, float)) and isinstance(high, (int, float))
    return not both or bool(low < high)  # type: ignore[operator]


def _probability(call: Call) -> bool:
    prob = call.operands["prob"]
    return not isinstance(prob, (int, float)) or 0 <= prob <= 1


ROWS = (
    Instruction(
        "rng",
        (target(dtypes=INTEGERS), convert.engine("vector"), convert.NAME),
        on("vector", "gpsimd", v2=("vector",)),
        _rng,
        cost.streaming("dst", 1, _UNPUBLISHED),
    ),
    Instruction(
        "rand2",
        (
            target(dtypes=_RAND2),
            number_or_vector("min", dtypes=FLOAT32),
            number_or_vector("max", dtypes=FLOAT32),
            convert.NAME,
        ),
        on("vector", first=4),
        _rand2,
        cost.by(
            lambda call: max(cost.MIN_II, call.tile("dst").free / VECTOR_STATES),
            "trainium3_arch.rst: four random values per lane and cycle",
        ),
        (
            same_partitions("dst", "min", "max"),
            requires(
                "NKI116",
                "rand2 needs min < max, got {low} and {high}",
                "swap them; a range of one value is nisa.memset",
                _ordered,
                low=lambda call: call.operands["min"],
                high=lambda call: call.operands["max"],
            ),
        ),
    ),
    Instruction(
        "dropout",
        (
            target(),
            source("data"),
            number_or_vector("prob", dtypes=FLOATS),
            convert.NAME,
        ),
        on("vector"),
        _dropout,
        cost.streaming("data"),
        (
            same_partitions("dst", "data", "prob"),
            same_free("dst", "data"),
            same_dtype("dst", "data"),
            requires(
                "NKI108",
                "dropout prob must be float32 because data is {got}",
                "convert prob with nisa.tensor_copy",
                _prob_dtype,
                got=lambda call: call.tile("data").dtype,
            ),
            requires(
                "NKI116",
                "dropout prob must be between 0 and 1, got {got}",
                "prob is the probability of writing zero",
                _probability,
                got=lambda call: call.operands["prob"],
            ),
        ),
    ),
    Instruction(
        "set_rng_seed",
        (source("src_seeds", _WIDE), convert.NAME),
        on("vector"),
        _set_seed,
        cost.streaming("src_seeds", 1, _UNPUBLISHED),
        (
            requires(
                "NKI128",
                "set_rng_seed src_seeds must have shape (1, 1), got {got}",
                "pass one element",
                lambda call: call.tile("src_seeds").shape == (1, 1),
                got=lambda call: call.tile("src_seeds").shape,
            ),
        ),
    ),
    Instruction(
        "rand_set_state",
        (
            source("src_seeds", _UINT32, regions=SBUF),
            convert.engine("gpsimd"),
            convert.NAME,
        ),
        on("gpsimd", "vector", first=3, v3=("gpsimd",)),
        _set_state,
        cost.streaming("src_seeds", 1, _UNPUBLISHED),
        (_words("src_seeds"),),
    ),
    Instruction(
        "rand_get_state",
        (target(dtypes=_UINT32), convert.engine("gpsimd"), convert.NAME),
        on("gpsimd", "vector", first=3, v3=("gpsimd",)),
        _get_state,
        cost.streaming("dst", 1, _UNPUBLISHED),
        (_words("dst"),),
    ),
)
