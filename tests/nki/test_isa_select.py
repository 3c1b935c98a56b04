"""iota, affine_select, range_select, select_reduce, bn_stats, bn_aggr."""

from __future__ import annotations

import math
import statistics
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki.errors import NkiValidationError
from nki.isa import enums
from nki.isa.rows.select import FP32_MIN
from nki.isa.spec import Tile
from nki.isa.state import CoreState
from tests.nki.isa_tools import T, call, out, run, values

CMD = enums.reduce_cmd
PATTERNS = st.lists(st.tuples(st.integers(-9, 9), st.integers(1, 3)), min_size=1, max_size=4)


def pseudocode(
    pattern: list[tuple[int, int]], offset: int, multiplier: int, partitions: int
) -> list[list[int]]:
    padded = [(0, 1)] * (4 - len(pattern)) + pattern
    (sw, nw), (sz, nz), (sy, ny), (sx, nx) = padded
    return [
        [
            offset + channel * multiplier + w * sw + z * sz + y * sy + x * sx
            for w in range(nw)
            for z in range(nz)
            for y in range(ny)
            for x in range(nx)
        ]
        for channel in range(partitions)
    ]


@settings(max_examples=40)
@given(pattern=PATTERNS, offset=st.integers(-99, 99), multiplier=st.integers(-9, 9))
def test_iota_and_affine_select_follow_the_pseudocode(
    pattern: list[tuple[int, int]], offset: int, multiplier: int
) -> None:
    want = pseudocode(pattern, offset, multiplier, 3)
    shape = (3, len(want[0]))
    result, _ = run("iota", out(*shape, dtype="int32"), pattern, offset, multiplier)
    assert values(result) == want
    data = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    for op, function in (("greater_equal", int.__ge__), ("equal", int.__eq__)):
        result, _ = run(
            "affine_select", out(*shape), [list(p) for p in pattern], multiplier, T(data), -1.5, op,
            offset,
        )  # fmt: skip
        chosen = [
            [d if function(v, 0) else -1.5 for d, v in zip(row, line, strict=True)]
            for row, line in zip(data.tolist(), want, strict=True)
        ]
        assert values(result) == chosen


def test_iota_wraps_and_casts() -> None:
    result, _ = run("iota", out(1, 2, dtype="int32"), [[1, 2]], 2**31 - 1)
    assert values(result) == [[2**31 - 1, -(2**31)]]
    assert values(run("iota", out(2, 2), [[2, 2]], 1, 10)[0]) == [[1, 3], [11, 13]]
    assert values(run("iota", out(1, 3, dtype="uint8"), [[-300, 3]], 300)[0]) == [[255, 0, 0]]
    shaped, _ = run("iota", out(1, 2, 3, dtype="int32"), [[1, 6]])
    assert values(shaped) == [[[0, 1, 2], [3, 4, 5]]]


def test_causal_mask() -> None:
    # row - column >= 0 keeps the lower triangle
    result, _ = run(
        "affine_select", out(3, 3), [[-1, 3]], 1, T(np.ones((3, 3))), 0.0, "greater_equal"
    )
    assert values(result) == np.tri(3).tolist()


def test_affine_select_keeps_bits_of_equal_types() -> None:
    x = T([[2**24 + 1, 7]], "int32")
    result, _ = run("affine_select", out(1, 2, dtype="int32"), [[1, 2]], 0, x, -2.5, "equal")
    assert values(result) == [[2**24 + 1, -2]]


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ([[1, 5]], "iota pattern makes 5 values per partition, dst has 4"),
        ([[1, 1]] * 5, "iota pattern must have 1 to 4 dimensions"),
        ([1, 4], "iota pattern must be a list of"),
    ],
)
def test_patterns_are_checked(pattern: object, text: str) -> None:
    with pytest.raises(NkiValidationError, match=text):
        call("iota", Tile((2, 4), "int32"), pattern)


def test_iota_is_sbuf_only() -> None:
    with pytest.raises(NkiValidationError, match="iota dst is in psum, allowed: sbuf"):
        call("iota", Tile((2, 4), "int32", "psum"), [[1, 4]])


# range_select


def test_range_select() -> None:
    x = T([[1.0, 2.0, 3.0, 4.0]] * 2)
    bounds = T([[1.0], [0.0]]), T([[3.0], [1.0]])
    result, _ = run(
        "range_select", out(2, 4), x, "greater_equal", "less", *bounds, reduce_res=out(2, 1)
    )
    low = FP32_MIN
    assert values(result) == [[low, 2, 3, low], [1, low, low, low]]
    assert values(result, "reduce_res") == [[3], [1]]
    result, _ = run(
        "range_select", out(2, 4, dtype="bfloat16"), x, np.greater_equal, np.less, *bounds,
        range_start=3,
    )  # fmt: skip
    assert values(result) == [[-math.inf] * 4] * 2  # documented for the smaller types


def test_range_select_keeps_the_maximum_between_tiles() -> None:
    core, bounds = CoreState(), (T([[0.0]]), T([[9.0]]))
    for start, tile, command in ((0, [5.0, 1.0], CMD.reset_reduce), (2, [4.0, 2.0], CMD.reduce)):
        result, _ = run(
            "range_select", out(1, 2), T([tile]), "greater_equal", "less", *bounds, command,
            out(1, 1), range_start=start, core=core,
        )  # fmt: skip
    assert values(result, "reduce_res") == [[5.0]]


