"""Collectives whose chunks have sizes that are known while the kernel runs."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nki
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl
from nki.collectives import ReplicaGroup, spmd
from nki.errors import NkiError, NkiWarning

Array = npt.NDArray[Any]
STOPPED = (NkiError, IndexError)  # what the reference and the native executor raise


pytestmark = pytest.mark.usefixtures("executor", "own_cache")


def run(kernel: Any, ranks: int, args: list[Any], **common: Any) -> list[Any]:
    """Run without the warning that hardware has more narrow limits."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*documented for", NkiWarning)
        return spmd(kernel, ranks)(args, **common)


@nki.jit
def exchanged(
    name: str, x: Any, meta: Any, out: Any, *, sbuf: bool, known: bool, displs: bool
) -> Any:
    table = meta
    if sbuf:
        table = nl.ndarray((1, *meta.shape), nl.uint32)
        nisa.dma_copy(table, meta.reshape((1, *meta.shape)))
    getattr(ncc, name)(
        [x],
        [out],
        replica_group=ReplicaGroup([list(range(meta.shape[1]))]),
        metadata_tensor=table,
        recv_counts_known=known,
        has_rdispls=displs,
    )
    if sbuf:
        nisa.dma_copy(meta, table.reshape(table.shape))
    return out, meta


def plan(ranks: int, size: int, slot: int, data: Any, *, each: bool) -> list[Array]:
    """Metadata of each rank: counts and displacements of what it sends."""
    tables = []
    for _ in range(ranks):
        table = np.full((3, ranks), 77, np.uint32)
        for column in range(ranks if each else 1):
            count = data.draw(st.integers(0, min(size, slot)))
            table[0, column] = count
            table[1, column] = data.draw(st.integers(0, size - count))
        tables.append(table)
    return tables


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(["all_gather_v", "all_to_all_v"]),
    ranks=st.integers(2, 4),
    size=st.integers(1, 9),
    slot=st.integers(1, 9),
    sbuf=st.booleans(),
    known=st.booleans(),
    data=st.data(),
)
def test_chunks_land_in_slots(
    name: str, ranks: int, size: int, slot: int, sbuf: bool, known: bool, data: st.DataObject
) -> None:
    each = name == "all_to_all_v"
    metas = plan(ranks, size, slot, data, each=each)
    xs = [np.arange(size, dtype=np.float32) + 100 * (r + 1) for r in range(ranks)]
    outs = [np.full(slot * ranks, -1, np.float32) for _ in range(ranks)]
    args = [(name, x, m.copy(), o) for x, m, o in zip(xs, metas, outs, strict=True)]
    results = run(exchanged, ranks, args, sbuf=sbuf, known=known, displs=False)
    for r, (out, meta) in enumerate(results):
        expected = np.full(slot * ranks, -1, np.float32)
        counts = metas[r].copy()
        for s in range(ranks):
            column = r if each else 0
            count, start = (int(v) for v in metas[s][:2, column])
            expected[slot * s : slot * s + count] = xs[s][start : start + count]
            if not known:
                counts[2, s] = count
        np.testing.assert_array_equal(out, expected)
        np.testing.assert_array_equal(meta, counts)


def test_eight_ranks_and_two_dimensions() -> None:
    ranks = 8
    xs = [np.arange(12, dtype=np.int32).reshape(3, 4) + 100 * r for r in range(ranks)]
    metas = []
    for r in range(ranks):
        meta = np.zeros((3, ranks), np.uint32)
        meta[0], meta[1] = r % 3, 2
        metas.append(meta)
    outs = [np.zeros((ranks, 2), np.int32) for _ in range(ranks)]
    args = [("all_to_all_v", *three) for three in zip(xs, metas, outs, strict=True)]
    results = run(exchanged, ranks, args, sbuf=False, known=False, displs=False)
    for out, meta in results:
        for s in range(ranks):
            count = s % 3
            expected = xs[s].reshape(-1)[2 : 2 + count]
            np.testing.assert_array_equal(out.reshape(-1)[2 * s : 2 * s + count], expected)
            assert meta[2, s] == count


def test_displacements_of_received_chunks() -> None:
    ranks = 2
    xs = [np.arange(4, dtype=np.float32) + 10 * r for r in range(ranks)]
    meta = np.array([[1, 3], [0, 1], [9, 9], [2, 0]], np.uint32)  # both ranks send 1 and 3
    outs = [np.zeros(5, np.float32) for _ in range(ranks)]
    args = [("all_to_all_v", x, meta.copy(), o) for x, o in zip(xs, outs, strict=True)]
    results = run(exchanged, ranks, args, sbuf=False, known=True, displs=True)
    # Rank 0 sends 1 and 3 elements, from 0 and from 1 on, and so does rank 1. What comes from
    # rank 0 lies at 2 and what comes from rank 1 at 0, later.
    np.testing.assert_array_equal(results[0][0], [10, 0, 0, 0, 0])
    np.testing.assert_array_equal(results[1][0], [11, 12, 13, 2, 3])
    for _, received in results:
        np.testing.assert_array_equal(received, meta)  # counts are left alone


def test_source_and_destination_may_overlap() -> None:
    @nki.jit
    def kernel(x: Any, meta: Any) -> Any:
        ncc.all_gather_v([x], [x], ReplicaGroup([[0, 1]]), meta)
        return x

    xs = [np.arange(4, dtype=np.float32) + 10 * r for r in range(2)]
    meta = np.array([[2, 0], [2, 0], [0, 0]], np.uint32)
    results = run(kernel, 2, [(x, meta.copy()) for x in xs])
    for result in results:
        np.testing.assert_array_equal(result, [2, 3, 12, 13])


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ([[3, 0], [0, 0], [0, 0]], r"copies 3 elements, and there are 2"),
        ([[2, 0], [3, 0], [0, 0]], r"reads its source up to 5 elements, and there are 4"),
        (
            [[1, 0], [2**32 - 1, 0], [0, 0]],
            r"reads its source up to 4294967296 elements, and there are 4",
        ),
    ],
)
def test_chunks_out_of_bounds(table: Any, text: str) -> None:
    x, meta = np.zeros(4, np.float32), np.array(table, np.uint32)
    args = [("all_gather_v", x.copy(), meta.copy(), x.copy()) for _ in range(2)]
    with pytest.raises(STOPPED, match=rf"a chunk of a collective {text}; .*:\d+; .*NKI320"):
        run(exchanged, 2, args, sbuf=False, known=True, displs=False)


def test_destination_out_of_bounds() -> None:
    x = np.zeros(4, np.float32)
    meta = np.array([[1, 1], [0, 0], [0, 0], [0, 4]], np.uint32)
    args = [("all_to_all_v", x.copy(), meta.copy(), x.copy()) for _ in range(2)]
    text = r"writes its destination up to 5 elements, and there are 4.*NKI320"
    with pytest.raises(STOPPED, match=text):
        run(exchanged, 2, args, sbuf=False, known=True, displs=True)


def test_documented_limits_are_findings() -> None:
    x, meta = np.zeros(4, np.float32), np.zeros((3, 2), np.uint32)
    args = [("all_gather_v", x.copy(), meta.copy(), x.copy()) for _ in range(2)]
    with pytest.warns(NkiWarning) as caught:
        spmd(nki.jit(exchanged.function), 2)(args, sbuf=False, known=True, displs=False)
    texts = {str(warning.message) for warning in caught}
    assert texts == {
        "all_gather_v is documented for kernel[2] only [NKI322]",
        "all_gather_v is documented for lists of 4 ranks, not of 2 [NKI322]",
    }
