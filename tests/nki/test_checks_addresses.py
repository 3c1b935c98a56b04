"""Explicit addresses that overlap: a tensor that another one has written over is not read."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nki
import nki.isa as nisa
import nki.language as nl
from nki.checks import check_core
from nki.context import current_run
from nki.core import default_target
from nki.errors import NkiWarning
from nki.recorder import Recorder
from nki.tensor import NkiTensor

pytestmark = pytest.mark.usefixtures("reference_executor")


def recorder() -> Recorder:
    found = current_run()
    assert isinstance(found, Recorder)
    return found


def codes(kernel: Any) -> list[str]:
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        recording = nki.jit(kernel).record()
    return [finding.code for finding, _ in recording.findings]


def out() -> NkiTensor:
    return nl.ndarray((32, 64), nl.float32, nl.private_hbm)


def test_writing_over_what_is_still_read() -> None:
    @nki.jit
    def kernel() -> None:
        a = nl.ndarray((32, 64), nl.float32, address=(0, 0), name="a")
        b = nl.ndarray((64, 16), nl.float32, address=(0, 128), name="b")
        nisa.memset(a, 0)
        nisa.memset(b, 1)
        nisa.dma_copy(out(), a)

    text = (
        r"dma_copy src reads <tensor 'a' in SBUF: float32\[32, 64\] at \(0, 0\)>, but <tensor 'b' "
        r"in SBUF.*> at an overlapping address was written meanwhile, at .*py:\d+ \[NKI222"
    )
    with pytest.warns(NkiWarning, match=text):
        kernel()


def test_bytes_that_were_used_one_after_the_other() -> None:
    def kernel() -> None:
        for _ in range(3):
            a = nl.ndarray((32, 64), nl.float32, address=(0, 0))
            nisa.memset(a, 0)
            nisa.dma_copy(out(), a)

    assert codes(kernel) == []


def test_only_bytes_that_were_written_over_matter() -> None:
    def kernel() -> None:
        a = nl.ndarray((32, 64), nl.float32, address=(0, 0))
        b = nl.ndarray((32, 64), nl.float32, address=(0, 128))
        nisa.memset(a, 0)
        nisa.memset(b[:, 32:], 1)
        nisa.dma_copy(out(), a)  # its second half is b's first half, which nobody has written
        nisa.memset(b[0:1, 0:1], 1)
        nisa.dma_copy(out()[:, :32], a[:, :32])
        nisa.dma_copy(out()[1:], a[1:])

    assert codes(kernel) == []


def test_one_byte_is_enough() -> None:
    def kernel() -> None:
        a = nl.ndarray((32, 64), nl.float32, address=(0, 0))
        b = nl.ndarray((1, 1), nl.uint8, address=(31, 255))
        nisa.memset(a, 0)
        nisa.dma_copy(b, nl.zeros((1, 1), nl.uint8))
        nisa.dma_copy(out(), a)

    assert codes(kernel) == ["NKI222"]


def test_reading_what_another_tensor_wrote_is_allowed() -> None:
    def kernel() -> None:
        a = nl.ndarray((32, 64), nl.float32, address=(0, 0))
        b = nl.ndarray((32, 64), nl.int32, address=(0, 0))
        nisa.memset(b, 1)
        nisa.dma_copy(out(), a)

    assert codes(kernel) == []


@pytest.mark.parametrize(("accumulate", "found"), [(False, []), (True, ["NKI222"])])
def test_products_read_what_they_add_to(accumulate: Any, found: list[str]) -> None:
    def kernel() -> None:
        x = nl.zeros((32, 32), nl.float32)
        a = nl.ndarray((32, 32), nl.float32, nl.psum, address=(0, 0))
        b = nl.ndarray((32, 32), nl.float32, nl.psum, address=(0, 0))
        nisa.nc_matmul(a, x, x, accumulate=False)
        nisa.nc_matmul(b, x, x, accumulate=False)
        nisa.nc_matmul(a, x, x, accumulate=accumulate)
        nisa.tensor_copy(x, a)

    assert codes(kernel) == found


def test_a_loop_comes_round() -> None:
    def kernel() -> None:
        a = nl.ndarray((32, 64), nl.float32, address=(0, 0))
        b = nl.ndarray((32, 64), nl.float32, address=(0, 0))
        nisa.memset(a, 0)
        with recorder().for_loop(0, 2):
            nisa.dma_copy(out(), a)
            nisa.memset(b, 1)

    assert codes(kernel) == ["NKI222"]


def test_psum_and_sbuf_are_apart() -> None:
    def kernel() -> None:
        a = nl.ndarray((32, 64), nl.float32, address=(0, 0))
        b = nl.ndarray((32, 64), nl.float32, nl.psum, address=(0, 0))
        nisa.memset(a, 0)
        nisa.memset(b, 1)
        nisa.dma_copy(out(), a)

    assert codes(kernel) == []


class Use(NamedTuple):
    tensor: int
    rows: tuple[int, int]
    columns: tuple[int, int, int]
    writes: bool


uses = st.builds(
    Use,
    st.integers(0, 2),
    st.tuples(st.integers(0, 3), st.integers(1, 4)),
    st.tuples(st.integers(0, 5), st.integers(1, 6), st.integers(1, 3)),
    st.booleans(),
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.lists(uses, min_size=1, max_size=12))
def test_findings_are_those_of_a_map_of_all_bytes(plan: list[Use]) -> None:
    shapes = [((4, 6), nl.float32, (0, 0)), ((4, 12), nl.uint16, (0, 8)), ((4, 6), nl.int8, (2, 5))]
    made = Recorder("kernel", default_target())
    # For every byte of the core's memory: what it held last, by tensor: its own or spoilt.
    own: list[set[tuple[int, int]]] = [set(), set(), set()]
    spoilt: list[set[tuple[int, int]]] = [set(), set(), set()]
    expected = 0
    with made.active():
        hbm = nl.ndarray((4, 12), nl.uint8, nl.private_hbm)
        tensors = [nl.ndarray(s, d, address=a) for s, d, a in shapes]
        for use in plan:
            t, (_, _, (row, byte)) = tensors[use.tensor], shapes[use.tensor]
            size = t.storage.row_bytes // t.shape[1]
            view = t[slice(*_span(use.rows, 4)), slice(*_span(use.columns, t.shape[1]))]
            touched = {
                (row + r, byte + c * size + k)
                for r in range(*_span(use.rows, 4))
                for c in range(*_span(use.columns, t.shape[1]))
                for k in range(size)
            }
            if use.writes:
                nisa.dma_copy(view, hbm[: view.shape[0], : view.shape[1]])
                for other in range(3):
                    if other != use.tensor:
                        spoilt[other] |= touched & own[other]
                        own[other] -= touched
                own[use.tensor] |= touched
                spoilt[use.tensor] -= touched
            else:
                nisa.dma_copy(hbm[: view.shape[0], : view.shape[1]], view)
                expected += bool(touched & spoilt[use.tensor])
    made.recording.findings.clear()
    check_core(made)
    assert [f.code for f, _ in made.recording.findings] == ["NKI222"] * expected


def _span(asked: Any, size: int) -> tuple[int, int, int]:
    begin, count, *step = asked
    begin = min(begin, size - 1)
    by = step[0] if step else 1
    return begin, min(size, begin + (count - 1) * by + 1), by


def test_an_index_moves_nothing_that_is_known() -> None:
    def kernel() -> None:
        a = nl.ndarray((32, 64), nl.float32, address=(0, 0))
        b = nl.ndarray((32, 64), nl.float32, address=(0, 0))
        nisa.memset(a, 0)
        with recorder().for_loop(0, 2) as i:
            nisa.tensor_copy(
                b.ap([[64, 32], [1, 1]], scalar_offset=i, indirect_dim=1),
                nl.zeros((32, 1), nl.float32),
            )
        nisa.dma_copy(out(), a)

    assert codes(kernel) == []


def test_the_result_is_what_the_bytes_say() -> None:
    @nki.jit
    def kernel() -> Any:
        result = nl.ndarray((32, 64), nl.float32, nl.shared_hbm)
        a = nl.ndarray((32, 64), nl.float32, address=(0, 0))
        b = nl.ndarray((32, 32), nl.float32, address=(0, 0))
        nisa.memset(a, 2)
        nisa.memset(b, 1)
        nisa.dma_copy(result, a)
        return result

    with pytest.warns(NkiWarning, match="NKI222"):
        result = kernel()
    np.testing.assert_array_equal(result, np.repeat([[1.0] * 32 + [2.0] * 32], 32, axis=0))
