"""Operators along one dimension that need all of it: scans, positions of extremes, orders.

Rows are the other dimensions, so that every partition works on a line of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import nki.isa as nisa
import nki.language as nl
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from nki.device.emitter import Emitter, NoLoweringError, Value, chunks
from nki.device.groups import Group
from nki.device.lines import (
    PART,
    Line,
    extreme_of_spread,
    first_place,
    line,
    line_operand,
    loaded_spread,
    spread_of,
    wide_tile,
)
from nki.device.rows import blocks_of
from nki.device.transfers import leaf_of, load, store
from nki.device.types import HELD
from nki.device.views import contiguous
from nki.tensor import NkiTensor

__all__ = [
    "MOST_SORTED", "PART", "ordered", "run_arg_reduce", "run_cumulative", "run_sort", "run_topk",
]  # fmt: skip

Tensors = Mapping[Node, NkiTensor]

MOST_SORTED = 16384  # elements that the searches take
_EIGHT = 8
# Larger and smaller than all numbers that are sorted: infinities come next to them.
_TOP, _HIGH, _LOW = 3.4e38, 3.38e38, -3.38e38
# In place of infinities, where differences are taken: the largest numbers but for one.
_LEAST, _MOST = -3.4028233e38, 3.4028233e38


def _result(outputs: Tensors, node: Node, shape: tuple[int, ...], dtype: DType, dim: int) -> Line:
    return line(outputs[node], dtype, contiguous(shape), dim)


# --- scans ---------------------------------------------------------------------------------------

_SCANS = {"add": ("multiply", 1.0), "mul": ("multiply", 1.0), "max": ("add", 0.0),
          "min": ("add", 0.0)}  # fmt: skip
_COMBINES = {"add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}


def run_cumulative(e: Emitter, group: Group, inputs: Tensors, outputs: Tensors) -> None:
    """Combine each element with all before it."""
    (node,) = group.nodes
    kind = node["kind"]
    e.at(node)
    (use,) = group.uses[node]
    source = line_operand(inputs, use, node["dim"])
    target = _result(outputs, node, node.shape, node.dtype, node["dim"])
    if kind == "logaddexp":
        _running_logaddexp(e, node, source, target)
        return
    op0, number = _SCANS[kind]
    for row, partitions in e.share(blocks_of(source.rows)):
        before: NkiTensor | None = None
        for column, columns in chunks(source.columns, PART):
            e.partitions, e.columns = partitions, columns
            x = wide_tile(e, load(e, source.leaf, row, column))
            made = e.tile(columns, "float32")
            more: dict[str, Any] = {}
            if before is not None:
                more = {"imm1": before, "reduce_cmd": nisa.reduce_cmd.load_reduce}
            nisa.tensor_scalar_cumulative(
                made, x, op0=op0, op1=_COMBINES[kind], imm0=number, **more
            )
            before = made[:, columns - 1 : columns]
            store(e, target.leaf, Value(made, node.dtype), row, column)


def _running_logaddexp(e: Emitter, node: Node, source: Line, target: Line) -> None:
    """Add up exponentials of x less the largest so far, m; a larger one scales what there is down.

    s[i] = s[i - 1] exp(m[i - 1] - m[i]) + exp(x[i] - m[i]), and the result is m + log s.
    """
    for row, partitions in e.share(blocks_of(source.rows)):
        largest: NkiTensor | None = None  # of the part before, with the sum that belongs to it
        total: NkiTensor | None = None
        for column, columns in chunks(source.columns, PART):
            e.partitions, e.columns = partitions, columns
            x = e.tile(columns, "float32")
            # Infinite numbers have no differences: they are put back at the end.
            nisa.tensor_scalar(
                x, wide_tile(e, load(e, source.leaf, row, column)), op0="maximum", operand0=_LEAST,
                op1="minimum", operand1=_MOST,
            )  # fmt: skip
            most = e.tile(columns + 1, "float32")  # with that of the element before
            if largest is None:
                nisa.tensor_copy(most[:, 0:1], x[:, 0:1])
            else:
                nisa.tensor_copy(most[:, 0:1], largest)
            nisa.tensor_tensor_scan(
                most[:, 1:], x, x, initial=most[:, 0:1], op0="maximum", op1="maximum"
            )
            down, more = e.tile(columns, "float32"), e.tile(columns, "float32")
            nisa.tensor_tensor(down, most[:, :columns], most[:, 1:], op="subtract")
            nisa.activation(down, op="exp", data=down)
            nisa.tensor_tensor(more, x, most[:, 1:], op="subtract")
            nisa.activation(more, op="exp", data=more)
            sums = e.tile(columns, "float32")
            nisa.tensor_tensor_scan(
                sums, down, more, initial=0.0 if total is None else total, op0="multiply", op1="add"
            )
            found, logs = e.tile(columns, "float32"), e.tile(columns, "float32")
            nisa.activation(logs, op="log", data=sums)
            nisa.tensor_tensor(found, most[:, 1:], logs, op="add")
            for test, limit, number in (
                ("less_equal", _LEAST, -math.inf), ("greater_equal", _MOST, math.inf)
            ):  # fmt: skip
                beyond = e.tile(columns, "uint8")
                nisa.tensor_scalar(beyond, most[:, 1:], op0=test, operand0=limit)
                nisa.tensor_copy_predicated(found, number, beyond)
            largest, total = most[:, columns : columns + 1], sums[:, columns - 1 : columns]
            store(e, target.leaf, Value(found, node.dtype), row, column)


# --- the place of an extreme ---------------------------------------------------------------------


def run_arg_reduce(e: Emitter, group: Group, inputs: Tensors, outputs: Tensors) -> None:
    """Find the first place of the largest or smallest element; NaN is both."""
    (node,) = group.nodes
    e.at(node)
    (use,) = group.uses[node]
    source = line_operand(inputs, use, node["dim"])
    op = _COMBINES[node["kind"]]
    target = leaf_of(outputs[node], node.dtype, contiguous(node.shape), source.rows, 1)
    spread = spread_of(source)
    if spread is not None:
        if not e.core:
            filler = -math.inf if op == "maximum" else math.inf
            place = extreme_of_spread(e, op, loaded_spread(e, source, spread, filler), spread)
            store(e, target, Value(place, DType.F32, vector=True), 0, 0)
        return
    parts = chunks(source.columns, PART)
    for row, partitions in e.share(blocks_of(source.rows)):
        e.partitions = partitions
        extreme = _combined(e, op, _extremes(e, op, source, row, parts))
        place = _combined(e, "minimum", _places(e, source, row, parts, extreme))
        e.columns = 1
        store(e, target, Value(place, DType.F32, vector=True), row, 0)


def _combined(e: Emitter, op: str, found: Iterable[NkiTensor]) -> NkiTensor:
    total: NkiTensor | None = None
    for part in found:
        if total is None:
            total = part
            continue
        made = e.tile(1, "float32")
        nisa.tensor_tensor(made, total, part, op=op)
        total = made
    assert total is not None
    return total


def _extremes(
    e: Emitter, op: str, source: Line, row: int, parts: list[tuple[int, int]]
) -> Iterator[NkiTensor]:
    for column, columns in parts:
        e.columns = columns
        x = wide_tile(e, load(e, source.leaf, row, column))
        made = e.tile(1, "float32")
        nisa.tensor_reduce(made, op=op, data=x, axis=(1,))
        yield made


def _places(
    e: Emitter, source: Line, row: int, parts: list[tuple[int, int]], extreme: NkiTensor
) -> Iterator[NkiTensor]:
    for column, columns in parts:
        e.columns = columns
        x = wide_tile(e, load(e, source.leaf, row, column))
        yield first_place(e, x, extreme, column)


# --- orders --------------------------------------------------------------------------------------


def _keys(e: Emitter, x: NkiTensor, width: int, *, largest: bool) -> NkiTensor:
    """Return keys of at least 8 columns whose largest ones are looked for: finite, NaN on top."""
    columns = e.columns
    keys = e.tile(width, "float32")
    if width > columns:
        nisa.memset(keys, -math.inf)
    inside = keys[:, 0:columns]
    sign = e.tile(columns, "float32")
    nisa.tensor_scalar(sign, x, op0="multiply", operand0=1.0 if largest else -1.0)
    nisa.tensor_scalar(inside, sign, op0="minimum", operand0=_HIGH, op1="maximum", operand1=_LOW)
    wrong = e.tile(columns, "uint8")
    nisa.tensor_tensor(wrong, x, x, op="not_equal")
    nisa.tensor_copy_predicated(inside, _TOP if largest else -_TOP, wrong)
    return keys


def ordered(e: Emitter, x: NkiTensor, k: int, *, largest: bool) -> NkiTensor:
    """Return the positions of the k largest or smallest columns, in order: (partitions, k)."""
    if e.columns > MOST_SORTED:
        raise NoLoweringError(
            f"a line of {e.columns} elements is sorted; the searches take {MOST_SORTED}"
        )
    width = max(_EIGHT, e.columns)
    keys = _keys(e, x, width, largest=largest)
    rounds = -(-k // _EIGHT)
    found = nl.ndarray((e.partitions, rounds * _EIGHT), dtype="uint32", buffer=nl.sbuf)
    for i in range(rounds):
        best = e.tile(_EIGHT, "float32")
        nisa.max8(best, keys)
        nisa.nc_find_index8(found[:, i * _EIGHT : (i + 1) * _EIGHT], keys, best)
        if i + 1 < rounds:
            rest = e.tile(width, "float32")
            nisa.nc_match_replace8(rest, keys, best, -math.inf)
            keys = rest
    return found[:, 0:k]


def _taken(e: Emitter, x: Value, places: NkiTensor) -> NkiTensor:
    """Return columns of a tile in an order."""
    tile = x.tile
    if x.vector or not tile.is_contiguous():
        tile = e.tile(e.columns, x.tile.dtype)
        nisa.tensor_copy(tile, e.full(x, x.tile.dtype))
    made = e.tile(places.shape[1], tile.dtype)
    nisa.nc_n_gather(made, tile, places)
    return made


def run_topk(e: Emitter, group: Group, inputs: Tensors, outputs: Tensors) -> None:
    """Write the first k of each line in order, and where they are."""
    (node,) = group.nodes
    e.at(node)
    (use,) = group.uses[node]
    dim = len(use.view.shape) - 1
    source = line_operand(inputs, use, dim)
    results = {out["index"]: out for out in group.outputs}
    for row, partitions in e.share(blocks_of(source.rows)):
        e.partitions, e.columns = partitions, source.columns
        x = load(e, source.leaf, row, 0)
        places = ordered(e, wide_tile(e, x), node["k"], largest=node["largest"])
        values = [_taken(e, x, places), places]
        e.columns = node["k"]
        for number, out in results.items():
            target = _result(outputs, out, out.shape, out.dtype, dim)
            tile = values[number]
            if tile.dtype != HELD[out.dtype]:
                tile = e.copied(Value(tile, out.dtype), out.dtype).tile
            store(e, target.leaf, Value(tile, out.dtype), row, 0)


def run_sort(e: Emitter, group: Group, inputs: Tensors, outputs: Tensors) -> None:
    """Order lines by the first operand, and the others with it."""
    (node,) = group.nodes
    e.at(node)
    dim = node["dim"]
    sources = [line_operand(inputs, use, dim) for use in group.uses[node]]
    for row, partitions in e.share(blocks_of(sources[0].rows)):
        e.partitions, e.columns = partitions, sources[0].columns
        tiles = [load(e, source.leaf, row, 0) for source in sources]
        key = wide_tile(e, tiles[0])
        places = ordered(e, key, e.columns, largest=node["descending"])
        for out in group.outputs:
            number = out["index"] if out.op is Op.GET else 0
            target = _result(outputs, out, out.shape, out.dtype, dim)
            store(e, target.leaf, Value(_taken(e, tiles[number], places), out.dtype), row, 0)