@pytest.mark.parametrize(
    ("kwargs", "generation", "text"),
    [
        ({"on_false_value": 0.0}, 3, "on_false_value must be FP32_MIN"),
        ({"comp_op0": "not_equal"}, 3, "comp_op0 cannot be not_equal"),
        ({"range_start": 2**24}, 3, "compares indices from 16777216 to 16777217, beyond"),
        ({"reduce_op": "add"}, 3, "reduce_op cannot be add"),
        ({"bound0": Tile((2, 1), "int32")}, 3, "bound0 has data type int32"),
        ({"on_true_tile": Tile((2, 2), "int32")}, 3, "on_true_tile has data type int32"),
        ({}, 2, "range_select does not exist on NeuronCore-v2"),
    ],
)
def test_range_select_refuses(kwargs: dict[str, Any], generation: int, text: str) -> None:
    x, bound = Tile((2, 2), "float32"), Tile((2, 1), "float32")
    arguments: dict[str, Any] = {
        "dst": x, "on_true_tile": x, "comp_op0": "less", "comp_op1": "less", "bound0": bound,
        "bound1": bound, **kwargs,
    }  # fmt: skip
    with pytest.raises(NkiValidationError, match=text):
        call("range_select", generation=generation, **arguments)


def test_fp32_min_is_accepted_as_a_float() -> None:
    x, bound = Tile((2, 2), "float32"), Tile((2, 1), "float32")
    for value in (float(np.finfo(np.float32).min), np.finfo(np.float32).min, -3.4028235e38):
        call("range_select", x, x, "less", "less", bound, bound, on_false_value=value)


# select_reduce


def test_select_reduce() -> None:
    predicate, x = T([[1, 0, 2]], "uint8"), T([[1.0, 2.0, 3.0]], "bfloat16")
    assert values(run("select_reduce", out(1, 3), predicate, x, -1.0)[0]) == [[1, -1, 3]]
    core = CoreState()
    result, _ = run(
        "select_reduce", out(1, 3), predicate, x, T([[9.0]]), out(1, 1), CMD.reset_reduce,
        reverse_pred=True, core=core,
    )  # fmt: skip
    assert values(result) == [[9, 2, 9]]
    assert values(result, "reduce_res") == [[9]]
    result, _ = run("select_reduce", out(1, 3), predicate, x, 0.0, out(1, 1), CMD.reduce, core=core)
    assert values(result, "reduce_res") == [[9]]
    four = T(np.arange(4.0).reshape(1, 4)), T([[[1, 0], [0, 1]]], "int8")
    assert values(run("select_reduce", out(1, 4), four[1], four[0], -1.0)[0]) == [[0, -1, -1, 3]]


def test_select_reduce_refuses() -> None:
    x, predicate = Tile((2, 2), "float32", "psum"), Tile((2, 2), "uint8", "psum")
    with pytest.raises(NkiValidationError, match="on_true and predicate are both in psum"):
        call("select_reduce", x, predicate, x, 0.0)
    with pytest.raises(NkiValidationError, match="on_true has data type int32"):
        call("select_reduce", x, predicate, Tile((2, 2), "int32"), 0.0)


# bn_stats, bn_aggr


def test_bn_stats_layout() -> None:
    result, _ = run("bn_stats", out(1, 6), T([[1.0, 10.0, 3.0, 20.0, 8.0]]))
    # even elements 1, 3, 8: mean 4, deviations 9 + 1 + 16; odd ones 10, 20: mean 15, 25 + 25
    assert values(result) == [[3, 4, 26, 2, 15, 50]]
    single, _ = run("bn_stats", out(1, 6), T([[7.0]]))
    assert values(single) == [[1, 7, 0, 0, 0, 0]]


@settings(max_examples=30)
@given(
    chunks=st.lists(
        st.lists(st.integers(-50, 50).map(float), min_size=2, max_size=9), min_size=1, max_size=3
    )
)
def test_bn_aggr_joins_tiles(chunks: list[list[float]]) -> None:
    parts = []
    for chunk in chunks:
        result, _ = run("bn_stats", out(1, 6), T([chunk]))
        parts.append(result["dst"])
    joined = T(np.concatenate(parts, axis=1))
    result, _ = run("bn_aggr", out(1, 2), joined)
    everything = [value for chunk in chunks for value in chunk]
    mean, variance = values(result)[0]
    # Each statistic is rounded to float32 once: 2**-23 relative to the magnitudes that enter.
    scale = max(abs(value) for value in everything) ** 2 + 1
    assert mean == pytest.approx(statistics.fmean(everything), abs=4 * 2**-23 * scale)
    assert variance == pytest.approx(statistics.pvariance(everything), abs=8 * 2**-23 * scale)


def test_bn_refuses() -> None:
    with pytest.raises(NkiValidationError, match="513 elements per partition, at most 512"):
        call("bn_stats", Tile((2, 6), "float32"), Tile((2, 513), "float32"))
    with pytest.raises(NkiValidationError, match="dst must have 6 elements per partition, got 5"):
        call("bn_stats", Tile((2, 5), "float32"), Tile((2, 8), "float32"))
    with pytest.raises(
        NkiValidationError, match="data has 7 elements per partition, it needs a mul"
    ):
        call("bn_aggr", Tile((2, 2), "float32"), Tile((2, 7), "float32"))


def test_the_offset_of_a_pattern_can_be_a_register() -> None:
    register = T([[5]], "int32")
    register.tile = Tile((1, 1), "int32", "register")
    result, _ = run("iota", out(1, 3, dtype="int32"), [[1, 3]], register)
    assert values(result) == [[5, 6, 7]]
    with pytest.raises(NkiValidationError, match="iota offset is in sbuf, allowed: register"):
        call("iota", Tile((1, 3), "int32"), [[1, 3]], Tile((1, 1), "int32"))
