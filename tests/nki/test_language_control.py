"""Loops that the device runs, the launch grid, `no_reorder` and `device_print`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nki
import nki.isa as nisa
import nki.language as nl
from nki.errors import NkiError, NkiTypeError
from tests.nki.language_tools import inside, run

pytestmark = pytest.mark.usefixtures("reference_executor")


def _register(source: Any) -> Any:
    tile = nl.load(source)
    register = nisa.register_alloc()
    nisa.register_load(register, tile)
    return register


@pytest.mark.parametrize("spelling", ["fori_loop", "dynamic_range"])
@settings(max_examples=10, deadline=None)
@given(
    lower=st.integers(0, 9),
    upper=st.integers(0, 9),
    step=st.integers(1, 4),
    known=st.tuples(st.booleans(), st.booleans()),
)
def test_counted_loops(
    spelling: str, lower: int, upper: int, step: int, known: tuple[bool, bool]
) -> None:
    def kernel(data: Any, low: Any, high: Any) -> Any:
        out = nl.zeros(data.shape, data.dtype, nl.shared_hbm)
        temp = nl.ndarray((1, 1), data.dtype)
        first = lower if known[0] else _register(low)
        last = upper if known[1] else _register(high)

        def body(i: Any) -> None:
            nisa.dma_copy(temp, data.ap([[1, 1], [1, 1]], scalar_offset=i, indirect_dim=1))
            nisa.dma_copy(out.ap([[1, 1], [1, 1]], scalar_offset=i, indirect_dim=1), temp)

        if spelling == "fori_loop":
            nl.fori_loop(first, last, body, step)
        else:
            for i in nl.dynamic_range(first, last, step):
                body(i)
        return out

    data = np.arange(1, 11, dtype=np.float32).reshape(1, 10)
    low, high = (np.array([[n]], np.int32) for n in (lower, upper))
    want = np.zeros_like(data)
    want[:, lower:upper:step] = data[:, lower:upper:step]
    np.testing.assert_array_equal(nki.simulate(kernel)(data, low, high), want)


@pytest.mark.parametrize("count", [0, 1, 7])
def test_while_loop(count: int) -> None:
    def kernel(value: Any, counter: Any) -> Any:
        val, count_sb = nl.load(value), nl.load(counter)
        acc, one = nl.zeros((1, 1), nl.float32), nl.full((1, 1), 1, nl.int32)
        register = nisa.register_alloc()
        nisa.register_load(register, count_sb)

        def body(r: Any) -> Any:
            nisa.tensor_tensor(acc, acc, val, nl.add)
            nisa.tensor_tensor(count_sb, count_sb, one, nl.subtract)
            nisa.register_load(r, count_sb)
            return r

        nl.while_loop(register, body)
        out = nl.ndarray((1, 1), nl.float32, nl.shared_hbm)
        nl.store(out, acc)
        return out

    value, counter = np.array([[2.5]], np.float32), np.array([[count]], np.int32)
    assert nki.simulate(kernel)(value, counter)[0, 0] == 2.5 * count


def test_dynamic_range_counts_from_zero() -> None:
    def kernel(data: Any) -> Any:
        total = nl.zeros((1, 1), nl.float32)
        for _ in nl.dynamic_range(5):
            nisa.tensor_scalar(total, total, nl.add, 1.0)
        nl.store(data, total)

    data = np.zeros((1, 1), np.float32)
    nki.simulate(kernel)(data)
    assert data[0, 0] == 5


def _nothing(i: Any) -> None:
    del i


def _left_early() -> None:
    for _ in nl.dynamic_range(3):
        break


def _returned_early() -> int:
    for _ in nl.dynamic_range(3):
        return 1
    return 0


def _in_order(loop: Any) -> Any:
    def body() -> None:
        with nl.no_reorder():
            loop()

    return body


@pytest.mark.parametrize(
    ("body", "code", "text"),
    [
        (lambda: nl.fori_loop(0, 3, lambda i: i), "NKI245", "body of nl.fori_loop returned"),
        (lambda: nl.fori_loop(0, 3, _nothing, 0), "NKI200", "has the step 0"),
        (lambda: nl.fori_loop(0.5, 3, _nothing), "NKI202", "lower .* is a float"),  # type: ignore[arg-type]
        (lambda: nl.while_loop(1, _nothing), "NKI202", "is a int"),  # type: ignore[arg-type]
        (
            lambda: nl.while_loop(nisa.register_alloc(1), lambda _: None),  # type: ignore[arg-type,return-value]
            "NKI201",
            "returned no register",
        ),
        (_left_early, "NKI245", "left by break or return"),
        (_returned_early, "NKI245", "left by break or return"),
        (_in_order(lambda: nl.fori_loop(0, 3, _nothing)), "NKI245", "within nl.no_reorder"),
        (_in_order(lambda: nl.while_loop(nisa.register_alloc(1), lambda r: r)), "NKI245", "within"),
        (_in_order(lambda: list(nl.dynamic_range(3))), "NKI245", "nl.dynamic_range stands within"),
    ],
)
def test_loops_that_cannot_be(body: Any, code: str, text: str) -> None:
    with pytest.raises(NkiError, match=text) as caught:
        inside(body)
    assert caught.value.code == code
    assert caught.value.where[0] == __file__


def test_order_can_be_kept() -> None:
    def body() -> bool:
        with nl.no_reorder():
            for _ in nl.affine_range(2):
                c = nl.add(nl.full((8, 4), 3.0, nl.float32), nl.full((8, 4), 2.0, nl.float32))
        return bool(nl.equal(c, 5.0))

    assert inside(body)
    nothing = inside(lambda: nl.fori_loop(0, 2, _nothing))
    assert nothing is None


def test_launch_grid() -> None:
    seen: list[Any] = []

    def kernel(x: Any) -> Any:
        seen.append(
            (nl.program_id(), nl.program_id(axis=0), nl.num_programs(), nl.num_programs(None),
             nl.num_programs(axes=(0,)), nl.program_ndim())
        )  # fmt: skip
        return x

    x = np.zeros((1, 1), np.float32)
    nki.simulate(kernel)(x)
    assert seen == [(0, 0, 1, 1, 1, 0)]
    seen.clear()
    nki.jit(kernel)[1](x)
    assert seen == [(0, 0, 1, 1, 1, 1)]
    with pytest.raises(NkiError, match=r"axis 1 was asked for.*\[NKI203\]"):
        nki.jit(lambda _: nl.program_id(1))[1](x)


def test_device_print(capsys: pytest.CaptureFixture[str]) -> None:
    def body(x: Any) -> Any:
        nl.device_print("the tile", x)
        return x

    run(body, np.full((1, 2), 7.0, np.float32))
    printed = capsys.readouterr().out
    assert "the tile" in printed
    assert "7." in printed


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (lambda t: (3, t), "print_prefix must be a string, got 3"),
        (lambda _: ("a", 3), "tensor must be a tensor, got int"),
        (lambda _: ("a", nl.zeros((2, 2), nl.float32, nl.psum)), "tensor must be in sbuf or hbm"),
    ],
)
def test_device_print_refuses(arguments: Any, text: str) -> None:
    with pytest.raises(NkiTypeError, match=rf"nl.device_print {text}.*\[NKI240\]"):
        inside(lambda: nl.device_print(*arguments(nl.zeros((2, 2), nl.float32))))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("program_id", ()),
        ("num_programs", ()),
        ("program_ndim", ()),
        ("device_print", ("a", None)),
        ("fori_loop", (0, 1, _nothing)),
        ("while_loop", (None, _nothing)),
        ("dynamic_range", (3,)),
    ],
)
def test_what_only_kernels_can_ask(name: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(NkiError, match=rf"nl.{name} is called outside of a kernel.*\[NKI246\]"):
        getattr(nl, name)(*arguments)
