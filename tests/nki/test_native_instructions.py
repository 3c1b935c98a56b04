"""Searches, gathers, scans and random numbers: the native executor against the meanings."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import nki.isa as nisa
from nki.isa.rows.common import FLOATS, INTEGERS, NUMERIC
from nki.isa.rows.reduce import _ARITHMETIC
from tests.nki.lowering_tools import (
    TARGETS,
    Given,
    Layout,
    check,
    items,
    layouts,
    storage_shape,
    tile,
)
from tests.nki.native_tools import natively

Operands = dict[str, Any]
Case = tuple[Operands, dict[str, Any]]
DRAW = Callable[[st.SearchStrategy[Any]], Any]

_NUMERIC, _FLOATS, _INTEGERS = sorted(NUMERIC), sorted(FLOATS), sorted(INTEGERS)
_ALL = [*_NUMERIC, "float8_e4m3fn_x4", "float4_e2m1fn_x4"]
_SEED = st.integers(0, 1 << 16)
_PARTITIONS = st.sampled_from([1, 3, 16, 32, 40])
_GROUPS = st.sampled_from([16, 32, 48])
_DIMS = 2  # free dimensions, where an instruction takes no more


def few(seed: int, layout: Layout, dtype: str, **more: Any) -> Given:
    """A tile of few different items, so that there are ties; some are NaN or infinite."""
    pool = items(seed, (12,), dtype)
    data = np.random.default_rng(seed + layout.row).choice(pool, storage_shape(layout))
    return Given(data, dtype, layout, **more)


def _layout(draw: DRAW, partitions: int, free: int, **more: Any) -> Layout:
    found = layouts(partitions, free, **more).filter(lambda made: len(made.shape) <= 1 + _DIMS)
    layout: Layout = draw(found)
    return layout


def _eight(draw: DRAW, partitions: int, dtype: str) -> Given:
    return tile(0, _layout(draw, partitions, 8), dtype)


def _max8(draw: DRAW) -> Case:
    partitions, kind = draw(_PARTITIONS), draw(st.sampled_from(_NUMERIC))
    source = _layout(draw, partitions, draw(st.integers(8, 40)), broadcast=True)
    operands = {"dst": _eight(draw, partitions, draw(st.sampled_from([kind, *_NUMERIC])))}
    return {**operands, "src": few(draw(_SEED), source, kind)}, {}


def _find(draw: DRAW) -> Case:
    partitions, kind, seed = draw(_PARTITIONS), draw(st.sampled_from(_NUMERIC)), draw(_SEED)
    data = few(seed, _layout(draw, partitions, draw(st.integers(8, 40)), broadcast=True), kind)
    values = few(seed, _layout(draw, partitions, 8, broadcast=True), kind)
    index = _eight(draw, partitions, draw(st.sampled_from(["uint16", "uint32"])))
    return {"dst": index, "data": data, "vals": values}, {}


def _replace(draw: DRAW) -> Case:
    partitions, kind, seed = draw(_PARTITIONS), draw(st.sampled_from(_NUMERIC)), draw(_SEED)
    size = draw(st.integers(8, 40))
    layout = _layout(draw, partitions, size)
    operands: Operands = {"data": few(seed, layout, kind)}
    if draw(st.booleans()):
        operands["dst"] = Given(operands["data"].data, kind, layout, shares="data")
    else:
        operands["dst"] = tile(0, _layout(draw, partitions, size), draw(st.sampled_from(_NUMERIC)))
    operands["vals"] = few(seed, _layout(draw, partitions, 8), kind)
    if draw(st.booleans()):
        kind = draw(st.sampled_from(["uint16", "uint32"]))
        operands["dst_idx"] = _eight(draw, partitions, kind)
    return operands, {"imm": draw(st.sampled_from([0.0, -1.5, float("-inf")]))}


def _nonzero(draw: DRAW) -> Case:
    partitions, kind = draw(_PARTITIONS), draw(st.sampled_from(["float32", "int32"]))
    size = draw(st.integers(1, 40))
    source = _layout(draw, partitions, size, broadcast=True)
    items_ = few(draw(_SEED), source, kind)
    items_.data[items_.data.shape[1] % 2 :: 2] = 0
    attributes = {
        "index_offset": draw(st.sampled_from([0, 7, 2**31 - 3])),
        "padding_val": draw(st.sampled_from([-1, 0, 2**31 - 1])),
    }
    return {"dst": tile(0, _layout(draw, partitions, size + 1), "int32"), "src": items_}, attributes


def _topk(draw: DRAW) -> Case:
    partitions, n = draw(_GROUPS), draw(st.integers(8, 300))
    k, columns = draw(st.integers(1, n)), -(-n // 16) + draw(st.integers(0, 2))
    return {
        "val_dst": tile(0, _layout(draw, partitions, k), "bfloat16"),
        "idx_dst": tile(0, _layout(draw, partitions, k), "uint32"),
        "src": few(draw(_SEED), _layout(draw, partitions, columns, broadcast=True), "bfloat16"),
    }, {"n": n}


def _indices(draw: DRAW, partitions: int, size: int, dtype: str, bound: int) -> Given:
    layout = _layout(draw, partitions, size, broadcast=True)
    rng = np.random.default_rng(draw(_SEED))
    data = rng.integers(0, bound, storage_shape(layout)).astype(dtype)
    return Given(data, dtype, layout)


def _local(draw: DRAW) -> Case:
    partitions, kind = draw(_GROUPS), draw(st.sampled_from(_ALL))
    width, columns = draw(st.sampled_from([1, 1, 2, 8])), draw(st.integers(1, 3))
    count = draw(st.none() | st.integers(1, 16 * columns))
    size = width + draw(st.integers(0, 30))
    total = width * (16 * columns if count is None else count)
    # What lies where nobody looks must be in bounds too: the layout may be broadcast.
    return {
        "dst": tile(0, _layout(draw, partitions, total, addressed=False), kind),
        "src_buffer": tile(1, _layout(draw, partitions, size, broadcast=True), kind),
        "index": _indices(draw, partitions, columns, "uint16", size - width + 1),
    }, {"num_elem_per_idx": width, "num_valid_indices": count}


def _n_gather(draw: DRAW) -> Case:
    partitions, kind = draw(_PARTITIONS), draw(st.sampled_from(_ALL))
    size = draw(st.integers(1, 40))
    index = _indices(draw, partitions, size, "uint32", size)
    layout = _layout(draw, partitions, size, addressed=False)
    source = tile(1, layout, kind)
    if draw(st.booleans()):
        target = Given(source.data, kind, layout, shares="data")
    else:
        target = tile(0, _layout(draw, partitions, size, addressed=False), kind)
    return {"data": source, "dst": target, "indices": index}, {}


def _shuffle(draw: DRAW) -> Case:
    partitions, kind = draw(st.sampled_from([5, 32, 64])), draw(st.sampled_from(_ALL))
    most = min(partitions, 32)
    row = st.integers(0, most - 1) | st.just(255)
    mask = draw(st.lists(row, min_size=32, max_size=32))
    layout = _layout(draw, partitions, draw(st.integers(1, 20)))
    source = tile(1, layout, kind)
    if draw(st.booleans()):
        target = Given(source.data, kind, layout, shares="src")
    else:
        target = tile(0, _layout(draw, partitions, int(np.prod(layout.shape[1:]))), kind)
    return {"src": source, "dst": target}, {"shuffle_mask": mask}


def _bounds(draw: DRAW) -> Case:
    kind, size = draw(st.sampled_from(["float32", "int32"])), draw(st.integers(1, 40))
    lengths = draw(st.lists(st.integers(1, 9), min_size=40, max_size=40))
    segments = np.repeat(np.arange(40) % 4, lengths)
    layout = draw(layouts(1, (size,), addressed=False))
    rows, columns = storage_shape(layout)
    data = np.resize(segments, (rows, columns)).astype(kind)
    target = draw(layouts(1, (2, size), addressed=False))
    return {"dst": tile(0, target, kind), "segment_ids": Given(data, kind, layout)}, {}


_BINARY = [op for op in _ARITHMETIC if op not in ("abs", "square", "relu", "rsqrt", "reciprocal")]
_EXACT = [op for op in _BINARY if op != "power"]


def _vector(draw: DRAW, partitions: int, kinds: list[str]) -> Any:
    if draw(st.booleans()):
        return draw(st.sampled_from([0.0, 1.0, -2.5]))
    kind = draw(st.sampled_from(kinds))
    return tile(draw(_SEED), draw(layouts(partitions, (1,), addressed=False)), kind)


def _scan(draw: DRAW) -> Case:
    partitions, size = draw(_PARTITIONS), draw(st.integers(1, 40))
    kinds = [draw(st.sampled_from(_NUMERIC)) for _ in range(3)]
    layout = _layout(draw, partitions, size)
    operands: Operands = {"data0": few(draw(_SEED), layout, kinds[0])}
    if draw(st.booleans()):
        operands["dst"] = Given(operands["data0"].data, kinds[0], layout, shares="data0")
    else:
        operands["dst"] = tile(0, _layout(draw, partitions, size), kinds[1])
    operands["data1"] = few(draw(_SEED), _layout(draw, partitions, size, broadcast=True), kinds[2])
    operands["initial"] = _vector(draw, partitions, _NUMERIC)
    return operands, {
        "op0": draw(st.sampled_from(_EXACT)),
        "op1": draw(st.sampled_from(_EXACT)),
        "reverse0": draw(st.booleans()),
        "reverse1": draw(st.booleans()),
    }


def _rng(draw: DRAW) -> Case:
    layout = _layout(draw, draw(_PARTITIONS), draw(st.integers(1, 40)))
    kind, engine = draw(st.sampled_from(_INTEGERS)), draw(st.sampled_from(["vector", "gpsimd"]))
    return {"dst": tile(0, layout, kind)}, {"engine": getattr(nisa.engine, engine)}


def _rand2(draw: DRAW) -> Case:
    partitions = draw(_PARTITIONS)
    kind = draw(st.sampled_from([k for k in _FLOATS + _INTEGERS if k != "float8_e4m3fn"]))
    target = tile(0, _layout(draw, partitions, draw(st.integers(1, 40))), kind)
    low, high = (_vector(draw, partitions, ["float32"]) for _ in range(2))
    if not isinstance(low, Given) and not isinstance(high, Given):
        high = low + 3.0  # two numbers must be in order
    return {"dst": target, "min": low, "max": high}, {}


def _dropout(draw: DRAW) -> Case:
    partitions, size = draw(_PARTITIONS), draw(st.integers(1, 40))
    kind = draw(st.sampled_from(_NUMERIC))
    prob = draw(st.sampled_from([0.0, 0.25, 1.0]))
    if draw(st.booleans()):
        prob = tile(3, draw(layouts(partitions, (1,), addressed=False)), "float32")
    return {
        "dst": tile(0, _layout(draw, partitions, size), kind),
        "data": tile(draw(_SEED), _layout(draw, partitions, size, broadcast=True), kind),
        "prob": prob,
    }, {}


CASES: dict[str, Callable[[DRAW], Case]] = {
    "max8": _max8,
    "nc_find_index8": _find,
    "nc_match_replace8": _replace,
    "nonzero_with_count": _nonzero,
    "topk": _topk,
    "local_gather": _local,
    "nc_n_gather": _n_gather,
    "nc_stream_shuffle": _shuffle,
    "sequence_bounds": _bounds,
    "tensor_tensor_scan": _scan,
    "rng": _rng,
    "rand2": _rand2,
    "dropout": _dropout,
}


def apart(operands: Operands) -> bool:
    """Return whether no two tiles with addresses lie over each other.

    Of those that do neither executor promises which result stays, and what stays of one type
    would be compared as another: NaN bit by bit.
    """
    tiles = [t for t in operands.values() if isinstance(t, Given) and t.shares is None]
    placed = [(t.layout.address, t.data[0].nbytes) for t in tiles if t.layout.address is not None]
    ends = [(start, start + size) for start, size in sorted(placed)]
    return all(end <= start for (_, end), (start, _) in pairwise(ends))


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=6)
@given(data=st.data())
def test_instruction(name: str, data: st.DataObject) -> None:
    operands, attributes = CASES[name](data.draw)
    assume(apart(operands))
    # The smaller of two zeros is either of them.
    least = 1e-45 if name == "tensor_tensor_scan" else 0.0
    target = data.draw(st.sampled_from(TARGETS))
    check(name, operands, attributes, runner=natively, least=least, target=target)
