"""Kernels that the benchmark of NKI runs: written as an author would for the hardware."""

from __future__ import annotations

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

PARTITIONS = 128


@nki.jit
def tiled_add(a: Any, b: Any) -> Any:
    """The sum of two (R, C) tensors, R a multiple of 128 and C of 512."""
    out = nl.ndarray(a.shape, a.dtype, nl.shared_hbm)
    rows, columns = a.shape
    for i in nl.affine_range(rows // PARTITIONS):
        for j in nl.affine_range(columns // 512):
            at = slice(i * PARTITIONS, (i + 1) * PARTITIONS), slice(j * 512, (j + 1) * 512)
            x = nl.ndarray((PARTITIONS, 512), a.dtype)
            y = nl.ndarray((PARTITIONS, 512), a.dtype)
            nisa.dma_copy(dst=x, src=a[at])
            nisa.dma_copy(dst=y, src=b[at])
            nisa.tensor_tensor(dst=x, data1=x, data2=y, op=nl.add)
            nisa.dma_copy(dst=out[at], src=x)
    return out


@nki.jit
def softmax(x: Any) -> Any:
    """Softmax along the rows of an (R, C) tensor, R a multiple of 128."""
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    rows, columns = x.shape
    for i in nl.affine_range(rows // PARTITIONS):
        at = slice(i * PARTITIONS, (i + 1) * PARTITIONS)
        tile = nl.ndarray((PARTITIONS, columns), nl.float32)
        nisa.dma_copy(dst=tile, src=x[at])
        least = nl.ndarray((PARTITIONS, 1), nl.float32)
        total = nl.ndarray((PARTITIONS, 1), nl.float32)
        nisa.tensor_reduce(dst=least, op=nl.maximum, data=tile, axis=1, negate=True)
        nisa.activation_reduce(
            dst=tile, op=nl.exp, data=tile, bias=least, reduce_op=nl.add, reduce_res=total
        )
        nisa.reciprocal(dst=total, data=total)
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=total)
        nisa.dma_copy(dst=out[at], src=tile)
    return out


@nki.jit
def rms_norm(x: Any, weight: Any, epsilon: float) -> Any:
    """RMSNorm along the rows of an (R, C) tensor, R a multiple of 128; weight of shape (C,)."""
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    rows, columns = x.shape
    scale = nl.ndarray((PARTITIONS, columns), nl.float32)
    nisa.dma_copy(dst=scale, src=weight.ap([[0, PARTITIONS], [1, columns]]))
    for i in nl.affine_range(rows // PARTITIONS):
        at = slice(i * PARTITIONS, (i + 1) * PARTITIONS)
        tile = nl.ndarray((PARTITIONS, columns), nl.float32)
        nisa.dma_copy(dst=tile, src=x[at])
        squares = nl.ndarray((PARTITIONS, columns), nl.float32)
        total = nl.ndarray((PARTITIONS, 1), nl.float32)
        nisa.activation_reduce(
            dst=squares, op=nl.square, data=tile, reduce_op=nl.add, reduce_res=total
        )
        nisa.tensor_scalar(
            dst=total, data=total, op0=nl.multiply, operand0=1 / columns, op1=nl.add,
            operand1=epsilon,
        )  # fmt: skip
        nisa.activation(dst=total, op=nl.rsqrt, data=total)
        nisa.scalar_tensor_tensor(
            dst=tile, data=tile, op0=nl.multiply, operand0=total, op1=nl.multiply, operand1=scale
        )
        nisa.dma_copy(dst=out[at], src=tile)
    return out


@nki.jit
def blocked_matmul(a: Any, b: Any, block_m: int = 16, block_n: int = 2, block_k: int = 8) -> Any:
    """(K, M) transposed times (K, N), blocked along all three as the public tutorial explains.

    Args:
        a: K a multiple of 128 * block_k, M of 128 * block_m.
        b: N a multiple of 512 * block_n.
        block_m: tiles of 128 rows of the result that are computed from one load.
        block_n: tiles of 512 columns likewise.
        block_k: tiles of 128 that are summed in PSUM.
    """
    (depth, height), width = a.shape, b.shape[1]
    out = nl.ndarray((height, width), a.dtype, nl.shared_hbm)
    columns = 512 * block_n
    for n in nl.affine_range(width // columns):
        sums = [
            nl.zeros((PARTITIONS, block_n, 512), nl.float32) for _ in range(height // PARTITIONS)
        ]
        for k in nl.sequential_range(depth // (PARTITIONS * block_k)):
            right = nl.ndarray((PARTITIONS, block_k, columns), b.dtype)
            _load(right, b, k * block_k, n * columns)
            for m in nl.affine_range(height // (PARTITIONS * block_m)):
                left = nl.ndarray((PARTITIONS, block_k, PARTITIONS * block_m), a.dtype)
                _load(left, a, k * block_k, m * PARTITIONS * block_m)
                for i in range(block_m):
                    for j in range(block_n):
                        _multiply(sums[m * block_m + i][:, j], left, right, i, j)
        for i, tile in enumerate(sums):
            rows = slice(i * PARTITIONS, (i + 1) * PARTITIONS)
            rounded = nl.ndarray((PARTITIONS, columns), out.dtype)
            nisa.tensor_copy(dst=rounded, src=tile.reshape((PARTITIONS, columns)))
            nisa.dma_copy(dst=out[rows, n * columns : (n + 1) * columns], src=rounded)
    return out


def _load(tiles: Any, matrix: Any, first: int, column: int) -> None:
    for k in range(tiles.shape[1]):
        rows = slice((first + k) * PARTITIONS, (first + k + 1) * PARTITIONS)
        nisa.dma_copy(dst=tiles[:, k], src=matrix[rows, column : column + tiles.shape[2]])


def _multiply(total: Any, left: Any, right: Any, i: int, j: int) -> None:
    product = nl.ndarray((PARTITIONS, 512), nl.float32, nl.psum)
    for k in range(left.shape[1]):
        nisa.nc_matmul(
            dst=product,
            stationary=left[:, k, i * PARTITIONS : (i + 1) * PARTITIONS],
            moving=right[:, k, j * 512 : (j + 1) * 512],
        )
    nisa.tensor_tensor(dst=total, data1=total, data2=product, op=nl.add)
