"""The kernels whose measurements the model is compared with, written anew.

They do the work of the measured ones in tiles of the same sizes and in loops of the same order, as
far as their sources and the tutorial say; what the compiler of that time made of it is not known.
All are of the first generation, in float32, for the shapes that were measured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

import nki.first_generation.isa as nisa
import nki.first_generation.language as nl

__all__ = ["KERNELS", "SHAPES"]

_P, _WIDE, _ROW = 128, 512, 1024  # partitions, columns of an instruction, columns of a transfer
F32 = np.float32
Shape = tuple[int, ...]


def _ahead(x: Any) -> Any:
    """Return a tile of [128, 128] turned around, by a product and a copy."""
    return nl.copy(nisa.nc_transpose(x, engine=nisa.tensor_engine))


def _silu(x: Any) -> Any:
    """Return 1 / (1 + exp(-x)) in the three instructions that the measured kernels have."""
    power = nisa.activation(op=nl.exp, data=x, scale=-1.0)
    return nisa.reciprocal(nisa.tensor_scalar(power, np.add, 1.0))


def silu(x: Any) -> Any:
    """Multiply: x * sigmoid(x) of [4096, 7168]."""
    out = nl.ndarray(x.shape, dtype=F32, buffer=nl.shared_hbm)
    for row in nl.affine_range(x.shape[0] // _P):
        for block in nl.affine_range(x.shape[1] // _ROW):
            here = slice(row * _P, (row + 1) * _P), slice(block * _ROW, (block + 1) * _ROW)
            tile = nl.load(x[here])
            result = nl.ndarray((_P, _ROW), dtype=F32, buffer=nl.sbuf)
            for half in range(_ROW // _WIDE):
                part = slice(half * _WIDE, (half + 1) * _WIDE)
                result[:, part] = nl.multiply(tile[:, part], _silu(tile[:, part]))
            nl.store(out[here], result)
    return out


def adamw(theta: Any, grad: Any, m: Any, v: Any) -> Any:
    """One step of AdamW on [10944, 2048], all elements alike."""
    out = nl.ndarray(theta.shape, dtype=F32, buffer=nl.shared_hbm)
    for begin in range(0, theta.shape[0], _P):
        end = min(begin + _P, theta.shape[0])
        for block in range(theta.shape[1] // _ROW):
            here = slice(begin, end), slice(block * _ROW, (block + 1) * _ROW)
            tiles = [nl.load(x[here]) for x in (theta, m, v, grad)]
            result = nl.ndarray((end - begin, _ROW), dtype=F32, buffer=nl.sbuf)
            for half in range(_ROW // _WIDE):
                part = slice(half * _WIDE, (half + 1) * _WIDE)
                result[:, part] = _adamw(*(tile[:, part] for tile in tiles))
            nl.store(out[here], result)
    return out


def _adamw(theta: Any, m: Any, v: Any, grad: Any) -> Any:
    def times(x: Any, factor: float) -> Any:
        return nisa.tensor_scalar(x, np.multiply, factor)

    decayed = nl.subtract(theta, times(theta, 1e-5))
    first = times(nl.add(times(m, 0.9), times(grad, 0.1)), 0.01)
    second = nl.add(times(v, 0.999), nl.multiply(times(grad, 0.001), grad))
    root = nisa.tensor_scalar(nisa.activation(op=nl.sqrt, data=second, scale=1e3), np.add, 1e-8)
    return nl.subtract(decayed, nl.multiply(first, nisa.reciprocal(root)))


def _turned(x: Any, row: int, columns: int) -> list[Any]:
    """Load [128, columns] of x, and return its blocks of 128 columns turned around."""
    found = []
    for block in range(columns // _ROW):
        tile = nl.load(x[row * _P : (row + 1) * _P, block * _ROW : (block + 1) * _ROW])
        found += [_ahead(tile[:, i : i + _P]) for i in range(0, _ROW, _P)]
    return found


def _sum(lefts: list[Any], rights: list[Any], columns: slice) -> Any:
    """Return the sum of products in PSUM."""
    total = nl.zeros((_P, _WIDE), F32, buffer=nl.psum)
    for left, right in zip(lefts, rights, strict=True):
        total += nisa.nc_matmul(left, right[:, columns])
    return total


def _blocks(weight: Any, begin: int) -> list[Any]:
    """Load 1024 columns of a matrix, 128 rows at a time."""
    return [
        nl.load(weight[i : i + _P, begin : begin + _ROW]) for i in range(0, weight.shape[0], _P)
    ]


def matmul(x: Any, weight: Any) -> Any:
    """The product of [4096, 5120] and [5120, 12288]; 1024 columns at a time, in two sums."""
    out = nl.ndarray((x.shape[0], weight.shape[1]), dtype=F32, buffer=nl.shared_hbm)
    for begin in range(0, weight.shape[1], _ROW):
        for row in range(x.shape[0] // _P):
            lefts = _turned(x, row, x.shape[1])
            totals = [nl.zeros((_P, _WIDE), F32, buffer=nl.psum) for _ in range(_ROW // _WIDE)]
            for i, left in enumerate(lefts):
                right = nl.load(weight[i * _P : (i + 1) * _P, begin : begin + _ROW])
                for half in range(_ROW // _WIDE):
                    part = slice(half * _WIDE, (half + 1) * _WIDE)
                    totals[half] += nisa.nc_matmul(left, right[:, part])
            result = nl.ndarray((_P, _ROW), dtype=F32, buffer=nl.sbuf)
            for half, whole in enumerate(totals):
                result[:, half * _WIDE : (half + 1) * _WIDE] = nl.copy(whole)
            nl.store(out[row * _P : (row + 1) * _P, begin : begin + _ROW], result)
    return out


def swiglu(x: Any, up: Any, down: Any, gate: Any) -> Any:
    """(silu(x gate) * (x up)) down of [4096, 1024] and 3072 inner columns.

    All of x is turned around once. What is between the products stays on chip as far as the kernel
    says, which is more than there is room for.
    """
    rows, width = x.shape
    inner = up.shape[1]
    out = nl.ndarray((rows, width), dtype=F32, buffer=nl.shared_hbm)
    turned = [_columns(x, wide) for wide in range(rows // _WIDE)]
    middle = {}
    for begin in range(0, inner, _ROW):
        gates, ups = _blocks(gate, begin), _blocks(up, begin)
        for i in range(_ROW // _P):
            part = slice(i * _P, (i + 1) * _P)
            for wide, rights in enumerate(turned):
                gated, total = (
                    _sum([block[:, part] for block in blocks], rights, slice(0, _WIDE))
                    for blocks in (gates, ups)
                )
                kept = nl.copy(gated)
                middle[begin // _P + i, wide] = nl.multiply(nl.multiply(kept, _silu(kept)), total)
    for half in range(width // _WIDE):
        columns = slice(half * _WIDE, (half + 1) * _WIDE)
        rights = [nl.load(down[i : i + _P, columns]) for i in range(0, inner, _P)]
        for wide in range(rows // _WIDE):
            for i in range(_WIDE // _P):
                part = slice(i * _P, (i + 1) * _P)
                lefts = [middle[block, wide][:, part] for block in range(inner // _P)]
                first = wide * _WIDE + i * _P
                total = nl.copy(_sum(lefts, rights, slice(0, _WIDE)))
                nl.store(out[first : first + _P, columns], total)
    return out


def _columns(x: Any, wide: int) -> list[Any]:
    """Return 512 rows of x turned around, as tiles of 128 of its columns."""
    made = [nl.ndarray((_P, _WIDE), dtype=F32, buffer=nl.sbuf) for _ in range(x.shape[1] // _P)]
    for i in range(_WIDE // _P):
        row = wide * (_WIDE // _P) + i
        tile = nl.load(x[row * _P : (row + 1) * _P])
        for j, to in enumerate(made):
            turned = nisa.nc_transpose(tile[:, j * _P : (j + 1) * _P], engine=nisa.tensor_engine)
            to[:, i * _P : (i + 1) * _P] = nl.copy(turned)
    return made


def _normalised(tile: Any, gain: Any) -> Any:
    """Return rows divided by the root of their mean square, times a row of factors."""
    total = nl.sum(nl.square(tile), axis=[1])
    factor = nl.rsqrt(nl.add(total / tile.shape[1], 1e-5))
    result = nl.multiply(tile, factor)
    return nl.multiply(result, gain.broadcast_to(tile.shape))


def _weighted(lefts: list[Any], weight: Any, begin: int) -> Any:
    """Return the product with 512 columns of a weight that is loaded for it."""
    total = nl.zeros((_P, _WIDE), F32, buffer=nl.psum)
    for i, left in enumerate(lefts):
        right = nl.load(weight[i * _P : (i + 1) * _P, begin : begin + _WIDE])
        total += nisa.nc_matmul(left, right)
    return nl.copy(total)


def add_rmsnorm_matmul(x: Any, weight: Any, z: Any, gain: Any) -> Any:
    """RMSNorm of x + z, times a weight: [4096, 1024] and [1024, 2048]."""
    out = nl.ndarray((x.shape[0], weight.shape[1]), dtype=F32, buffer=nl.shared_hbm)
    factors = nl.load(gain)
    for row in range(x.shape[0] // _P):
        here = slice(row * _P, (row + 1) * _P)
        tile = _normalised(nl.add(nl.load(x[here]), nl.load(z[here])), factors)
        for begin in range(0, weight.shape[1], _WIDE):
            lefts = [_ahead(tile[:, i : i + _P]) for i in range(0, x.shape[1], _P)]
            nl.store(out[here, begin : begin + _WIDE], _weighted(lefts, weight, begin))
    return out


def matmul_add_rmsnorm(x: Any, weight: Any, z: Any, gain: Any) -> Any:
    """RMSNorm of x weight + z: [4096, 2048] and [2048, 2048]."""
    out = nl.ndarray((x.shape[0], weight.shape[1]), dtype=F32, buffer=nl.shared_hbm)
    factors = nl.load(gain)
    for row in range(x.shape[0] // _P):
        here = slice(row * _P, (row + 1) * _P)
        tile = nl.load(x[here])
        product = nl.ndarray((_P, weight.shape[1]), dtype=F32, buffer=nl.sbuf)
        for begin in range(0, weight.shape[1], _WIDE):
            lefts = [_ahead(tile[:, i : i + _P]) for i in range(0, x.shape[1], _P)]
            product[:, begin : begin + _WIDE] = _weighted(lefts, weight, begin)
        nl.store(out[here], _normalised(nl.add(product, nl.load(z[here])), factors))
    return out


def mamba(delta: Any, u: Any, a: Any, b: Any, c: Any) -> Any:
    """The selective scan, states outside of channels: everything is loaded for each state."""
    channels, length = delta.shape
    out = nl.ndarray(delta.shape, dtype=F32, buffer=nl.shared_hbm)
    sums = [nl.zeros((_P, length), F32, buffer=nl.sbuf) for _ in range(channels // _P)]
    for state in range(a.shape[1]):
        for i, total in enumerate(sums):
            here = slice(i * _P, (i + 1) * _P)
            _scan(total, nl.load(delta[here]), nl.load(u[here]), a[here], b, c, state)
    for i, total in enumerate(sums):
        nl.store(out[i * _P : (i + 1) * _P], total)
    return out


def fused_mamba_v2(delta: Any, u: Any, a: Any, b: Any, c: Any) -> Any:
    """The selective scan, channels outside of states: delta and u are loaded once."""
    channels, length = delta.shape
    out = nl.ndarray(delta.shape, dtype=F32, buffer=nl.shared_hbm)
    for i in range(channels // _P):
        here = slice(i * _P, (i + 1) * _P)
        total = nl.zeros((_P, length), F32, buffer=nl.sbuf)
        delta_tile, u_tile = nl.load(delta[here]), nl.load(u[here])
        for state in range(a.shape[1]):
            _scan(total, delta_tile, u_tile, a[here], b, c, state)
        nl.store(out[here], total)
    return out


def fused_mamba_v3(delta: Any, u: Any, a: Any, b: Any, c: Any) -> Any:
    """The same as the second version, 512 steps of the sequence at a time, written out."""
    channels, length = delta.shape
    wide = min(_WIDE, length)
    out = nl.ndarray(delta.shape, dtype=F32, buffer=nl.shared_hbm)
    for i in nl.affine_range(channels // _P):
        here = slice(i * _P, (i + 1) * _P)
        total = nl.zeros((_P, length), F32, buffer=nl.sbuf)
        delta_tile, u_tile = nl.load(delta[here]), nl.load(u[here])
        for state in nl.affine_range(a.shape[1]):
            scale = nl.load(a[here, state : state + 1])
            last: Any = 0
            for begin in nl.static_range(0, length, wide):
                part = slice(begin, begin + wide)
                last = _scan_part(
                    total[:, part], delta_tile[:, part], u_tile[:, part], scale,
                    b[state : state + 1, part], c[state : state + 1, part], last,
                )  # fmt: skip
        nl.store(out[here], total)
    return out


def _scan_part(total: Any, delta: Any, u: Any, scale: Any, b: Any, c: Any, last: Any) -> Any:
    """Add what one state gives in a part of the sequence; return the state after it."""
    decay = nisa.activation(op=nl.exp, data=delta, scale=scale)
    both = nisa.tensor_tensor(delta, u, np.multiply)
    term = nisa.tensor_tensor(both, nl.load(b).broadcast_to(delta.shape), np.multiply)
    found = nisa.tensor_tensor_scan(decay, term, initial=last, op0=np.multiply, op1=np.add)
    taken = nl.load(c).broadcast_to(delta.shape)
    total[...] = nl.add(total, nisa.tensor_tensor(found, taken, np.multiply))
    return nl.copy(found[:, delta.shape[1] - 1 :])


def _scan(total: Any, delta: Any, u: Any, a: Any, b: Any, c: Any, state: int) -> None:
    """Add what one state gives."""
    decay = nisa.activation(op=nl.exp, data=delta, scale=nl.load(a[:, state : state + 1]))
    shape = delta.shape
    given = nl.load(b[state : state + 1]).broadcast_to(shape)
    both = nisa.tensor_tensor(delta, u, np.multiply)
    term = nisa.tensor_tensor(both, given, np.multiply)
    found = nisa.tensor_tensor_scan(decay, term, initial=0, op0=np.multiply, op1=np.add)
    taken = nl.load(c[state : state + 1]).broadcast_to(shape)
    last = nisa.tensor_tensor(found, taken, np.multiply)
    total[...] = nl.add(total, last)


KERNELS: Final[dict[str, Callable[..., Any]]] = {
    "swiglu": swiglu,
    "matmul_add_rmsnorm": matmul_add_rmsnorm,
    "add_rmsnorm_matmul": add_rmsnorm_matmul,
    "matmul": matmul,
    "adamw": adamw,
    "silu": silu,
    "mamba": mamba,
    "fused_mamba_v1": mamba,
    "fused_mamba_v2": fused_mamba_v2,
    "fused_mamba_v3": fused_mamba_v3,
}

_STATES = 16


def _scanned(channels: int, length: int) -> tuple[Shape, ...]:
    wide, states = (channels, length), (_STATES, length)
    return wide, wide, (channels, _STATES), states, states


#: Shapes of the arguments; of the kernels of the tutorial by channels and length.
SHAPES: Final[dict[str, Callable[..., tuple[Shape, ...]]]] = {
    "swiglu": lambda: ((4096, 1024), (1024, 3072), (3072, 1024), (1024, 3072)),
    "matmul_add_rmsnorm": lambda: ((4096, 2048), (2048, 2048), (4096, 2048), (1, 2048)),
    "add_rmsnorm_matmul": lambda: ((4096, 1024), (1024, 2048), (4096, 1024), (1, 1024)),
    "matmul": lambda: ((4096, 5120), (5120, 12288)),
    "adamw": lambda: ((10944, 2048),) * 4,
    "silu": lambda: ((4096, 7168),),
    "mamba": lambda: _scanned(256, 7168),
    "fused_mamba_v1": _scanned,
    "fused_mamba_v2": _scanned,
    "fused_mamba_v3": _scanned,
}
