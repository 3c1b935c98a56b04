"""Searches and gathers."""

# ruff: noqa: E501 (tables of cases)
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki.errors import NkiError, NkiValidationError
from nki.isa.spec import Tile
from tests.nki.isa_tools import T, call, out, run, values

ROW = st.lists(st.integers(-4, 4).map(float), min_size=8, max_size=20)


def test_max8() -> None:
    x = T([[3.0, 9.0, 1.0, 7.0, 5.0, 8.0, 2.0, 6.0, 4.0]], "bfloat16")
    assert values(run("max8", out(1, 8), x)[0]) == [[9, 8, 7, 6, 5, 4, 3, 2]]
    cube = T(np.arange(8.0).reshape(1, 2, 4))
    assert values(run("max8", out(1, 8, dtype="int32"), cube)[0]) == [[7, 6, 5, 4, 3, 2, 1, 0]]


@pytest.mark.parametrize(
    ("dst", "src", "text"),
    [
        ((2, 8), (2, 7), "src has 7 elements per partition, allowed: 8 to 16384"),
        ((2, 8), (2, 16385), "src has 16385 elements per partition"),
        ((2, 7), (2, 9), "dst must have 8 elements per partition, got 7"),
        ((2, 8), (2, 1, 4, 4), "src has shape .* at most 3 dimensions"),
    ],
)
def test_max8_refuses(dst: tuple[int, ...], src: tuple[int, ...], text: str) -> None:
    with pytest.raises(NkiValidationError, match=text):
        call("max8", Tile(dst, "float32"), Tile(src, "float32"))


def test_find_index8() -> None:
    data = T([[5.0, 7.0, 5.0, 1.0, 2.0, 3.0, 4.0, 7.0, 5.0]])
    vals = T([[7.0, 5.0, 5.0, 5.0, 5.0, 9.0, 1.0, 7.0]])
    result, _ = run("nc_find_index8", out(1, 8, dtype="uint32"), data, vals)
    none = 0xFFFFFFFF  # duplicates go on to later occurrences; what is not there is all ones
    assert values(result) == [[1, 0, 2, 8, none, none, 3, 7]]
    result, _ = run("nc_find_index8", out(1, 8, dtype="uint16"), data, vals)
    assert values(result)[0][4] == 0xFFFF
    with pytest.raises(
        NkiValidationError, match="dst has data type int32, allowed: uint16, uint32"
    ):
        call("nc_find_index8", Tile((1, 8), "int32"), data.tile, vals.tile)


def test_match_replace8_is_the_documented_example() -> None:
    data = T([[1.0, 2, 3, 4, 8, 8, 8, 8, 8, 8, 8]])
    vals = T([[3.0, 8, 8, 8, 8, 8, 8, 8]])
    result, _ = run("nc_match_replace8", out(1, 11), data, vals, 0.0, out(1, 8, dtype="uint32"))
    assert values(result, "dst_idx") == [[2, 10, 9, 8, 7, 6, 5, 4]]
    assert values(result) == [[1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0]]


@settings(max_examples=40)
@given(row=ROW, vals=st.lists(st.integers(-5, 5).map(float), min_size=8, max_size=8))
def test_searches_agree_with_lists(row: list[float], vals: list[float]) -> None:
    data, wanted = T([row]), T([vals])
    found = values(run("nc_find_index8", out(1, 8, dtype="uint32"), data, wanted)[0])[0]
    left = list(row)
    for value, index in zip(vals, found, strict=True):
        if value in left:
            assert index == left.index(value)
            left[index] = object()  # type: ignore[call-overload]
        else:
            assert index == 0xFFFFFFFF
    result, _ = run("nc_match_replace8", out(1, len(row)), data, wanted, 99.0)
    left = list(row)
    for value in vals:
        if value in left:
            left[left.index(value)] = 99.0
    assert values(result) == [left]
    assert "dst_idx" not in result


def test_nonzero_is_the_documented_example() -> None:
    x = np.full((32, 8), 5, np.int32)
    x[0] = x[16] = [0, 1, 1, 0, 0, 1, 0, 0]
    x[16, 0] = 1
    dst = out(32, 9, dtype="int32")
    result, _ = run("nonzero_with_count", dst, T(x, "int32"), 16, -1)
    assert values(result)[0] == [17, 18, 21, -1, -1, -1, -1, -1, 3]
    assert values(result)[16] == [16, 17, 18, 21, -1, -1, -1, -1, 4]
    others = [lane for lane in range(32) if lane % 16]
    assert (result["dst"][others] == 4).all()  # not written: what uninitialised memory holds


