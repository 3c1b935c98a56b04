"""Results that wait: order, overlaps, types, and zeros in PSUM."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
from tests.nki.compat.compat_tools import Array, close, random, returning, summed


def instructions(kernel: Any, *arrays: Array) -> list[str]:
    """Return the names of the instructions of a kernel, without copies from and to HBM."""
    events = kernel.today().record(*arrays).events()
    return [e.template.row.name for e in events if not e.template.row.name.startswith("dma")]


def test_an_assigned_result_is_one_instruction() -> None:
    def kernel(x: Any) -> Any:
        t = nl.ndarray((8, 4), dtype=np.float32)
        t[...] = nl.exp(x)
        t[0:8, 0:4] = nl.multiply(t, 2.0)
        t += x
        return t

    made, a = returning(kernel), random(8, 4)
    assert instructions(made, a) == ["activation", "tensor_scalar", "tensor_tensor"]
    close(made(a), 2 * np.exp(a.astype(float)) + a, rounded=3)


def test_results_are_computed_where_they_stand() -> None:
    """What an instruction reads may be overwritten before its result is used."""

    def kernel(x: Any) -> Any:
        doubled = x + x
        x[...] = 0.0
        return doubled

    a = random(8, 4)
    np.testing.assert_array_equal(returning(kernel)(a), a + a)


def test_an_unused_result_still_has_its_effects() -> None:
    def kernel(x: Any) -> Any:
        total = nl.ndarray((8, 1), dtype=np.float32)
        nisa.activation_reduce(nl.copy, x, reduce_op=np.add, reduce_res=total)
        return total

    a = random(8, 4)
    close(returning(kernel)(a), a.astype(float).sum(1, keepdims=True), rounded=5)


@pytest.mark.parametrize("shift", [-1, 0, 1])
def test_a_tile_may_be_written_from_itself(shift: int) -> None:
    def kernel(x: Any) -> Any:
        x[:, 1 + shift : 6 + shift] = nl.add(x[:, 1:6], 1.0)
        return x

    a = random(8, 8)
    want = a.copy()
    want[:, 1 + shift : 6 + shift] = a[:, 1:6] + np.float32(1)
    np.testing.assert_array_equal(returning(kernel)(a), want)


def test_assignment_converts_after_the_type_of_the_result() -> None:
    def kernel(x: Any) -> Any:
        t = nl.ndarray((8, 4), dtype=np.float32)
        t[...] = nl.add(x, 0.0, dtype=nl.bfloat16)
        return t

    a = random(8, 4)
    want = a.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(returning(kernel)(a), want)


def test_numbers_are_written_converted() -> None:
    def kernel(x: Any) -> Any:
        t = nl.zeros((8, 4), dtype=np.int8)
        t[:, 0] = 300.0
        t[:, 1] = 2.5
        t[3, 2] = -7
        t[:, 3] = np.float32("nan")
        return t

    want = np.tile(np.array([127, 2, 0, 0], np.int8), (8, 1))
    want[3, 2] = -7
    np.testing.assert_array_equal(returning(kernel)(random(8, 4)), want)


def test_copies_between_any_partitions() -> None:
    def kernel(x: Any) -> Any:
        t = nl.zeros((8, 4), dtype=np.float32)
        t[5:8, 1:3] = x[1:4, 0:2]
        t[0, :] = nl.matmul(x[0:4, :], x[0:4, :], transpose_x=True)[0, :]
        return t

    a = random(8, 4)
    want = np.zeros((8, 4))
    want[5:8, 1:3] = a[1:4, :2]
    want[0] = a[:4, 0].astype(float) @ a[:4]
    close(returning(kernel)(a), want, rounded=summed(4))


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["product", "read", "write", "product", "clear"]),
        st.integers(0, 3), st.integers(1, 4),
    ),
    max_size=6,
)  # fmt: skip


@given(steps=STEPS)
@settings(max_examples=40)
def test_zeros_in_psum_are_zeros_to_everybody(steps: list[tuple[str, int, int]]) -> None:
    """Products overwrite the first time; all other accesses find what NumPy has."""
    a, b = random(16, 8), random(16, 4, seed=1)

    # Up to trn2 it is undefined to add to what no product has written.
    plain = all(what in ("product", "clear") for what, _, _ in steps)

    @nki.jit(platform_target="trn2" if plain else "trn3")
    def kernel(a_in: Any, b_in: Any) -> Any:
        x, y = nl.load(a_in), nl.load(b_in)
        psum = nl.zeros((8, 4), dtype=np.float32, buffer=nl.psum)
        seen = nl.zeros((8, 4), dtype=np.float32)
        for what, first, count in steps:
            end = min(4, first + count)
            if what == "product":
                psum[:, first:end] += nisa.nc_matmul(x, y[:, first:end])
            elif what == "read":
                seen += psum
            elif what == "clear":
                psum = nl.zeros((8, 4), dtype=np.float32, buffer=nl.psum)
            else:
                psum[:, first:end] = nisa.nc_matmul(x, y[:, first:end])
        seen += psum
        return seen

    psum, seen = np.zeros((8, 4)), np.zeros((8, 4))
    for what, first, count in steps:
        part = np.s_[:, first : first + count]
        product = a.astype(float).T @ b
        if what == "product":
            psum[part] += product[part]
        elif what == "read":
            seen += psum
        elif what == "clear":
            psum = np.zeros((8, 4))
        else:
            psum[part] = product[part]
    close(kernel(a, b), seen + psum, rounded=summed(16) + 3 * len(steps))


def test_operators_of_python() -> None:
    def kernel(x: Any, y: Any) -> Any:
        return (
            x + y, x - y, x * y, x / y, 2.0 - x, 1 / y, -x, abs(-x), x**2.0, x < y, x >= 0.5,
            x % y,
        )  # fmt: skip

    a, b = random(8, 4), random(8, 4, seed=1) + np.float32(0.25)
    x, y = a.astype(float), b.astype(float)
    wanted = (
        x + y, x - y, x * y, x / y, 2 - x, 1 / y, -x, x, x**2, x < y, x >= 0.5, np.mod(x, y),
    )  # fmt: skip
    for got, want in zip(returning(kernel)(a, b), wanted, strict=True):
        np.testing.assert_allclose(got.astype(float), want, rtol=4 * 2.0**-24, atol=2.0**-23)


def test_operators_in_place_and_on_integers() -> None:
    def kernel(x: Any) -> Any:
        x[0:4, :] += 3
        x[0:4, :] -= 1
        x *= 2
        return (x, x & 7, x | 8, x ^ 5, x << 2, x >> 1, ~x)

    a = np.arange(32, dtype=np.int32).reshape(8, 4)
    b = a.copy()
    b[:4] += 2
    b *= 2
    for got, want in zip(
        returning(kernel)(a), (b, b & 7, b | 8, b ^ 5, b << 2, b >> 1, ~b), strict=True
    ):
        np.testing.assert_array_equal(got, want)
