"""Operands and results in memories that an engine does not reach: the compiler's copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
from tests.nki.compat.compat_tools import Array, random

P, F = 16, 16
ROWS, COLUMNS = np.arange(P)[:, None], np.arange(F)[None, :]

# Instructions of two tiles x and y of (16, 16), with numbers from 0 to 1.
INSTRUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "activation": lambda x, y: nisa.activation(nl.exp, x, bias=y[:, 0:1], scale=2.0),
    "activation_reduce": lambda x, y: nisa.activation_reduce(
        nl.square, x, reduce_op=np.add, reduce_res=nl.ndarray((P, 1), np.float32), scale=y[:, 0:1]
    ),
    "affine_select": lambda x, y: nisa.affine_select(
        nl.arange(P)[:, None] >= nl.arange(F)[None, :], x, -1.0
    ) + y,
    "bn_stats": lambda x, y: nisa.bn_stats(x) + y[:, 0:6],
    "max8": lambda x, y: nisa.max8(src=x) + y[:, 0:8],
    "nc_find_index8": lambda x, y: nisa.nc_find_index8(data=x, vals=nisa.max8(src=x)),
    "nc_matmul": nisa.nc_matmul,
    "nc_transpose": lambda x, y: nl.add(nisa.nc_transpose(x, engine=nisa.tensor_engine), y),
    "nc_transpose small": lambda x, y: nl.add(nisa.nc_transpose(x), y),
    "range_select": lambda x, y: nisa.range_select(
        on_true_tile=x, comp_op0=np.greater_equal, comp_op1=np.less, bound0=y[:, 0:1],
        bound1=nl.full((P, 1), 9.0, np.float32),
    ),
    "reciprocal": lambda x, y: nisa.reciprocal(x) + y,
    "scalar_tensor_tensor": lambda x, y: nisa.scalar_tensor_tensor(
        data=x, op0=np.add, operand0=y[:, 0:1], op1=np.multiply, operand1=y
    ),
    "tensor_copy": lambda x, y: nl.add(nisa.tensor_copy(x), nisa.tensor_copy(y)),
    "tensor_copy gpsimd": lambda x, y: nl.add(nisa.tensor_copy(x, engine=nisa.gpsimd_engine), y),
    "tensor_partition_reduce": lambda x, y: nl.add(
        nisa.tensor_partition_reduce(np.add, x), y[0:1, :]
    ),
    "tensor_reduce": lambda x, y: nl.add(nisa.tensor_reduce(np.add, x, axis=[1]), y[:, 0:1]),
    "tensor_scalar": lambda x, y: nisa.tensor_scalar(
        x, np.multiply, y[:, 0:1], op1=np.add, operand1=y[:, 1:2]
    ),
    "tensor_tensor": lambda x, y: nisa.tensor_tensor(x, y, np.subtract),
    "tensor_tensor gpsimd": lambda x, y: nisa.tensor_tensor(
        x, y, np.subtract, engine=nisa.gpsimd_engine
    ),
    "tensor_tensor_scan": lambda x, y: nisa.tensor_tensor_scan(
        x, y, y[:, 0:1], np.multiply, np.add
    ),
    "where": lambda x, y: nl.where(nl.less(x, y), x, y),
    "power": nl.power,
    "divide": lambda x, y: x / y,
    "matmul": nl.matmul,
    "matmul transposed": lambda x, y: nl.matmul(x, y, transpose_x=True),
    "sin": lambda x, y: nl.add(nl.sin(x), y),
    "mod": nl.mod,
    "broadcast": lambda x, y: nl.add(x, y[0:1, :]),
    "softmax": lambda x, y: nl.softmax(x, axis=[1]) * y,
    "rms_norm": lambda x, y: nl.rms_norm(x, y, axis=[1], n=F),
    "gather": lambda x, y: nl.gather_flattened(x, nl.copy(y * 9.0, dtype=np.uint32)),
    "transpose": lambda x, y: nl.add(nl.transpose(x), y),
}  # fmt: skip


def in_memory(array: Any, memory: str) -> Any:
    """Return a tile with an array's contents in a memory."""
    if memory == "hbm":
        return array
    tile = nl.ndarray((P, F), dtype=np.float32, buffer=getattr(nl, memory))
    tile[...] = nl.load(array)
    return tile


def run(name: str, memories: tuple[str, str], to: str) -> Array:
    @nki.jit
    def kernel(a: Any, b: Any) -> Any:
        x, y = in_memory(a, memories[0]), in_memory(b, memories[1])
        made = INSTRUCTIONS[name](x, y)
        out = nl.ndarray(made.shape, dtype=made.dtype, buffer=nl.shared_hbm)
        if to == "stored":
            nl.store(out, made)
            return out
        tile = nl.ndarray(made.shape, dtype=made.dtype, buffer=getattr(nl, to))
        tile[...] = made
        nl.store(out, nl.copy(tile))
        return out

    result: Array = kernel(random(P, F), random(P, F, seed=1) + np.float32(0.25))
    return result


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_results_are_the_same_in_all_memories(name: str) -> None:
    want = run(name, ("sbuf", "sbuf"), "stored")
    assert np.isfinite(want.astype(np.float64)).all()
    for first, second, to in (
        ("psum", "psum", "psum"), ("hbm", "hbm", "sbuf"), ("sbuf", "psum", "stored"),
        ("psum", "hbm", "sbuf"), ("sbuf", "sbuf", "psum"),
    ):  # fmt: skip
        got = run(name, (first, second), to)
        np.testing.assert_array_equal(got, want, f"{first} {second} {to}")


def test_a_transpose_beyond_32_goes_where_it_is_assigned_to() -> None:
    @nki.jit
    def kernel(a: Any) -> Any:
        out = nl.ndarray((2, 64, 128), dtype=a.dtype, buffer=nl.shared_hbm)
        tiles = nl.ndarray((2, nl.par_dim(64), 128), dtype=a.dtype)
        for i in nl.affine_range(2):
            tiles[i, nl.arange(64)[:, None], nl.arange(128)[None, :]] = nisa.nc_transpose(
                nl.load(a[i])
            )
            nl.store(out[i], tiles[i])
        return out

    a = random(2, 128, 64)
    np.testing.assert_array_equal(kernel(a), a.transpose(0, 2, 1))


def test_a_product_of_a_product() -> None:
    @nki.jit
    def kernel(a: Any, b: Any) -> Any:
        x = nl.load(a)
        return nisa.nc_matmul(nisa.nc_matmul(x, nl.load(b)), nl.matmul(x, x, transpose_x=True))

    a = np.eye(64, dtype=np.float32)[:, ::-1].copy()
    b = random(64, 64, seed=1)
    np.testing.assert_array_equal(kernel(a, b), (a.T @ b).T @ (a.T @ a))


@pytest.mark.parametrize("source", ["sbuf", "psum", "hbm"])
@pytest.mark.parametrize("target", ["sbuf", "psum", "hbm"])
def test_dma_between_all_memories(source: str, target: str) -> None:
    @nki.jit
    def kernel(a: Any) -> Any:
        tile = in_memory(a, source)
        buffer = nl.shared_hbm if target == "hbm" else getattr(nl, target)
        made = nl.ndarray((P, F), dtype=np.float32, buffer=buffer)
        nisa.dma_copy(dst=made, src=tile)
        return made

    a = random(P, F)
    np.testing.assert_array_equal(kernel(a), a)
