"""Whole kernels in the style of the first generation: a tiled product, attention, a layer norm."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
from tests.nki.compat.compat_tools import close, random, summed


@nki.jit
def product(left: Any, right: Any) -> Any:
    """Return ``left.T @ right`` with blocks of tiles that stay in SBUF."""
    k_size, m_size = left.shape
    n_size = right.shape[1]
    out = nl.ndarray((m_size, n_size), dtype=left.dtype, buffer=nl.shared_hbm)
    k_tile, m_tile, n_tile = 128, 64, 96
    i_k, i_m = nl.mgrid[0:k_tile, 0:m_tile]
    i_kn, i_n = nl.mgrid[0:k_tile, 0:n_tile]
    o_m, o_n = nl.mgrid[0:m_tile, 0:n_tile]
    blocks = k_size // k_tile
    rights = nl.ndarray((blocks, nl.par_dim(k_tile), n_tile), dtype=right.dtype, buffer=nl.sbuf)
    for n in nl.affine_range(n_size // n_tile):
        for k in nl.affine_range(blocks):
            rights[k, i_kn, i_n] = nl.load(right[k * k_tile + i_kn, n * n_tile + i_n])
        for m in nl.affine_range(m_size // m_tile):
            psum = nl.zeros((m_tile, n_tile), nl.float32, buffer=nl.psum)
            for k in nl.affine_range(blocks):
                tile = nl.load(left[k * k_tile + i_k, m * m_tile + i_m])
                psum[...] += nl.matmul(tile, rights[k], transpose_x=True)
            result = nl.copy(psum, dtype=out.dtype)
            nl.store(out[m * m_tile + o_m, n * n_tile + o_n], value=result)
    return out


def test_tiled_product() -> None:
    left, right = random(256, 128), random(256, 192, seed=1)
    want = left.astype(float).T @ right
    close(product(left, right), want, rounded=summed(256))


@nki.jit
def attention(q: Any, k: Any, v: Any, scale: Any = None) -> Any:
    """Causal attention of q, k of (heads, d, length) and v of (heads, length, d), in two passes."""
    heads, d, length = q.shape
    head, block = nl.program_id(0), 64
    out = nl.ndarray((heads, length, d), dtype=q.dtype, buffer=nl.shared_hbm)
    count = length // block
    i_p, i_f = nl.arange(block)[:, None], nl.arange(block)[None, :]
    i_d, i_df = nl.arange(d)[:, None], nl.arange(d)[None, :]
    for i in nl.affine_range(count):
        queries = nl.load(q[head, i_d, i * block + i_f])
        scores = nl.ndarray((nl.par_dim(block), count, block), dtype=np.float32)
        largest = nl.full((nl.par_dim(block), count), nl.fp32.min, dtype=np.float32)
        for j in nl.affine_range(count):
            needed = j <= i
            keys = nl.load(k[head, i_d, j * block + i_f])
            psum = nl.zeros((nl.par_dim(block), block), dtype=np.float32, buffer=nl.psum)
            psum[i_p, i_f] += nisa.nc_matmul(queries, keys, mask=needed)
            scores[i_p, j, i_f] = nisa.affine_select(
                pred=i * block + i_p >= j * block + i_f,
                on_true_tile=nl.multiply(psum[i_p, i_f], scale),
                on_false_value=-9984.0,
            )
            largest[i_p, j] = nisa.tensor_reduce(np.max, data=scores[i_p, j, i_f], axis=(1,))
        top = nl.max(largest, axis=[1], keepdims=True)
        total = nl.ndarray((nl.par_dim(block), count), dtype=np.float32)
        psum = nl.zeros((nl.par_dim(block), d), dtype=np.float32, buffer=nl.psum)
        for j in nl.affine_range(count):
            powers = nisa.activation_reduce(
                np.exp, scores[i_p, j, i_f], bias=-top, reduce_op=np.add,
                reduce_res=total[i_p, j],
            )  # fmt: skip
            turned = nl.copy(nisa.nc_transpose(powers))
            psum += nisa.nc_matmul(turned, nl.load(v[head, j * block + i_p, i_df]))
        result = nl.divide(psum, nl.sum(total, axis=1))
        nl.store(out[head, i * block + i_p, i_df], value=result)
    return out


def test_causal_attention_on_a_grid() -> None:
    heads, d, length = 2, 32, 128
    q, k = random(heads, d, length), random(heads, d, length, seed=1)
    v = random(heads, length, d, seed=2)
    scale = 1 / math.sqrt(d)
    scores = np.einsum("hdi,hdj->hij", q.astype(float), k.astype(float)) * scale
    scores = np.where(np.tri(length, dtype=bool), scores, -9984.0)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    got = attention[heads](q, k, v, scale)
    # Errors of scores, below 8 in size, are multiplied by the exponential's slope.
    np.testing.assert_allclose(got, weights @ v, rtol=8 * summed(d) * 2.0**-23)


@nki.jit
def layer_norm(x: Any, gamma: Any, beta: Any, eps: float = 1e-5) -> Any:
    """Normalise rows; the last tile is cut by masks."""
    rows, columns = x.shape
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    weight = nl.load(gamma.reshape((1, columns)))
    shift = nl.load(beta.reshape((1, columns)))
    i_p, i_f = nl.mgrid[0:128, 0:columns]
    for i in nl.affine_range(math.ceil(rows / nl.tile_size.pmax)):
        inside = i * 128 + i_p < rows
        tile = nl.load(x[i * 128 + i_p, i_f], mask=inside)
        both = nisa.bn_aggr(nisa.bn_stats(tile, mask=inside))
        centred = nl.subtract(tile, both[:, 0], mask=inside)
        scaled = centred * nl.rsqrt(both[:, 1] + eps)
        made = scaled * weight.broadcast_to((128, columns)) + shift.broadcast_to((128, columns))
        nl.store(out[i * 128 + i_p, i_f], value=made, mask=inside)
    return out


def test_layer_norm_of_any_number_of_rows() -> None:
    x, gamma, beta = random(200, 48), random(48, seed=1), random(48, seed=2)
    wide = x.astype(float)
    centred = wide - wide.mean(1, keepdims=True)
    want = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5) * gamma + beta
    # Some ten roundings of numbers below 4, half of which cancel.
    np.testing.assert_allclose(
        layer_norm(x, gamma, beta), want, rtol=64 * 2.0**-24, atol=64 * 2.0**-24
    )
