"""Searches: max8, nc_find_index8, nc_match_replace8, nonzero_with_count, topk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nki.isa import convert, cost
from nki.isa.cast import Array
from nki.isa.rows.common import SBUF, Arrays, flat, on, raw, read, source, target
from nki.isa.rules import dst_free, requires, same_free, same_partitions
from nki.isa.spec import Attribute, Call, Instruction, Role, Rule
from nki.isa.state import Step

__all__ = ["ROWS"]

Attributes = Mapping[str, Any]

_EIGHT = 8
_INDEX = frozenset({"uint16", "uint32"})
_GROUP = 16  # partitions of one GpSimd core
_MISSING = 0xFFFFFFFF


def _occurrences(row: Array, value: Any, taken: Array) -> int | None:
    """Return the first position of a value that is not taken, and take it."""
    positions = np.flatnonzero((row == value) & ~taken)
    if positions.size == 0:
        return None
    taken[positions[0]] = True
    return int(positions[0])


def _max8(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    del attributes
    x = read(step, operands, "src")
    # Zero is above negative zero: who compares bits gets the same from every executor.
    ascending = np.lexsort((~np.signbit(x), x), axis=1)
    return {"dst": np.take_along_axis(x, ascending[:, : -_EIGHT - 1 : -1], axis=1)}


def _match(data: Array, vals: Array, order: range, index_dtype: Any) -> tuple[Array, Array]:
    """Pair values with positions: returns indices (P, 8), and which positions were matched."""
    taken = np.zeros(data.shape, bool)
    missing = np.array(_MISSING, np.uint32).astype(index_dtype)  # all ones in either width
    found = np.full(vals.shape, missing, index_dtype)
    for lane in range(data.shape[0]):
        for slot in order:
            position = _occurrences(data[lane], vals[lane, slot], taken[lane])
            if position is not None:
                found[lane, slot] = position
    return found, taken


def _find_index8(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    del attributes
    data, vals = read(step, operands, "data"), read(step, operands, "vals")
    found, _ = _match(data, vals, range(_EIGHT), operands["dst"].dtype)
    return {"dst": found}


def _match_replace8(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    data, vals = read(step, operands, "data"), read(step, operands, "vals")
    has_index = "dst_idx" in operands
    dtype = operands["dst_idx"].dtype if has_index else np.dtype(np.uint32)
    found, taken = _match(data, vals, range(_EIGHT - 1, -1, -1), dtype)
    written = {"dst": np.where(taken, np.float32(attributes["imm"]), data)}
    if has_index:
        written["dst_idx"] = found
    return written


def _nonzero(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    del step
    result = flat(operands["dst"]).copy()
    source_rows = flat(operands["src"])
    length = source_rows.shape[1]
    for lane in range(0, source_rows.shape[0], _GROUP):
        positions = np.flatnonzero(source_rows[lane] != 0)
        result[lane, :] = attributes["padding_val"]
        # Offsets near the ends of int32 wrap, as 32-bit addition does.
        shifted = (positions + attributes["index_offset"]).astype(np.int32)
        result[lane, : positions.size] = shifted
        result[lane, length] = positions.size
    return {"dst": result}


def _topk(step: Step, operands: Arrays, attributes: Attributes) -> dict[str, Array]:
    """Find the largest of each group of 16 partitions; each of its partitions gets all of them.

    Element e of the snake is in partition e % 16, column e // 16. Among equal values those that
    come first in the snake are chosen, and written last: the documentation says neither.
    """
    source_rows, stored = read(step, operands, "src"), raw(step, operands, "src")
    k, n = flat(operands["val_dst"]).shape[1], attributes["n"]
    values = np.empty((source_rows.shape[0], k), stored.dtype)
    indices = np.empty(values.shape, np.uint32)
    for first in range(0, source_rows.shape[0], _GROUP):
        group = slice(first, first + _GROUP)
        snake = source_rows[group].T.reshape(-1)[:n]
        chosen = np.argsort(-snake, kind="stable")[:k][::-1]
        values[group] = stored[group].T.reshape(-1)[chosen]
        indices[group] = chosen
    return {"val_dst": values, "idx_dst": indices}


def _data_size(name: str) -> Rule:
    return requires(
        "NKI104",
        "{instruction} " + name + " has {got} elements per partition, allowed: 8 to 16384",
        "split the tensor, or pad it with -inf",
        lambda call: _EIGHT <= call.tile(name).free <= 16384,
        got=lambda call: call.tile(name).free,
    )


def _rank(name: str) -> Rule:
    return requires(
        "NKI118",
        "{instruction} " + name + " has shape {got}: at most 3 dimensions",
        "merge dimensions with .reshape",
        lambda call: len(call.tile(name).shape) <= 3,
        got=lambda call: call.tile(name).shape,
    )


def _topk_sizes(call: Call) -> bool:
    k, n = call.tile("val_dst").free, call.attributes["n"]
    return 1 <= k < 32768 and k <= n


def _needed(call: Call) -> int:
    return -(-int(call.attributes["n"]) // _GROUP)


ROWS = (
    Instruction(
        "max8",
        (target(), source("src"), convert.NAME),
        on("vector"),
        _max8,
        cost.by(lambda call: call.tile("src").free),
        (same_partitions("dst", "src"), dst_free("dst", _EIGHT), _data_size("src"), _rank("src")),
    ),
    Instruction(
        "nc_find_index8",
        (target(dtypes=_INDEX), source("data"), source("vals"), convert.NAME),
        on("vector"),
        _find_index8,
        cost.by(lambda call: call.tile("data").free),
        (
            same_partitions("dst", "data", "vals"),
            dst_free("dst", _EIGHT),
            dst_free("vals", _EIGHT),
            _data_size("data"),
            _rank("data"),
            _rank("vals"),
        ),
    ),
    Instruction(
        "nc_match_replace8",
        (
            target(),
            source("data"),
            source("vals"),
            Attribute("imm", convert.number),
            target("dst_idx", _INDEX, default=None),
            convert.NAME,
        ),
        on("vector"),
        _match_replace8,
        # The published formula is min(MIN_II, N), surely a misprint of max: an instruction that
        # reads N elements cannot take fewer cycles than its neighbours for more of them.
        cost.by(
            lambda call: max(cost.MIN_II, call.tile("data").free),
            cost.OCTOBER + ", min read as max",
        ),
        (
            same_partitions("dst", "data", "vals", "dst_idx"),
            same_free("dst", "data"),
            dst_free("vals", _EIGHT),
            dst_free("dst_idx", _EIGHT),
            _data_size("data"),
        ),
    ),
    Instruction(
        "nonzero_with_count",
        (
            target(dtypes=frozenset({"int32"}), regions=SBUF, role=Role.READWRITE),
            source("src", frozenset({"float32", "int32"}), regions=SBUF),
            Attribute("index_offset", convert.INT32, 0),
            Attribute("padding_val", convert.INT32, -1),
            convert.NAME,
        ),
        on("gpsimd", first=3),
        _nonzero,
        cost.by(
            lambda call: cost.GPSIMD_START + call.tile("src").free,
            "unpublished; as the other GpSimd instructions of " + cost.OCTOBER,
        ),
        (
            same_partitions("dst", "src"),
            requires(
                "NKI128",
                "nonzero_with_count dst has {got} elements per partition, it must have {want}",
                "allocate one element more than src has, for the count",
                lambda call: call.tile("dst").free == call.tile("src").free + 1,
                got=lambda call: call.tile("dst").free,
                want=lambda call: call.tile("src").free + 1,
            ),
        ),
    ),
    Instruction(
        "topk",
        (
            target("val_dst", frozenset({"bfloat16"}), regions=SBUF),
            target("idx_dst", frozenset({"uint32"}), regions=SBUF),
            source("src", frozenset({"bfloat16"}), regions=SBUF),
            Attribute("n", convert.integer(8, 65535)),
            convert.NAME,
        ),
        on("gpsimd"),
        _topk,
        cost.by(
            lambda call: 4 * call.attributes["n"] + call.tile("val_dst").free,
            "NKI 0.6 API reference of topk",
        ),
        (
            same_partitions("val_dst", "idx_dst", "src"),
            same_free("val_dst", "idx_dst"),
            requires(
                "NKI105",
                "topk has {got} partitions, it needs a multiple of 16",
                "a GpSimd core works on 16 partitions: pad the tensors",
                lambda call: call.tile("src").partitions % _GROUP == 0,
                got=lambda call: call.tile("src").partitions,
            ),
            requires(
                "NKI104",
                "topk of {k} elements out of n = {n} is not possible",
                "K, the elements per partition of val_dst, is between 1 and 32767 and at most n",
                _topk_sizes,
                k=lambda call: call.tile("val_dst").free,
                n=lambda call: call.attributes["n"],
            ),
            requires(
                "NKI104",
                "topk src has {got} elements per partition, n = {n} needs {want}",
                "n counts the elements of 16 partitions",
                lambda call: call.tile("src").free >= _needed(call),
                got=lambda call: call.tile("src").free,
                n=lambda call: call.attributes["n"],
                want=_needed,
            ),
        ),
    ),
)
