"""Kernels of the first generation in several styles, in float32, for the performance model.

Loads and stores with masks, instructions of `nisa`, `affine_range` nests, sums in PSUM, tiles with
block dimensions that are declared before the loops, tiles of several sizes. Each has what it means
in NumPy, shapes at which it is timed, and small ones at which it is run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
from neuronxcc import nki

__all__ = ["CASES", "Case", "spilling"]

F32 = np.float32
P = 128
ZERO: Any = np.dtype(np.uint16).type(0)  # as kernels that compilers have written say it
Shape = tuple[int, ...]


class Case(NamedTuple):
    """A kernel.

    Attributes:
        function: what is decorated.
        meaning: in NumPy.
        timed: shapes of its arguments where it is timed.
        small: where it is run.
    """

    function: Callable[..., Any]
    meaning: Callable[..., Any]
    timed: tuple[Shape, ...]
    small: tuple[Shape, ...]


def tile_at(*blocks: int, columns: int, partitions: int = P, buffer: Any = nl.sbuf) -> Any:
    """Return tiles of a number for each block, declared at once."""
    return nl.ndarray((*blocks, nl.par_dim(partitions), columns), dtype=F32, buffer=buffer)


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


# --- products ------------------------------------------------------------------------------------


def bmm(a: Any, b: Any) -> Any:
    """[B, M, K] by [B, K, N], tiles with block dimensions; the left ones are turned around."""
    batch, m, k = a.shape
    n = b.shape[2]
    wide = min(512, n)
    out = nl.ndarray((batch, m, n), dtype=F32, buffer=nl.shared_hbm)
    i_p, i_w, i_k = nl.arange(P)[:, None], nl.arange(wide)[None, :], nl.arange(P)[None, :]
    left = tile_at(batch, m // P, k // P, columns=P)
    turned = tile_at(batch, m // P, k // P, columns=P)
    right = tile_at(batch, k // P, n // wide, columns=wide)
    result = tile_at(batch, m // P, n // wide, columns=wide)
    for b0 in nl.affine_range(batch):
        for k0 in nl.affine_range(k // P):
            for n0 in nl.affine_range(n // wide):
                right[b0, k0, n0, i_p, i_w] = nl.load(b[b0, P * k0 + i_p, wide * n0 + i_w])
        for m0 in nl.affine_range(m // P):
            for k0 in nl.affine_range(k // P):
                left[b0, m0, k0, i_p, i_k] = nl.load(a[b0, P * m0 + i_p, P * k0 + i_k])
                psum = nisa.nc_transpose(left[b0, m0, k0, i_p, i_k])
                turned[b0, m0, k0, i_p, i_k] = nisa.tensor_copy(psum, dtype=F32)
            for n0 in nl.affine_range(n // wide):
                total = nl.zeros((nl.par_dim(P), wide), dtype=F32, buffer=nl.psum)
                for k0 in nl.affine_range(k // P):
                    total[i_p, i_w] += nisa.nc_matmul(
                        turned[b0, m0, k0, i_p, i_k], right[b0, k0, n0, i_p, i_w]
                    )
                result[b0, m0, n0, i_p, i_w] = nl.copy(total[i_p, i_w], dtype=F32)
                nl.store(out[b0, P * m0 + i_p, wide * n0 + i_w], result[b0, m0, n0, i_p, i_w])
    return out


def matmul_tiled(lhs_t: Any, rhs: Any) -> Any:
    """[K, M] by [K, N] without anything that stays: both sides are loaded for each product."""
    return _matmul(lhs_t, rhs, kept=False)


def matmul_kept(lhs_t: Any, rhs: Any) -> Any:
    """The same with the tiles of a row of results loaded once."""
    return _matmul(lhs_t, rhs, kept=True)


def _matmul(lhs_t: Any, rhs: Any, *, kept: bool) -> Any:
    k, m = lhs_t.shape
    n = rhs.shape[1]
    wide = min(512, n)
    out = nl.ndarray((m, n), dtype=F32, buffer=nl.shared_hbm)
    for m0 in nl.affine_range(m // P):
        lefts = [
            nl.load(lhs_t[k0 * P : (k0 + 1) * P, m0 * P : (m0 + 1) * P])
            for k0 in range(k // P if kept else 0)
        ]
        for n0 in nl.affine_range(n // wide):
            total = nl.zeros((P, wide), dtype=F32, buffer=nl.psum)
            for k0 in nl.affine_range(k // P):
                rows = slice(k0 * P, (k0 + 1) * P)
                left = lefts[k0] if kept else nl.load(lhs_t[rows, m0 * P : (m0 + 1) * P])
                right = nl.load(rhs[rows, n0 * wide : (n0 + 1) * wide])
                total += nl.matmul(left, right, transpose_x=True)
            nl.store(out[m0 * P : (m0 + 1) * P, n0 * wide : (n0 + 1) * wide], value=nl.copy(total))
    return out


def attention(q: Any, k: Any, v: Any) -> Any:
    """[H, S, D] with D at most 128: rows of scores on chip, a softmax, and the product with v."""
    heads, rows, width = q.shape
    group = heads // k.shape[0]
    out = nl.ndarray(q.shape, dtype=F32, buffer=nl.shared_hbm)
    wide = min(512, rows)
    for h in nl.affine_range(heads):
        keys = nl.ndarray((nl.par_dim(width), rows), dtype=F32, buffer=nl.sbuf)
        values = tile_at(rows // P, columns=width)
        for j in nl.affine_range(rows // P):
            tile = nl.load(k[h // group, j * P : (j + 1) * P, :])
            keys[:, j * P : (j + 1) * P] = nl.copy(nisa.nc_transpose(tile))
            values[j] = nl.load(v[h // group, j * P : (j + 1) * P, :])
        for i in nl.affine_range(rows // P):
            tile = nl.multiply(nl.load(q[h, i * P : (i + 1) * P, :]), 1 / math.sqrt(width))
            turned = nl.copy(nisa.nc_transpose(tile))
            scores = nl.ndarray((nl.par_dim(P), rows), dtype=F32, buffer=nl.sbuf)
            for j in nl.affine_range(rows // wide):
                here = slice(j * wide, (j + 1) * wide)
                scores[:, here] = nisa.tensor_copy(nisa.nc_matmul(turned, keys[:, here]))
            most = nisa.tensor_reduce(np.max, scores, axis=(1,), negate=True)
            power = nisa.activation(op=nl.exp, data=scores, bias=most)
            total = nisa.tensor_reduce(np.add, power, axis=(1,))
            result = nl.zeros((nl.par_dim(P), width), dtype=F32, buffer=nl.psum)
            for j in nl.affine_range(rows // P):
                part = nl.copy(nisa.nc_transpose(power[:, j * P : (j + 1) * P]))
                result += nisa.nc_matmul(part, values[j])
            scaled = nisa.tensor_scalar(result, np.multiply, nl.reciprocal(total))
            nl.store(out[h, i * P : (i + 1) * P, :], scaled)
    return out


def attention_meaning(q: Any, k: Any, v: Any) -> Any:
    group = q.shape[0] // k.shape[0]
    k, v = (np.repeat(x, group, 0) for x in (k, v))
    return softmax(q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[2])) @ v


def gated(x: Any, up: Any, gate: Any, weight: Any) -> Any:
    """A mixture's expert: silu(x gate) * (x up), times what a router gives each row."""
    rows, width = x.shape
    inner = up.shape[1]
    out = nl.ndarray((rows, inner), dtype=F32, buffer=nl.shared_hbm)
    wide = min(512, inner)
    for r in nl.affine_range(rows // P):
        tile = nl.load(x[r * P : (r + 1) * P, :])
        share = nl.load(weight[r * P : (r + 1) * P, :])
        turned = [nl.copy(nl.transpose(tile[:, i * P : (i + 1) * P])) for i in range(width // P)]
        for c in nl.affine_range(inner // wide):
            sums = []
            for matrix in (up, gate):
                total = nl.zeros((P, wide), dtype=F32, buffer=nl.psum)
                for i in range(width // P):
                    right = nl.load(matrix[i * P : (i + 1) * P, c * wide : (c + 1) * wide])
                    total += nisa.nc_matmul(turned[i], right)
                sums.append(total)
            product = nl.multiply(nl.silu(sums[1]), sums[0])
            kept = nisa.tensor_scalar(product, np.multiply, share)
            nl.store(out[r * P : (r + 1) * P, c * wide : (c + 1) * wide], kept)
    return out


def silu(x: Any) -> Any:
    return x / (1 + np.exp(-x))


def column_sums(x: Any) -> Any:
    """Sums over rows, by products with ones."""
    rows, columns = x.shape
    out = nl.ndarray((1, columns), dtype=F32, buffer=nl.shared_hbm)
    ones = nl.ones((P, 1), dtype=F32)
    wide = min(512, columns)
    for c in nl.affine_range(columns // wide):
        total = nl.zeros((1, wide), dtype=F32, buffer=nl.psum)
        for r in nl.affine_range(rows // P):
            tile = nl.load(x[r * P : (r + 1) * P, c * wide : (c + 1) * wide])
            total += nisa.nc_matmul(ones, tile)
        nl.store(out[:, c * wide : (c + 1) * wide], nl.copy(total))
    return out


def convolution(x: Any, weight: Any) -> Any:
    """[C, H, W] by [K, K, C, C2] without padding: a sum of products of moved rows."""
    channels, height, width = x.shape
    size = weight.shape[0]
    outside = weight.shape[3]
    out = nl.ndarray(
        (outside, height - size + 1, width - size + 1), dtype=F32, buffer=nl.shared_hbm
    )
    image = nl.load(x)
    factors = nl.ndarray((size, size, nl.par_dim(channels), outside), dtype=F32, buffer=nl.sbuf)
    for i in range(size):
        for j in range(size):
            factors[i, j] = nl.load(weight[i, j])
    for row in nl.affine_range(height - size + 1):
        total = nl.zeros((outside, width - size + 1), dtype=F32, buffer=nl.psum)
        for i in nl.affine_range(size):
            for j in nl.affine_range(size):
                moving = nl.copy(image[:, row + i, j : j + width - size + 1])
                total += nisa.nc_matmul(factors[i, j], moving)
        nl.store(out[:, row, :], nl.copy(total))
    return out


def convolution_meaning(x: Any, weight: Any) -> Any:
    size = weight.shape[0]
    height, width = x.shape[1] - size + 1, x.shape[2] - size + 1
    return sum(
        np.einsum("chw,cd->dhw", x[:, i : i + height, j : j + width], weight[i, j])
        for i in range(size)
        for j in range(size)
    )


# --- elementwise, rows ---------------------------------------------------------------------------


def masked_add(a: Any, b: Any) -> Any:
    """Sizes that no tile divides, with masks."""
    rows, columns = a.shape
    out = nl.ndarray(a.shape, dtype=F32, buffer=nl.shared_hbm)
    i_p, i_f = nl.mgrid[0:P, 0:512]
    for r in nl.affine_range(math.ceil(rows / P)):
        for c in nl.affine_range(math.ceil(columns / 512)):
            kept = (r * P + i_p < rows) & (c * 512 + i_f < columns)
            x = nl.load(a[r * P + i_p, c * 512 + i_f], mask=kept)
            y = nl.load(b[r * P + i_p, c * 512 + i_f], mask=kept)
            nl.store(out[r * P + i_p, c * 512 + i_f], nl.add(x, y, mask=kept), mask=kept)
    return out


def rope(x: Any, cosine: Any, sine: Any) -> Any:
    """[H, S, D]: the halves of rows turned by angles."""
    heads, rows, width = x.shape
    half = width // 2
    out = nl.ndarray(x.shape, dtype=F32, buffer=nl.shared_hbm)
    for r in nl.affine_range(rows // P):
        here = slice(r * P, (r + 1) * P)
        c, s = nl.load(cosine[here, :]), nl.load(sine[here, :])
        for h in nl.affine_range(heads):
            tile = nl.load(x[h, here, :])
            result = nl.ndarray((nl.par_dim(P), width), dtype=F32, buffer=nl.sbuf)
            low, high = tile[:, :half], tile[:, half:]
            result[:, :half] = nl.subtract(nl.multiply(low, c), nl.multiply(high, s))
            result[:, half:] = nl.add(nl.multiply(high, c), nl.multiply(low, s))
            nl.store(out[h, here, :], result)
    return out


def rope_meaning(x: Any, c: Any, s: Any) -> Any:
    low, high = np.split(x, 2, -1)
    return np.concatenate([low * c - high * s, high * c + low * s], -1)


def softmax_rows(x: Any) -> Any:
    """Instructions of `nisa`, one for a step."""
    out = nl.ndarray(x.shape, dtype=F32, buffer=nl.shared_hbm)
    for r in nl.affine_range(x.shape[0] // P):
        tile = nl.load(x[r * P : (r + 1) * P, :])
        most = nisa.tensor_reduce(np.max, tile, axis=(1,))
        moved = nisa.tensor_scalar(tile, np.subtract, most)
        power = nisa.activation(op=nl.exp, data=moved)
        total = nisa.tensor_reduce(np.add, power, axis=(1,))
        result = nisa.tensor_scalar(power, np.multiply, nisa.reciprocal(total))
        nl.store(out[r * P : (r + 1) * P, :], result)
    return out


def softmax_by_name(x: Any) -> Any:
    """The same as one function of the language."""
    out = nl.ndarray(x.shape, dtype=F32, buffer=nl.shared_hbm)
    for r in nl.affine_range(x.shape[0] // P):
        nl.store(
            out[r * P : (r + 1) * P, :], nl.softmax(nl.load(x[r * P : (r + 1) * P, :]), axis=1)
        )
    return out


def layernorm(x: Any, gain: Any, shift: Any) -> Any:
    """By sums of rows and of squares."""
    out = nl.ndarray(x.shape, dtype=F32, buffer=nl.shared_hbm)
    columns = x.shape[1]
    factor, offset = nl.load(gain), nl.load(shift)
    for r in nl.affine_range(x.shape[0] // P):
        tile = nl.load(x[r * P : (r + 1) * P, :])
        mean = nl.sum(tile, axis=[1]) / columns
        centred = nl.subtract(tile, mean)
        spread = nl.sum(nl.square(centred), axis=[1]) / columns
        scaled = nl.multiply(centred, nl.rsqrt(nl.add(spread, 1e-5)))
        result = nl.multiply(scaled, factor.broadcast_to(tile.shape))
        nl.store(out[r * P : (r + 1) * P, :], nl.add(result, offset.broadcast_to(tile.shape)))
    return out


def layernorm_by_statistics(x: Any, gain: Any, shift: Any) -> Any:
    """By the instructions for means and variances."""
    out = nl.ndarray(x.shape, dtype=F32, buffer=nl.shared_hbm)
    columns = x.shape[1]
    part = min(512, columns)
    factor = nl.broadcast_to(nl.load(gain), shape=(P, columns))
    offset = nl.broadcast_to(nl.load(shift), shape=(P, columns))
    for r in nl.affine_range(x.shape[0] // P):
        tile = nl.load(x[r * P : (r + 1) * P, :])
        found = nl.ndarray((nl.par_dim(P), 6 * (columns // part)), dtype=F32, buffer=nl.sbuf)
        for i in nl.affine_range(columns // part):
            found[:, 6 * i : 6 * (i + 1)] = nisa.bn_stats(tile[:, i * part : (i + 1) * part])
        both = nisa.bn_aggr(found)
        scale = nl.rsqrt(nl.add(both[:, 1:2], 1e-5))
        moved = nisa.tensor_scalar(
            tile, op0=np.subtract, operand0=both[:, 0:1], op1=np.multiply, operand1=scale
        )
        nl.store(out[r * P : (r + 1) * P, :], nl.add(nl.multiply(moved, factor), offset))
    return out


def layernorm_meaning(x: Any, gain: Any, shift: Any) -> Any:
    mean, spread = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(spread + 1e-5) * gain + shift


def statistics(x: Any) -> Any:
    """Maximum, minimum and mean of rows, tile after tile into one."""
    rows, columns = x.shape
    out = nl.ndarray((rows, 3), dtype=F32, buffer=nl.shared_hbm)
    for r in nl.affine_range(rows // P):
        parts = nl.ndarray((nl.par_dim(P), 3, columns // 256), dtype=F32, buffer=nl.sbuf)
        for c in nl.affine_range(columns // 256):
            tile = nl.load(x[r * P : (r + 1) * P, c * 256 : (c + 1) * 256])
            parts[:, 0, c : c + 1] = nl.max(tile, axis=[1], keepdims=True)
            parts[:, 1, c : c + 1] = nl.min(tile, axis=[1], keepdims=True)
            parts[:, 2, c : c + 1] = nl.mean(tile, axis=[1], keepdims=True)
        result = nl.ndarray((nl.par_dim(P), 3), dtype=F32, buffer=nl.sbuf)
        result[:, 0:1] = nisa.tensor_reduce(np.max, parts[:, 0, :], axis=(1,), keepdims=True)
        result[:, 1:2] = nisa.tensor_reduce(np.min, parts[:, 1, :], axis=(1,), keepdims=True)
        result[:, 2:3] = nl.mean(parts[:, 2, :], axis=[1], keepdims=True)
        nl.store(out[r * P : (r + 1) * P, :], result)
    return out


def statistics_meaning(x: Any) -> Any:
    return np.stack([x.max(1), x.min(1), x.mean(1)], 1)


def scan_rows(x: Any) -> Any:
    """Sums of everything before, along rows."""
    out = nl.ndarray(x.shape, dtype=F32, buffer=nl.shared_hbm)
    columns = x.shape[1]
    for r in nl.affine_range(x.shape[0] // P):
        ones = nl.ones((P, columns), dtype=F32)
        tile = nl.load(x[r * P : (r + 1) * P, :])
        nl.store(
            out[r * P : (r + 1) * P, :],
            nisa.tensor_tensor_scan(ones, tile, initial=0, op0=np.multiply, op1=np.add),
        )
    return out


def depthwise(x: Any, weight: Any) -> Any:
    """[N, C, W] by [C, F]: each channel with its own filter, on the vector engine."""
    batch, channels, width = x.shape
    taps = weight.shape[1]
    length = width - taps + 1
    out = nl.ndarray((batch, channels, length), dtype=F32, buffer=nl.shared_hbm)
    for c in nl.affine_range(channels // P):
        here = slice(c * P, (c + 1) * P)
        factors = nl.load(weight[here, :])
        for b in nl.affine_range(batch):
            tile = nl.load(x[b, here, :])
            total = nl.multiply(tile[:, 0:length], factors[:, 0:1])
            for f in range(1, taps):
                part = nisa.tensor_scalar(
                    tile[:, f : f + length], np.multiply, factors[:, f : f + 1]
                )
                total = nisa.tensor_tensor(total, part, op=np.add)
            nl.store(out[b, here, :], total)
    return out


def depthwise_meaning(x: Any, weight: Any) -> Any:
    length = x.shape[2] - weight.shape[1] + 1
    return sum(x[:, :, f : f + length] * weight[None, :, f : f + 1] for f in range(weight.shape[1]))


def pooled(x: Any) -> Any:
    """[C, H, W]: the largest of two by two."""
    channels, height, width = x.shape
    out = nl.ndarray((channels, height // 2, width // 2), dtype=F32, buffer=nl.shared_hbm)
    tile = nl.load(x)
    # The pairs come last.
    i_p, i_h, i_w, i_a, i_b = nl.mgrid[0:channels, 0 : height // 2, 0 : width // 2, 0:2, 0:2]
    found = nl.max(tile[i_p, 2 * i_h + i_a, 2 * i_w + i_b], axis=[3, 4])
    nl.store(out, found)
    return out


def pooled_meaning(x: Any) -> Any:
    channels, height, width = x.shape
    return x.reshape(channels, height // 2, 2, width // 2, 2).max((2, 4))


def transposed(x: Any) -> Any:
    """By products with an identity, tile after tile."""
    rows, columns = x.shape
    out = nl.ndarray((columns, rows), dtype=F32, buffer=nl.shared_hbm)
    for r in nl.affine_range(rows // P):
        for c in nl.affine_range(columns // P):
            tile = nl.load(x[r * P : (r + 1) * P, c * P : (c + 1) * P])
            turned = nl.copy(nisa.nc_transpose(tile))
            nl.store(out[c * P : (c + 1) * P, r * P : (r + 1) * P], turned)
    return out


def transposed_wide(x: Any) -> Any:
    """The same with rows of four tiles, so that transfers are longer."""
    rows, columns = x.shape
    out = nl.ndarray((columns, rows), dtype=F32, buffer=nl.shared_hbm)
    for c in nl.affine_range(columns // P):
        for r in nl.affine_range(rows // (4 * P)):
            wide = nl.ndarray((nl.par_dim(P), 4 * P), dtype=F32, buffer=nl.sbuf)
            for i in nl.affine_range(4):
                here = slice((4 * r + i) * P, (4 * r + i + 1) * P)
                tile = nl.load(x[here, c * P : (c + 1) * P])
                wide[:, i * P : (i + 1) * P] = nl.copy(nisa.nc_transpose(tile))
            nl.store(out[c * P : (c + 1) * P, r * 4 * P : (r + 1) * 4 * P], wide)
    return out


def declared(x: Any, y: Any) -> Any:
    """gelu(x) * y + x as a compiler writes kernels: tiles before the loops, masks everywhere."""
    rows, columns = x.shape
    blocks, wide = math.ceil(rows / P), min(1024, columns)
    parts = columns // wide
    half = wide // 2
    out = nl.ndarray(x.shape, dtype=F32, buffer=nl.shared_hbm)
    zero = nl.ndarray((nl.par_dim(P), 1), dtype=F32, name="memset.1", buffer=nl.sbuf)
    x_local = nl.ndarray((blocks, parts, nl.par_dim(P), wide), dtype=F32, name="x", buffer=nl.sbuf)
    y_local = nl.ndarray((blocks, parts, nl.par_dim(P), wide), dtype=F32, name="y", buffer=nl.sbuf)
    result = nl.ndarray((blocks, parts, nl.par_dim(P), wide), dtype=F32, name="", buffer=nl.sbuf)
    v1, v2 = (
        nl.ndarray((blocks, parts, 2, nl.par_dim(P), half), dtype=F32, name="", buffer=nl.sbuf)
        for _ in range(2)
    )
    i_p, i_w, i_h = nl.arange(P)[:, None], nl.arange(wide)[None, :], nl.arange(half)[None, :]
    zero[i_p, 0] = nisa.memset(
        shape=(P, 1), value=ZERO, dtype=F32, mask=None,
        engine=nki.isa.unknown_engine,
    )  # fmt: skip
    for i0 in nl.affine_range(blocks):
        kept = -P * i0 + -1 * i_p + (rows - 1) >= 0
        for i1 in nl.affine_range(parts):
            place = (P * i0 + i_p, wide * i1 + i_w)
            x_local[i0, i1, i_p, i_w] = nl.load(x[place], dtype=F32, mask=kept)
            y_local[i0, i1, i_p, i_w] = nl.load(y[place], dtype=F32, mask=kept)
            for i2 in nl.affine_range(2):
                here = (i0, i1, i_p, half * i2 + i_h)
                v1[i0, i1, i2, i_p, i_h] = nisa.activation(
                    op=nl.gelu, data=x_local[here], bias=zero[i_p, 0], scale=1.0, mask=kept,
                    dtype=F32,
                )  # fmt: skip
                v2[i0, i1, i2, i_p, i_h] = nl.multiply(
                    v1[i0, i1, i2, i_p, i_h], y_local[here], mask=kept, dtype=F32
                )
                result[here] = nl.add(v2[i0, i1, i2, i_p, i_h], x_local[here], mask=kept, dtype=F32)
            nl.store(out[place], value=result[i0, i1, i_p, i_w], mask=kept)
    return out


def gelu(x: Any) -> Any:
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def resident(x: Any) -> Any:
    """A matrix that stays on the chip as one tile of three dimensions and is used twice."""
    rows, columns = x.shape
    out = nl.ndarray(x.shape, dtype=F32, buffer=nl.shared_hbm)
    whole = nl.ndarray((nl.par_dim(P), rows // P, columns), dtype=F32, buffer=nl.sbuf)
    most = nl.ndarray((nl.par_dim(P), rows // P), dtype=F32, buffer=nl.sbuf)
    for r in nl.affine_range(rows // P):
        whole[:, r, :] = nl.load(x[r * P : (r + 1) * P, :])
        most[:, r : r + 1] = nisa.tensor_reduce(np.max, whole[:, r, :], axis=(1,), keepdims=True)
    peak = nisa.tensor_reduce(np.max, most, axis=(1,), keepdims=True)
    for r in nl.affine_range(rows // P):
        scaled = nisa.tensor_scalar(whole[:, r, :], np.subtract, peak)
        nl.store(out[r * P : (r + 1) * P, :], nl.exp(scaled))
    return out


def resident_meaning(x: Any) -> Any:
    rows = x.reshape(-1, P, x.shape[1])
    return np.exp(rows - rows.max((0, 2), keepdims=True).reshape(1, P, 1)).reshape(x.shape)


CASES: dict[str, Case] = {
    "bmm": Case(
        bmm,
        lambda a, b: a @ b,
        ((16, 512, 512), (16, 512, 1024)),
        ((2, 128, 256), (2, 256, 128)),
    ),
    "matmul_tiled": Case(
        matmul_tiled, lambda a, b: a.T @ b, ((1024, 1024), (1024, 2048)), ((256, 128), (256, 128))
    ),
    "matmul_kept": Case(
        matmul_kept, lambda a, b: a.T @ b, ((1024, 1024), (1024, 2048)), ((256, 128), (256, 128))
    ),
    "attention": Case(attention, attention_meaning, ((8, 1024, 128),) * 3, ((2, 256, 64),) * 3),
    "grouped attention": Case(
        attention,
        attention_meaning,
        ((8, 1024, 128), (2, 1024, 128), (2, 1024, 128)),
        ((4, 128, 64), (2, 128, 64), (2, 128, 64)),
    ),
    "gated": Case(
        gated,
        lambda x, up, gate, w: silu(x @ gate) * (x @ up) * w,
        ((1024, 1024), (1024, 2048), (1024, 2048), (1024, 1)),
        ((128, 128), (128, 256), (128, 256), (128, 1)),
    ),
    "column_sums": Case(
        column_sums, lambda x: x.sum(0, keepdims=True), ((4096, 2048),), ((256, 64),)
    ),
    "convolution": Case(
        convolution,
        convolution_meaning,
        ((128, 64, 64), (3, 3, 128, 128)),
        ((16, 6, 7), (3, 3, 16, 8)),
    ),
    "masked_add": Case(masked_add, lambda a, b: a + b, ((4000, 3000),) * 2, ((130, 520),) * 2),
    "rope": Case(
        rope,
        rope_meaning,
        ((16, 2048, 128), (2048, 64), (2048, 64)),
        ((2, 128, 32), (128, 16), (128, 16)),
    ),
    "softmax_rows": Case(softmax_rows, softmax, ((4096, 4096),), ((128, 96),)),
    "softmax_by_name": Case(softmax_by_name, softmax, ((4096, 4096),), ((128, 96),)),
    "layernorm": Case(
        layernorm,
        layernorm_meaning,
        ((4096, 2048), (1, 2048), (1, 2048)),
        ((128, 64), (1, 64), (1, 64)),
    ),
    "layernorm_by_statistics": Case(
        layernorm_by_statistics,
        layernorm_meaning,
        ((4096, 2048), (1, 2048), (1, 2048)),
        ((128, 64), (1, 64), (1, 64)),
    ),
    "statistics": Case(statistics, statistics_meaning, ((4096, 4096),), ((128, 512),)),
    "scan_rows": Case(scan_rows, lambda x: x.cumsum(1), ((4096, 1024),), ((128, 32),)),
    "depthwise": Case(
        depthwise, depthwise_meaning, ((8, 512, 2048), (512, 3)), ((2, 128, 32), (128, 3))
    ),
    "pooled": Case(pooled, pooled_meaning, ((128, 64, 64),), ((8, 6, 4),)),
    "transposed": Case(transposed, lambda x: x.T, ((2048, 2048),), ((256, 128),)),
    "transposed_wide": Case(transposed_wide, lambda x: x.T, ((2048, 2048),), ((512, 128),)),
    "declared": Case(
        declared, lambda x, y: gelu(x) * y + x, ((10944, 2048),) * 2, ((130, 64),) * 2
    ),
    "resident": Case(resident, resident_meaning, ((1024, 4096),), ((256, 32),)),
}


def spilling(count: int) -> Callable[..., Any]:
    """A kernel, not decorated yet, that computes so many tiles, and then uses all of them."""

    def kernel(a: Any) -> Any:
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        tile = nl.load(a)
        kept = [nl.multiply(tile, float(i)) for i in range(count)]
        total = kept[0]
        for other in kept[1:]:
            total = nl.add(total, other)
        nl.store(out, total)
        return out

    return kernel
