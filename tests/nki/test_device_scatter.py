"""Scatter by instructions: windows that meet, windows that lie outside, on one core and two."""

from __future__ import annotations

import numpy as np
import pytest

from neuronxcc.ir import build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op

from .device_tools import arguments, check, compiled, given_, graph_of


def rows_of(x: Node, indices: Node, updates: Node, kind: str, *, unique: bool = False) -> Node:
    """x with the updates of its rows; an index is of a row."""
    return build.make(
        Op.SCATTER, (x, indices, updates), kind=kind, update_window_dims=(1,),
        inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), index_vector_dim=1,
        input_batching_dims=(), scatter_indices_batching_dims=(), unique=unique,
    )  # fmt: skip


def elements_of(x: Node, indices: Node, updates: Node, kind: str) -> Node:
    """x with the updates of its elements; an index is of a row and a column."""
    return build.make(
        Op.SCATTER, (x, indices, updates), kind=kind, update_window_dims=(),
        inserted_window_dims=(0, 1), scatter_dims_to_operand_dims=(0, 1), index_vector_dim=1,
        input_batching_dims=(), scatter_indices_batching_dims=(), unique=False,
    )  # fmt: skip


def parts_of(x: Node, indices: Node, updates: Node, kind: str) -> Node:
    """x with updates of three elements of a row, which may meet in one or two of them."""
    return build.make(
        Op.SCATTER, (x, indices, updates), kind=kind, update_window_dims=(1,),
        inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0, 1), index_vector_dim=1,
        input_batching_dims=(), scatter_indices_batching_dims=(), unique=False,
    )  # fmt: skip


@pytest.mark.every(5, "slow")
@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.S32])
@pytest.mark.parametrize("kind", ["set", "add", "max"])
@pytest.mark.parametrize("columns", [1, 5, 130])
def test_rows_that_meet(columns: int, kind: str, dtype: DType, lnc: int) -> None:
    """300 updates of 20 rows, some outside: rows meet within a block of 128 and between blocks."""
    x, updates = given_(0, dtype, 20, columns), given_(2, dtype, 300, columns)
    graph = graph_of(rows_of(x, given_(1, DType.S32, 300, 1), updates, kind))
    args = arguments(graph)
    args[1] = np.random.default_rng(1).integers(-2, 23, (300, 1)).astype(np.int32)
    # Sums of some 15 numbers, in bfloat16 rounded each time by what they are compared with.
    most = 0 if kind != "add" else 40 if dtype is DType.BF16 else 16
    check(graph, args, compiled(graph, lnc=lnc), most=most, floor=1)


@pytest.mark.parametrize("kind", ["set", "add"])
def test_elements_of_more_than_24_bits_of_places(kind: str) -> None:
    """Places are compared in two parts: float32 does not tell such numbers apart."""
    x, updates = given_(0, DType.F32, 5000, 4000), given_(2, DType.F32, 200)
    graph = graph_of(elements_of(x, given_(1, DType.S32, 200, 2), updates, kind))
    args = arguments(graph)
    places = np.random.default_rng(1).integers(4990, 5000, (200, 2))
    places[:, 1] = 3990 + places[:, 1] % 10
    args[1] = places.astype(np.int32)
    check(graph, args, most=4 if kind == "add" else 0, floor=1)


@pytest.mark.parametrize("kind", ["set", "add"])
def test_windows_that_meet_in_parts(kind: str) -> None:
    x, updates = given_(0, DType.F32, 4, 16), given_(2, DType.F32, 60, 3)
    graph = graph_of(parts_of(x, given_(1, DType.S32, 60, 2), updates, kind))
    args = arguments(graph)
    rng = np.random.default_rng(1)
    args[1] = np.stack([rng.integers(0, 4, 60), rng.integers(0, 15, 60)], 1).astype(np.int32)
    check(graph, args, most=4 if kind == "add" else 0, floor=1)


@pytest.mark.parametrize("kind", ["set", "add"])
def test_many_windows_go_at_once(kind: str) -> None:
    """1024 rows of a gradient: 8 blocks, and not 1024 of which each waits for the one before."""
    zeros = build.splat(0.0, given_(0, DType.F32, 2000, 512).type)
    indices, updates = given_(0, DType.S32, 1024, 1), given_(1, DType.F32, 1024, 512)
    graph = graph_of(rows_of(zeros, indices, updates, kind))
    program = compiled(graph, lnc=1)
    assert program.instructions < 600
    made = program.predict()
    assert made.hbm_bytes >= (2000 + 1024) * 512 * 4
    assert made.device_us < 400
