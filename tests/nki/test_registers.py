"""Arithmetic of Python on registers: random expressions against Python's integers.

`nki.collectives` documents that offsets are computed with "register ALU operations"; kernels write
them as ``counter * 128 + 5``.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from nki.errors import NkiError
from nki.perf import predict

EXECUTORS = ("native", "reference")
OPERATORS = (operator.add, operator.sub, operator.mul)
INPUTS = (3, -7, 2**31 - 1, -(2**31), 65_537)


def expression(rng: random.Random, leaves: list[Any], depth: int) -> Any:
    """Return a random expression, of registers or of Python's integers alike."""
    if depth == 0:
        return rng.choice(leaves)
    if rng.random() < 0.1:
        return -expression(rng, leaves, depth - 1)
    function = rng.choice(OPERATORS)
    other = rng.randint(-100, 100) if rng.random() < 0.5 else expression(rng, leaves, depth - 1)
    one = expression(rng, leaves, depth - 1)
    return function(one, other) if rng.random() < 0.5 else function(other, one)


@nki.jit
def expressions(x: Any, count: int) -> Any:
    out = nl.ndarray((count, 1), nl.int32, buffer=nl.shared_hbm)
    registers = []
    for i in range(x.shape[0]):
        registers.append(nisa.register_alloc())
        nisa.register_load(registers[-1], x[i : i + 1])
    for seed in range(count):
        rng = random.Random(seed)  # noqa: S311
        value = expression(rng, registers, rng.randint(1, 3))
        nisa.register_store(out[seed : seed + 1], value)
    return out


@pytest.mark.parametrize("executor", EXECUTORS)
def test_random_expressions(executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_NEURONX_NKI_EXECUTOR", executor)
    count = 60
    expected = []
    for seed in range(count):
        rng = random.Random(seed)  # noqa: S311
        expected.append(expression(rng, list(INPUTS), rng.randint(1, 3)))
    wrapped = [[(value + 2**31) % 2**32 - 2**31] for value in expected]
    x = np.array(INPUTS, np.int32)[:, None]
    np.testing.assert_array_equal(expressions(x, count), wrapped)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_register_begins_as_a_tensor(executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_NEURONX_NKI_EXECUTOR", executor)

    @nki.jit
    def kernel(x: Any, place: Any) -> Any:
        return nl.load(x[nl.ds(nisa.register_alloc(nl.load(place)), 2)])

    def stored(x: Any, place: Any) -> Any:
        out = nl.ndarray((2, 3), x.dtype, buffer=nl.shared_hbm)
        nl.store(out, kernel(x, place))
        return out

    x = np.arange(24, dtype=np.float32).reshape(8, 3)
    for start in (0, 5):
        place = np.array([[start]], np.int32)
        np.testing.assert_array_equal(nki.jit(stored)(x, place), x[start : start + 2])


def tiled(x: Any, place: Any, rows: int = 32) -> Any:
    """Copy tiles of rows, each to where it comes from."""
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)

    def body(i: Any) -> None:
        at = nl.ds(place(i), rows)
        tile = nl.ndarray((rows, x.shape[1]), x.dtype)
        nisa.dma_copy(dst=tile, src=x[at])
        nisa.dma_copy(dst=out[at], src=tile)

    nl.fori_loop(0, x.shape[0] // rows, body)
    return out


PLACES = {
    "times": lambda i: i * 32,
    "from the left": lambda i: 32 * i,
    "shifted": lambda i: (i + 2) * 32 - 64,
    "backwards": lambda i: 96 - i * 32,
    "of a copy": lambda i: (i + i) * 16,
}


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", PLACES)
def test_a_counter_places_tiles(name: str, executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_NEURONX_NKI_EXECUTOR", executor)
    monkeypatch.setenv("TORCH_NEURONX_NKI_CHECKS", "strict")
    x = np.random.default_rng(0).normal(size=(128, 5)).astype(np.float32)
    np.testing.assert_array_equal(nki.jit(lambda x: tiled(x, PLACES[name]))(x), x)


def copy_rows(x: Any, out: Any, at: Any) -> None:
    """Copy 16 rows, which a slice by registers chooses, by way of SBUF."""
    tile = nl.ndarray((16, x.shape[1]), x.dtype)
    nisa.dma_copy(dst=tile, src=x[at])
    nisa.dma_copy(dst=out[at], src=tile)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_counters_of_nested_loops_add(executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_NEURONX_NKI_EXECUTOR", executor)

    @nki.jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)

        def outer(i: Any) -> None:
            def inner(j: Any) -> None:
                at = nl.ds(i * 32 + j * 16, 16)
                copy_rows(x, out, at)

            nl.fori_loop(0, 2, inner)

        nl.fori_loop(0, 4, outer)
        return out

    x = np.random.default_rng(0).normal(size=(128, 5)).astype(np.float32)
    np.testing.assert_array_equal(kernel(x), x)


def test_both_cores_compute() -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        me = nl.program_id(0)

        def body(i: Any) -> None:
            at = nl.ds(i * 16 + me * 64, 16)
            copy_rows(x, out, at)

        nl.fori_loop(0, 4, body)
        return out

    x = np.random.default_rng(0).normal(size=(128, 5)).astype(np.float32)
    np.testing.assert_array_equal(kernel[2](x), x)
    assert predict(kernel[2], x).device_us > 0


@pytest.mark.parametrize("gap", [False, True])
def test_what_a_computed_place_leaves_unwritten_is_known(
    gap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_NEURONX_NKI_CHECKS", "strict")

    @nki.jit
    def kernel(x: Any) -> Any:
        del x
        tile = nl.ndarray((128, 64), nl.float32)

        def body(i: Any) -> None:
            nisa.memset(tile[:, nl.ds(i * 16, 8 if gap else 16)], 1.0)

        nl.fori_loop(0, 4, body)
        out = nl.ndarray((128, 64), nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=tile)
        return out

    x = np.zeros((1, 1), np.float32)
    if gap:
        with pytest.raises(NkiError, match=r"nothing has written.*NKI204"):
            kernel(x)
    else:
        np.testing.assert_array_equal(kernel(x), 1)


REFUSED: dict[str, Callable[[Any], Any]] = {
    "==": lambda r: r == 3, "!=": lambda r: r != 3, "<": lambda r: r < 3, ">=": lambda r: r >= 3,
    "//": lambda r: r // 2, "%": lambda r: 2 % r, "/": lambda r: r / 2, "**": lambda r: r**2,
    "<<": lambda r: r << 1, ">>": lambda r: r >> 1, "&": lambda r: r & 1, "1.5": lambda r: r * 1.5,
    "two": lambda r: r == nisa.register_alloc(3),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_python_cannot_know_is_refused(name: str) -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        REFUSED[name](nisa.register_alloc(3))
        return nl.load(x)

    with pytest.raises(NkiError, match=r"a register was used as .*test_registers.*NKI139"):
        kernel(np.zeros((1, 1), np.float32))