def test_nonzero_refuses() -> None:
    x = Tile((16, 8), "float32")
    with pytest.raises(
        NkiValidationError, match="dst has 8 elements per partition, it must have 9"
    ):
        call("nonzero_with_count", Tile((16, 8), "int32"), x)
    with pytest.raises(NkiValidationError, match="padding_val must be between"):
        call("nonzero_with_count", Tile((16, 9), "int32"), x, padding_val=2**31)
    with pytest.raises(NkiValidationError, match="does not exist on NeuronCore-v2"):
        call("nonzero_with_count", Tile((16, 9), "int32"), x, generation=2)


def snake(elements: list[float], columns: int) -> np.ndarray:
    """Lay a list out in 16 partitions; what is beyond its end is larger than all."""
    grid = np.full((16, columns), 1e4)
    for e, value in enumerate(elements):
        grid[e % 16, e // 16] = value
    return grid


@settings(max_examples=30)
@given(
    elements=st.lists(st.integers(-100, 100).map(float), min_size=8, max_size=40), data=st.data()
)
def test_topk(elements: list[float], data: st.DataObject) -> None:
    n = len(elements)
    k = data.draw(st.integers(1, n))
    src = T(np.concatenate([snake(elements, 3), snake(elements[::-1], 3)]), "bfloat16")
    result, _ = run("topk", out(32, k, dtype="bfloat16"), out(32, k, dtype="uint32"), src, n)
    for lane, snaked in ((0, elements), (15, elements), (16, elements[::-1])):
        got = values(result, "val_dst")[lane]
        indices = values(result, "idx_dst")[lane]
        assert got == sorted(elements)[n - k :]  # ascending
        assert [snaked[i] for i in indices] == got
        assert len(set(indices)) == k
        left_out = [i for i in range(n) if i not in indices and snaked[i] == got[0]]
        assert all(i > max(j for j in indices if snaked[j] == got[0]) for i in left_out)


@pytest.mark.parametrize(
    ("partitions", "columns", "k", "n", "text"),
    [
        (16, 3, 4, 49, "src has 3 elements per partition, n = 49 needs 4"),
        (16, 3, 40, 32, "topk of 40 elements out of n = 32"),
        (24, 3, 4, 40, "topk has 24 partitions, it needs a multiple of 16"),
        (16, 3, 4, 7, "n must be between 8 and 65535, got 7"),
    ],
)
def test_topk_refuses(partitions: int, columns: int, k: int, n: int, text: str) -> None:
    shape = (partitions, k)
    with pytest.raises(NkiValidationError, match=text):
        call(
            "topk", Tile(shape, "bfloat16"), Tile(shape, "uint32"),
            Tile((partitions, columns), "bfloat16"), n,
        )  # fmt: skip


# Gathers


def test_local_gather_flattens_along_partitions_first() -> None:
    src = T(np.arange(16 * 8).reshape(16, 8) + 0.0, "float32")
    index = np.zeros((16, 2), np.uint16)
    index[0, 0], index[1, 0], index[0, 1] = 3, 5, 7
    result, _ = run("local_gather", out(16, 32), src, T(index, "uint16"))
    first = values(result)[0]
    assert (first[0], first[1], first[16]) == (3, 5, 7)
    assert values(result)[2][:2] == [16 + 3, 16 + 5]
    wide, _ = run("local_gather", out(16, 1, 4), src, T(index // 2, "uint16"), 4, 1)
    assert values(wide)[1] == [[9, 10, 11, 12]]


@settings(max_examples=20, deadline=None)
@given(data=st.data(), groups=st.integers(1, 2), columns=st.integers(1, 2))
def test_local_gather_agrees_with_loops(data: st.DataObject, groups: int, columns: int) -> None:
    partitions, width = 16 * groups, data.draw(st.sampled_from([1, 2, 4]))
    valid = data.draw(st.integers(1, 16 * columns))
    seed = data.draw(st.integers(0, 2**16))
    random = np.random.default_rng(seed)
    src = random.integers(0, 99, (partitions, 9)).astype(np.float32)
    index = random.integers(0, 9 - width + 1, (partitions, columns)).astype(np.uint16)
    result, _ = run(
        "local_gather", out(partitions, valid * width), T(src), T(index, "uint16"), width, valid
    )
    for lane in range(partitions):
        core = lane // 16
        want = []
        for i in range(valid):
            start = int(index[16 * core + i % 16, i // 16])
            want += [float(src[lane, start + e]) for e in range(width)]
        assert values(result)[lane] == want


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"num_elem_per_idx": 3}, "num_elem_per_idx must be 1, 2, 4, 8, 16 or 32, got 3"),
        ({"num_valid_indices": 33}, "33 indices per core, allowed: 32"),
        ({"num_valid_indices": 16}, "dst has 32 elements per partition, the indices give 16"),
        ({"index": Tile((16, 2), "uint32")}, "index has data type uint32, allowed: uint16"),
        ({"index": Tile((32, 2), "uint16")}, "src_buffer has 16 partitions and index has 32"),
    ],
)
def test_local_gather_refuses(kwargs: dict[str, Any], text: str) -> None:
    arguments: dict[str, Any] = {
        "dst": Tile((16, 32), "float32"), "src_buffer": Tile((16, 8), "float32"),
        "index": Tile((16, 2), "uint16"), **kwargs,
    }  # fmt: skip
    with pytest.raises(NkiValidationError, match=text):
        call("local_gather", **arguments)


def test_n_gather() -> None:
    data = T(np.arange(12).reshape(2, 2, 3), "int32")
    indices = T([[0, 5], [3, 3]], "uint32")
    assert values(run("nc_n_gather", out(2, 2, dtype="int32"), data, indices)[0]) == [
        [0, 5],
        [9, 9],
    ]
    with pytest.raises(
        NkiError, match="nc_n_gather indices holds 6, but there are 6 elements"
    ) as e:
        run("nc_n_gather", out(2, 2, dtype="int32"), data, T([[0, 6], [0, 0]], "uint32"))
    assert e.value.code == "NKI132"


def test_stream_shuffle() -> None:
    src = T(np.arange(64).reshape(64, 1) + 0.0)
    mask = [31 - i for i in range(32)]
    mask[0] = 255
    result, _ = run("nc_stream_shuffle", T(np.full((64, 1), -1.0)), src, mask)
    rows = [value for (value,) in values(result)]
    assert rows == [-1, *range(30, -1, -1), -1, *range(62, 31, -1)]
    run("nc_stream_shuffle", src, src, [0] * 32)  # in place: partition 0 to all of its quadrant
    assert src.data[:, 0].tolist() == [0.0] * 32 + [32.0] * 32


@pytest.mark.parametrize(
    ("src", "dst", "mask", "text"),
    [
        (Tile((32, 1), "float32"), Tile((32, 1), "float32"), [32] * 32, "shuffle_mask holds 32"),
        (Tile((32, 1), "float32"), Tile((32, 1), "float32"), [0] * 31, "must have 32 elements"),
        (Tile((8, 1), "float32"), Tile((32, 1), "float32"), [8] * 32, "asks for partition 8 of src"),
        (
            Tile((64, 1), "float32", partition=32), Tile((64, 1), "float32", partition=0),
            [0] * 32, "64 active partitions starts at 0 and 32",
        ),
    ],
)  # fmt: skip
def test_stream_shuffle_refuses(src: Tile, dst: Tile, mask: list[int], text: str) -> None:
    with pytest.raises(NkiValidationError, match=text):
        call("nc_stream_shuffle", dst, src, mask)


def test_sequence_bounds_is_the_documented_example() -> None:
    ids = T([[0, 1, 1, 2, 2, 2, 0, 3, 3]], "int32")
    result, _ = run("sequence_bounds", out(1, 2, 9, dtype="int32"), ids)
    assert values(result) == [[[9, 1, 1, 3, 3, 3, 9, 7, 7], [-1, 3, 3, 6, 6, 6, -1, 9, 9]]]


@settings(max_examples=40)
@given(ids=st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_sequence_bounds_agrees_with_two_walks(ids: list[int]) -> None:
    n = len(ids)
    result, _ = run("sequence_bounds", out(1, 2, n), T([ids]))
    start, end = values(result)[0]
    for i, segment in enumerate(ids):
        low, high = i, i
        while low > 0 and ids[low - 1] == segment:
            low -= 1
        while high < n and ids[high] == segment:
            high += 1
        assert (start[i], end[i]) == ((n, -1) if segment == 0 else (low, high))


def test_sequence_bounds_refuses() -> None:
    with pytest.raises(NkiValidationError, match="segment_ids has 2 partitions, it must have 1"):
        call("sequence_bounds", Tile((2, 2, 4), "int32"), Tile((2, 4), "int32"))
    with pytest.raises(NkiValidationError, match=r"dst has shape \(1, 8\), it must be \(1, 2, 4\)"):
        call("sequence_bounds", Tile((1, 8), "int32"), Tile((1, 4), "int32"))
