"""Kernels as a large collection writes them: own allocators, views, configurations, helpers."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Self

import ml_dtypes
import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.isa import constants, oob_mode, reduce_cmd
from tests.nki.examples.tools import EPS, Array, bf16, output, random, tile

# --- an allocator and a class of views ----------------------------------------------------------

SIZES = {nl.float32: 4, nl.int32: 4, nl.bfloat16: 2, nl.float16: 2, nl.uint8: 1}


class Stack(nl.NKIObject):
    """Addresses in SBUF: what a scope allocated is reused after it."""

    def __init__(self, first: int = 0, limit: int | None = None) -> None:
        self.next = first
        self.limit = limit or nl.tile_size.total_available_sbuf_size
        self.scopes: list[int] = []

    def __enter__(self) -> Self:
        self.scopes.append(self.next)
        return self

    def __exit__(self, *_: object) -> None:
        self.next = self.scopes.pop()

    def new(self, shape: tuple[int, ...], dtype: Any, name: str = "", align: int = 32) -> Any:
        start = -(-self.next // align) * align
        self.next = start + math.prod(shape[1:]) * SIZES[dtype]
        assert self.next <= self.limit, f"{name} needs {self.next} of {self.limit} bytes"
        return nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf, address=(0, start), name=name)


class View(nl.NKIObject):
    """A view that becomes one access pattern at the end."""

    base: Any
    pattern: Any = None
    offset: int = 0
    chosen: Any = None
    scalar: Any = None
    dim: int = 0

    def __post_init__(self) -> None:
        if self.pattern is None:
            self.pattern = self.base.get_pattern()

    def but(self, **changes: Any) -> View:
        fields = ("base", "pattern", "offset", "chosen", "scalar", "dim")
        return View(**{**{name: getattr(self, name) for name in fields}, **changes})

    def slice(self, dim: int, start: int, end: int) -> View:
        pattern = [list(pair) for pair in self.pattern]
        pattern[dim][1] = end - start
        return self.but(pattern=pattern, offset=self.offset + start * pattern[dim][0])

    def permute(self, *dims: int) -> View:
        return self.but(pattern=[self.pattern[i] for i in dims])

    def split(self, dim: int, count: int) -> View:
        step, size = self.pattern[dim]
        inner = size // count
        parts = [[step * inner, count], [step, inner]]
        return self.but(pattern=[*self.pattern[:dim], *parts, *self.pattern[dim + 1 :]])

    def rows(self, index: Any) -> View:
        return self.but(
            pattern=[[self.pattern[0][0], index.shape[0]], *self.pattern[1:]], chosen=index
        )

    def at(self, dim: int, register: Any) -> View:
        pattern = [list(pair) for pair in self.pattern]
        pattern[dim][1] = 1
        return self.but(pattern=pattern, scalar=register, dim=dim)

    def get(self) -> Any:
        return self.base.ap(
            pattern=self.pattern,
            offset=self.offset,
            scalar_offset=self.scalar,
            vector_offset=self.chosen,
            indirect_dim=self.dim,
            dtype=self.base.dtype,
        )


def cores() -> tuple[int, int]:
    """Return the number of cores and which of them this is; without a grid there is one."""
    if nl.program_ndim() == 0:
        return 1, 0
    return nl.num_programs(0), nl.program_id(0)


def turned(stack: Stack, source: Any) -> Any:
    """Return a transposed tile."""
    made = nl.ndarray((source.shape[1], source.shape[0]), dtype=source.dtype, buffer=nl.psum)
    nisa.nc_transpose(dst=made, data=source, engine=nisa.engine.tensor)
    held = stack.new(made.shape, source.dtype)
    newer = nisa.get_nc_version() >= nisa.nc_version.gen3
    nisa.tensor_copy(
        dst=held, src=made, engine=getattr(nisa.engine, "scalar" if newer else "vector")
    )
    return held


# --- gated perceptron ---------------------------------------------------------------------------


class Gate(Enum):
    SILU = "silu"
    RELU = "relu"


GATES = {Gate.SILU: nl.silu, Gate.RELU: nl.relu}


@dataclass
class MlpConfig(nl.NKIObject):
    inner: int
    gate: Gate = Gate.SILU
    label: str = "mlp"

    @property
    def tiles(self) -> int:
        return self.inner // nl.tile_size.pmax


@nki.jit(mode="jit", debug_kernel=True, show_compiler_tb=True, experimental_flags="none")
def mlp(x: Any, gate: Any, up: Any, down: Any, config: MlpConfig) -> Any:
    rows, width = x.shape
    stack, bank = Stack(), nl.tile_size.psum_bank_fmax_bytes
    total = nl.ndarray((rows, width), nl.float32, nl.psum, address=(0, 0), name="total")
    inputs = []
    for k in range(width // 128):
        part = stack.new((rows, 128), x.dtype, name=f"x{k}")
        nisa.dma_copy(dst=part, src=x[:, nl.ds(k * 128, 128)])
        inputs.append(turned(stack, part))
    for i in range(config.tiles):
        with stack:
            columns = slice(i * 128, (i + 1) * 128)
            sums = [
                nl.ndarray((128, rows), nl.float32, buffer=nl.psum, address=(0, (1 + j) * bank))
                for j in range(2)
            ]
            for k, held in enumerate(inputs):
                both = stack.new((128, 2, 128), x.dtype, name=f"w{i}.{k}")
                for j, source in enumerate((gate, up)):
                    nisa.dma_copy(
                        dst=both[:, j],
                        src=source[k * 128 : (k + 1) * 128, columns],
                        dge_mode=constants.dge_mode.none,
                    )
                    nisa.nc_matmul(dst=sums[j], stationary=both[:, j, :], moving=held)
            act = stack.new((128, rows), nl.float32)
            nisa.activation(dst=act, op=GATES[config.gate], data=sums[0], scale=1.0, bias=None)
            product = stack.new((128, rows), x.dtype)
            nisa.tensor_tensor(product, act, sums[1], nl.multiply)
            last = stack.new((128, width), x.dtype)
            nisa.dma_copy(dst=last, src=down[columns, :])
            nisa.nc_matmul(total, product, last)
    done = stack.new((rows, width), x.dtype)
    nisa.tensor_copy(done, total)
    return output(done)


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_mlp(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", target)
    sizes = ((16, 256), (256, 256), (256, 256), (256, 256))
    x, gate, up, down = (random(*s, seed=i) / np.float32(8) for i, s in enumerate(sizes))
    inner = x @ gate
    for config in (MlpConfig(256), MlpConfig(inner=256, gate=Gate.RELU)):
        act = np.maximum(inner, 0) if config.gate is Gate.RELU else inner / (1 + np.exp(-inner))
        expected = (act * (x @ up)) @ down
        got = mlp(x, gate, up, down, config)
        np.testing.assert_allclose(got, expected, rtol=0, atol=64 * EPS * np.abs(expected).max())
        half = mlp(bf16(x), bf16(gate), bf16(up), bf16(down), config=config)
        assert half.dtype == ml_dtypes.bfloat16
        error = np.abs(half.astype(np.float32) - expected).max()
        assert error <= 2.0**-6 * np.abs(expected).max()


# --- attention ----------------------------------------------------------------------------------


@nki.jit
def attention(q: Any, k: Any, v: Any, scale: float | None = None, causal: bool = True) -> Any:
    """Tiles of 128 queries and keys, with running maxima and sums."""
    length, width = q.shape
    scale = scale or 1.0 / math.sqrt(width)
    out = nl.ndarray(q.shape, q.dtype, buffer=nl.shared_hbm)
    q_turned, k_turned = nl.load_transpose2d(q), nl.load_transpose2d(k)
    for i in range(length // 128):
        most = nl.full((128, 1), -3.0e38, dtype=nl.float32, buffer=nl.sbuf)
        total = nl.zeros((128, 1), nl.float32, buffer=nl.sbuf)
        held = nl.zeros((128, width), nl.float32, buffer=nl.sbuf)
        for j in range(i + 1 if causal else length // 128):
            raw = nl.ndarray((128, 128), nl.float32, nl.psum)
            nisa.nc_matmul(raw, q_turned[:, nl.ds(i * 128, 128)], k_turned[:, nl.ds(j * 128, 128)])
            scores = nl.ndarray((128, 128), nl.float32)
            nisa.tensor_scalar(scores, raw, nl.multiply, scale)
            if causal and i == j:
                nisa.affine_select(
                    dst=scores, pattern=[[-1, 128]], channel_multiplier=1, on_true_tile=scores,
                    on_false_value=-3.0e38, offset=0, cmp_op=nl.greater_equal,
                )  # fmt: skip
            now, less = nl.ndarray((128, 1), nl.float32), nl.ndarray((128, 1), nl.float32)
            nisa.tensor_reduce(now, nl.maximum, scores, axis=(1,))
            nisa.tensor_tensor(now, now, most, nl.maximum)
            nisa.tensor_scalar(less, now, op0=nl.multiply, operand0=-1.0)
            p, added = nl.ndarray((128, 128), q.dtype), nl.ndarray((128, 1), nl.float32)
            nisa.activation_reduce(
                dst=p, op=nl.exp, data=scores, reduce_op=nl.add, reduce_res=added, bias=less
            )
            shrink = nl.ndarray((128, 1), nl.float32)
            nisa.activation(shrink, nl.exp, most, bias=less)
            nisa.scalar_tensor_tensor(
                dst=total, data=total, op0=nl.multiply, operand0=shrink, op1=nl.add, operand1=added
            )
            values = nl.ndarray((128, width), nl.float32, nl.psum)
            nisa.nc_matmul(values, turned(Stack(), p), tile(v[j * 128 : (j + 1) * 128]))
            nisa.scalar_tensor_tensor(held, held, nl.multiply, shrink, nl.add, values)
            most = now
        nisa.reciprocal(total, total)
        nisa.tensor_scalar(held, held, op0=nl.multiply, operand0=total)
        nisa.dma_copy(out[i * 128 : (i + 1) * 128, :], held)
    return out


@pytest.mark.parametrize("causal", [True, False])
def test_attention(causal: bool) -> None:
    q, k, v = (random(256, 32, seed=i) for i in range(3))
    scores = q @ k.T / math.sqrt(32)
    scores = np.where(np.tri(256, dtype=bool), scores, -np.inf) if causal else scores
    p = np.exp(scores - scores.max(-1, keepdims=True))
    expected = p @ v / p.sum(-1, keepdims=True)
    np.testing.assert_allclose(attention(q, k, v, causal=causal), expected, rtol=0, atol=512 * EPS)


# --- norm, rotation, loss -----------------------------------------------------------------------


@nki.jit
def rms_norm(x: Any, weight: Any, eps: float = 1e-6, *, by_activation: bool = True) -> Any:
    """Any number of rows; the weight is broadcast by an access pattern."""
    count, width = x.shape
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    scale = tile(weight.ap([[0, 128], [1, width]]))
    epsilon = nl.full((128, 1), eps, dtype=nl.float32, buffer=nl.sbuf)
    for start in nl.range(0, count, 128):
        n = min(128, count - start)
        held = nl.ndarray((128, width), x.dtype)
        nisa.dma_copy(held[:n], x[nl.ds(start, n)])
        squares, total = nl.ndarray((128, width), nl.float32), nl.ndarray((128, 1), nl.float32)
        if by_activation:
            nisa.activation(
                dst=squares[:n], op=nl.square, data=held[:n], reduce_op=nl.add,
                reduce_res=total[:n], reduce_cmd=reduce_cmd.reset_reduce,
            )  # fmt: skip
        else:
            nisa.tensor_tensor(squares[0:n], held[0:n], held[0:n], op=nl.multiply)
            nisa.tensor_reduce(dst=total[0:n, :], op=nl.add, data=squares[0:n, :], axis=1)
        nisa.activation(total[:n], op=nl.rsqrt, data=total[:n], scale=1 / width, bias=epsilon[:n])
        nisa.scalar_tensor_tensor(
            held[:n], held[:n], nl.multiply, total[:n], nl.multiply, scale[:n]
        )
        nisa.dma_copy(out[start : start + n], held[:n])
    return out


class Pairs(Enum):
    HALVES = 0
    NEIGHBOURS = 1


@nki.jit
def rotated(x: Any, cos: Any, sin: Any, pairs: Pairs = Pairs.HALVES) -> Any:
    rows, heads, width = x.shape
    half = width // 2
    low: Callable[[Any], Any] = lambda t: t[:, :, 0:half]  # noqa: E731 (as such kernels do)
    high: Callable[[Any], Any] = lambda t: t[:, :, half:width]  # noqa: E731
    if pairs == Pairs.NEIGHBOURS:
        low, high = (lambda t: t[:, :, 0:width:2]), (lambda t: t[:, :, 1:width:2])
    held, c, s = tile(x), tile(cos), tile(sin)
    c, s = (t.expand_dim(1).broadcast(1, heads) for t in (c, s))
    done, a = nl.ndarray(x.shape, x.dtype), nl.ndarray((rows, heads, half), nl.float32)
    b = nl.ndarray(a.shape, a.dtype)
    for to, first, second, op in ((low, low, high, nl.subtract), (high, high, low, nl.add)):
        nisa.tensor_tensor(a, first(held), c, op=nl.multiply)
        nisa.tensor_tensor(b, second(held), s, op=nl.multiply)
        nisa.tensor_tensor(to(done), a, b, op=op)
    return output(done)


@nki.jit
def cross_entropy(logits: Any, labels: Any, step: int = 64) -> Any:
    """The vocabulary comes in tiles."""
    rows, size = logits.shape
    wanted = nl.ndarray((rows, 1), nl.float32)
    nisa.tensor_copy(wanted, tile(labels))
    most = nl.full((rows, 1), -3.0e38, dtype=nl.float32, buffer=nl.sbuf)
    total, chosen = (nl.zeros((rows, 1), nl.float32, buffer=nl.sbuf) for _ in range(2))
    for start in range(0, size, step):
        x, one = tile(logits[:, start : start + step]), nl.ndarray((rows, 1), nl.float32)
        now, less = nl.ndarray((rows, 1), nl.float32), nl.ndarray((rows, 1), nl.float32)
        nisa.tensor_reduce(now, nl.maximum, x, axis=[1])
        nisa.tensor_tensor(now, now, most, nl.maximum)
        nisa.tensor_scalar(less, now, nl.multiply, -1)
        nisa.activation(most, nl.exp, most, bias=less)
        e, index = nl.ndarray((rows, step), nl.float32), nl.ndarray((rows, step), nl.int32)
        nisa.activation_reduce(e, nl.exp, x, reduce_op=nl.add, reduce_res=one, bias=less)
        nisa.scalar_tensor_tensor(total, total, nl.multiply, most, nl.add, one)
        most = now
        nisa.iota(index, [[1, step]], offset=start)
        nisa.tensor_copy(e, index)
        nisa.tensor_scalar(e, e, nl.equal, wanted)
        nisa.tensor_tensor(e, e, x, nl.multiply)
        nisa.tensor_reduce(one, nl.add, e, axis=1)
        nisa.tensor_tensor(chosen, chosen, one, nl.add)
    nisa.activation(total, nl.log, total)
    nisa.tensor_tensor(total, total, most, nl.add)
    nisa.tensor_tensor(total, total, chosen, nl.subtract)
    return output(total)


def test_norm_rotation_and_loss() -> None:
    x, weight = random(200, 48), random(48, seed=1)
    exact = x / np.sqrt((x.astype(np.float64) ** 2).mean(1, keepdims=True) + 1e-6) * weight
    for by_activation in (True, False):
        got = rms_norm(x, weight, by_activation=by_activation)
        np.testing.assert_allclose(got, exact, rtol=64 * EPS)
    x, angles = random(32, 4, 16), random(32, 8, seed=1)
    c, s = np.cos(angles)[:, None], np.sin(angles)[:, None]
    views: dict[Pairs, tuple[Any, Any]] = {
        Pairs.HALVES: (np.s_[..., :8], np.s_[..., 8:]),
        Pairs.NEIGHBOURS: (np.s_[..., ::2], np.s_[..., 1::2]),
    }
    for pairs, (low, high) in views.items():
        got = rotated(x, np.cos(angles), np.sin(angles), pairs)
        np.testing.assert_allclose(got[low], x[low] * c - x[high] * s, atol=8 * EPS, rtol=0)
        np.testing.assert_allclose(got[high], x[high] * c + x[low] * s, atol=8 * EPS, rtol=0)
    logits = random(32, 256)
    labels = np.random.default_rng(0).integers(0, 256, (32, 1)).astype(np.int32)
    chosen = np.take_along_axis(logits, labels, 1)
    exact = np.log(np.exp(logits.astype(np.float64)).sum(1, keepdims=True)) - chosen
    np.testing.assert_allclose(cross_entropy(logits, labels), exact, rtol=0, atol=256 * EPS)


# --- experts ------------------------------------------------------------------------------------


@nki.jit
def routed(x: Any, weight: Any, k: int = 4) -> list[Any]:
    """The k best experts of each row, and softmax over them."""
    rows, experts = x.shape[0], weight.shape[1]
    raw = nl.ndarray((rows, experts), nl.float32, buffer=nl.psum)
    for i in range(x.shape[1] // 128):
        part = x[:, i * 128 : (i + 1) * 128]
        if str(x.dtype) in ("bfloat16", "float16"):
            held = nl.ndarray((128, rows), x.dtype)
            nisa.dma_transpose(held, part)
        else:
            held = tile(part.permute((1, 0)))
        nisa.nc_matmul(raw, held, tile(weight[nl.ds(i * 128, 128)]))
    logits, best = nl.ndarray((rows, experts), nl.float32), nl.ndarray((rows, 8), nl.float32)
    nisa.tensor_copy(logits, raw)
    nisa.max8(dst=best, src=logits)
    index = nl.ndarray((rows, 8), nl.uint32)
    nisa.nc_find_index8(dst=index, data=logits, vals=best)
    less, e = nl.ndarray((rows, 1), nl.float32), nl.ndarray((rows, experts), nl.float32)
    nisa.tensor_scalar(less, best[:, 0:1], op0=nl.multiply, operand0=-1.0)
    nisa.activation(e, nl.exp, logits, bias=less)
    kept = nl.ndarray((rows, experts), nl.float32)
    nisa.tensor_scalar(kept, logits, op0=nl.greater_equal, operand0=best[:, k - 1 : k])
    nisa.tensor_tensor(e, e, kept, op=nl.multiply)
    nisa.tensor_reduce(less, nl.add, e, axis=1)
    nisa.reciprocal(less, less)
    nisa.tensor_scalar(e, e, op0=nl.multiply, operand0=less)
    return [output(index[:, :k]), output(e)]


@nki.jit
def taken(x: Any, index: Any) -> Any:
    """Rows by index; 0 where it is out of bounds."""
    count, width = index.shape[0], x.shape[1]
    out = nl.ndarray((count, width), x.dtype, buffer=nl.shared_hbm)
    for start in range(0, count, 128):
        n = min(128, count - start)
        held = nl.zeros((n, width), x.dtype, buffer=nl.sbuf)
        source = View(base=x).rows(tile(index[start : start + n]))
        nisa.dma_copy(
            dst=held, src=source.get(), oob_mode=oob_mode.skip, dge_mode=nisa.dge_mode.swdge
        )
        nisa.dma_copy(out[start : start + n], held)
    return out


@nki.jit
def added_rows(out: Any, rows: Any, index: Any) -> Any:
    target = View(base=out).rows(tile(index)).get()
    nisa.dma_compute(dst=target, srcs=[tile(rows), target], reduce_op=nl.add, unique_indices=True)
    return out


@nki.jit
def cache_updated(cache: Any, new: Any, positions: Any) -> Any:
    """One row of each sequence, at a position that is known at run time."""
    count = new.shape[0]
    held = tile(positions.reshape((1, count)))
    for b in range(count):
        register = nisa.register_alloc()
        nisa.register_load(register, held[0:1, b : b + 1])
        target = View(base=cache).slice(0, b, b + 1).at(1, register).get()
        nisa.dma_copy(dst=target, src=new[b : b + 1, :])
    return cache


def test_experts() -> None:
    x, weight = random(32, 256), random(256, 16, seed=1)
    logits = x @ weight
    index, share = routed(x, weight)
    order = np.argsort(-logits, 1)[:, :4]
    np.testing.assert_array_equal(index, order)
    e = np.exp(np.take_along_axis(logits, order, 1) - logits.max(1, keepdims=True))
    expected = np.zeros_like(logits)
    np.put_along_axis(expected, order, e / e.sum(1, keepdims=True), 1)
    np.testing.assert_allclose(share, expected, rtol=0, atol=4096 * EPS)
    routed(bf16(x), bf16(weight), k=2)
    wanted = np.random.default_rng(0).integers(0, 64, (150, 1)).astype(np.int32)
    wanted[[3, 130]] = 999
    known = random(64, 16)
    expected = np.where(wanted < 64, known[np.minimum(wanted[:, 0], 63)], 0)
    np.testing.assert_array_equal(taken(known, wanted), expected)


def test_updates_in_place() -> None:
    rng = np.random.default_rng(0)
    out, rows = random(200, 8), random(64, 8, seed=1)
    index = rng.permutation(200)[:64].astype(np.int32).reshape(64, 1)
    expected = out.copy()
    expected[index[:, 0]] += rows
    assert added_rows(out, rows, index) is out
    np.testing.assert_array_equal(out, expected)
    cache, new = random(3, 8, 16), random(3, 16, seed=1)
    expected = cache.copy()
    expected[[0, 1, 2], [1, 7, 3]] = new
    assert cache_updated(cache, new, np.array([1, 7, 3], np.int32)) is cache
    np.testing.assert_array_equal(cache, expected)


# --- loops over data, two cores -----------------------------------------------------------------


@nki.jit
def ragged_sums(x: Any, lengths: Any) -> Any:
    count, _, width = x.shape
    limits, out = tile(lengths.reshape((1, count))), nl.ndarray((count, width), nl.float32, nl.hbm)
    for b in range(count):
        total, n = nl.zeros((1, width), nl.float32, buffer=nl.sbuf), nisa.register_alloc()
        nisa.register_load(n, limits[:, b : b + 1])
        for i in nl.dynamic_range(n):
            row = nl.ndarray((1, width), nl.float32)
            nisa.dma_copy(row, x[b].select(0, i).reshape((1, width)))
            nisa.tensor_tensor(total, total, row, nl.add)
        nisa.dma_copy(out[b : b + 1], total)
    shared = nl.ndarray(out.shape, out.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(shared, out)
    return shared


@nki.jit
def split_product(a: Any, b: Any) -> Any:
    """Each core contracts its part, and writes its half of the sum."""
    count, mine = cores()
    depth = a.shape[0] // count
    out = nl.ndarray((a.shape[1], b.shape[1]), nl.float32, buffer=nl.shared_hbm)
    total = nl.ndarray(out.shape, nl.float32, buffer=nl.psum)
    for start in range(mine * depth, (mine + 1) * depth, 128):
        rows = nl.ds(start, 128)
        nisa.nc_matmul(total, tile(a[rows]), tile(b[rows]))
    held = nl.ndarray(out.shape, nl.float32)
    nisa.tensor_copy(held, total)
    if count == 1:
        nisa.dma_copy(out, held)
        return out
    other = nl.ndarray(out.shape, nl.float32)
    nisa.sendrecv(src=held, dst=other, send_to_rank=1 - mine, recv_from_rank=1 - mine, pipe_id=0)
    nisa.tensor_tensor(held, held, other, nl.add)
    half = nl.ds(mine * (out.shape[0] // 2), out.shape[0] // 2)
    nisa.dma_copy(out[half], held[half])
    nisa.core_barrier(out, (0, 1))
    return out


def test_loops_over_data_and_cores() -> None:
    x = random(3, 8, 16)
    for lengths in ([0, 3, 8], [1, 1, 1]):
        got = ragged_sums(x, np.array(lengths, np.int32))
        expected = np.stack([x[b, :n].sum(0) for b, n in enumerate(lengths)])
        np.testing.assert_allclose(got, expected, rtol=0, atol=16 * EPS)
    a, b = random(512, 64), random(512, 96, seed=1)
    for kernel in (split_product, split_product[1], split_product[2]):
        np.testing.assert_allclose(kernel(a, b), a.T @ b, rtol=0, atol=512 * 8 * EPS)


# --- what is a kernel, and what is an argument --------------------------------------------------


@dataclass
class Linear(nl.NKIObject):
    weight: Any
    bias: Any = None
    shape: tuple[int, ...] = ()


@nki.jit
def linear(x: Any, layers: list[Linear], options: dict[str, Any]) -> Any:
    for layer in layers:
        total = nl.ndarray((x.shape[0], layer.weight.shape[1]), nl.float32, nl.psum)
        nisa.nc_matmul(total, nl.load_transpose2d(x), nl.load(layer.weight))
        held = nl.ndarray(total.shape, nl.float32)
        if layer.bias is None:
            nisa.tensor_copy(held, total)
        else:
            rows = [[0, total.shape[0]], [1, total.shape[1]]]
            nisa.tensor_tensor(held, total, tile(layer.bias.ap(rows)), nl.add)
        layer.shape = held.shape
        x = output(held)
    return output(nl.multiply(nl.load(x), options.get("scale", 1.0)))


def test_objects_that_hold_arrays() -> None:
    x, weights = random(8, 16), [random(16, 24, seed=1), random(24, 8, seed=2)]
    bias = random(24, seed=3)
    layers = [Linear(weights[0], bias), Linear(weights[1])]
    expected = (x @ weights[0] + bias) @ weights[1]
    for scale in (1.0, 2.0):
        got = linear(x, layers, {"scale": scale})
        np.testing.assert_allclose(got, expected * scale, rtol=0, atol=1024 * EPS)
    assert layers[0].shape == ()  # the kernel had a copy


class Scale:
    def __init__(self, by: float) -> None:
        self.by = by

    @nki.jit
    def method(self, x: Any) -> Any:
        return self.plain(x)

    def plain(self, x: Any, more: float = 0.0) -> Any:
        held = tile(x)
        shifted(held, self.by, more)
        return output(held)

    def __call__(self, x: Any) -> Any:
        return self.plain(x, 1.0)


@nki.jit
def shifted(
    held: Any,
    by: float,
    more: float,
    do: Any = lambda t, a, b: nisa.tensor_scalar(t, t, nl.multiply, a, op1=nl.add, operand1=b),
) -> None:
    do(held, by, more)


def test_what_can_be_a_kernel() -> None:
    x, scale = random(4, 8), Scale(4.0)
    cases: tuple[tuple[Any, Array], ...] = (
        (scale.method, x * 4),
        (scale.method[1], x * 4),
        (scale.method.with_schedule([]), x * 4),
        (nki.simulate(scale.method), x * 4),
        (Scale(2.0).method, x * 2),
        (nki.jit(scale.plain), x * 4),
        (nki.jit(functools.partial(scale.plain, more=2.0)), x * 4 + 2),
        (nki.jit()(functools.partial(functools.partial(Scale.plain, scale), more=3.0)), x * 4 + 3),
        (nki.jit(nki.jit(scale.plain)), x * 4),
        (nki.simulate(scale), x * 4 + 1),
    )
    for kernel, expected in cases:
        np.testing.assert_allclose(kernel(x), expected, rtol=2 * EPS)
    assert len(list(scale.method.record(x).events())) == 3
    assert nki.jit(scale).function.__name__ == "Scale"
