"""nc_matmul, nc_transpose, quantize_mx, nc_matmul_mx."""

# ruff: noqa: E501 (tables of cases)
from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nki.dtypes import info
from nki.errors import NkiError, NkiValidationError
from nki.isa import enums, mx
from nki.isa.spec import Tile
from nki.isa.state import MATMUL, OTHER, UNWRITTEN, CoreState
from tests.nki.isa_tools import T, call, out, run, values

DOUBLE = enums.matmul_perf_mode.double_row


def psum(*shape: int, dtype: str = "float32") -> T:
    return out(*shape, dtype=dtype, region="psum")


def test_matmul_is_stationary_transposed_times_moving() -> None:
    a, b = T([[1.0, 2.0], [3.0, 4.0], [0.0, 1.0]]), T([[5.0], [6.0], [7.0]])
    assert values(run("nc_matmul", psum(2, 1), a, b)[0]) == [[23], [41]]
    a, b = T(a.data, "bfloat16"), T(b.data, "float8_e4m3")
    assert values(run("nc_matmul", psum(2, 1), a, b)[0]) == [[23], [41]]


def test_tfloat32_is_multiplied_with_ten_bits() -> None:
    a, b = T([[1 + 2**-20]], "tfloat32"), T([[1.0]])
    assert values(run("nc_matmul", psum(1, 1), a, b)[0]) == [[1.0]]
    assert values(run("nc_matmul", psum(1, 1), T(a.data), b)[0]) == [
        [float(np.float32(1 + 2**-20))]
    ]


@settings(max_examples=30, deadline=None)
@given(data=st.data(), k=st.integers(1, 6), m=st.integers(1, 4), n=st.integers(1, 5))
def test_matmul_agrees_with_three_loops(data: st.DataObject, k: int, m: int, n: int) -> None:
    numbers = st.integers(-8, 8).map(float)  # exact in every type and order
    a = [[data.draw(numbers) for _ in range(m)] for _ in range(k)]
    b = [[data.draw(numbers) for _ in range(n)] for _ in range(k)]
    want = [[sum(a[i][r] * b[i][c] for i in range(k)) for c in range(n)] for r in range(m)]
    for dtype in ("float32", "bfloat16", "float8_e5m2" if k == 1 else "float16"):
        result, _ = run("nc_matmul", psum(m, n), T(a, dtype), T(b, dtype))
        exact = dtype != "float8_e5m2"
        assert values(result) == want if exact else True
    shaped, _ = run("nc_matmul", psum(m, n, 1), T(a), T(np.reshape(b, (k, 1, n))))
    assert np.array_equal(shaped["dst"].reshape(m, n), want)


def test_double_row_contracts_the_first_free_dimension() -> None:
    a, b = np.arange(8.0).reshape(2, 2, 2), np.arange(12.0).reshape(2, 2, 3)
    result, _ = run(
        "nc_matmul", psum(2, 3), T(a, "float8_e4m3"), T(b, "float8_e5m2"), perf_mode=DOUBLE
    )
    wide = b.astype(ml_dtypes.float8_e5m2).astype(float)
    assert np.array_equal(result["dst"], np.einsum("kpm,kpn->mn", a, wide))


# PSUM


def test_accumulation_flags() -> None:
    a, b, one = T([[1.0]]), T([[1.0, 1.0]]), T([[10.0, 20.0]], region="psum")
    state = np.array([[UNWRITTEN, MATMUL]], np.uint8)
    for accumulate, want in ((False, [1, 1]), (True, [11, 21]), (None, [1, 21])):
        one.data = np.array([[10.0, 20.0]], np.float32)
        result, step = run("nc_matmul", one, a, b, accumulate=accumulate, written=state)
        assert values(result) == [want]
        assert [f.code for f in step.findings] == (["NKI126"] if accumulate else [])


def test_accumulating_to_what_memset_wrote_is_found_before_v4() -> None:
    a, state = T([[1.0]]), np.array([[OTHER]], np.uint8)
    for generation, count in ((2, 1), (3, 1), (4, 0)):
        dst = T([[5.0]], region="psum")
        result, step = run("nc_matmul", dst, a, a, written=state, generation=generation)
        assert values(result) == [[6.0]]
        assert len(step.findings) == count
    assert (
        "undefined on NeuronCore-v3"
        in run("nc_matmul", T([[5.0]], region="psum"), a, a, written=state, generation=3)[1]
        .findings[0]
        .text
    )


def test_bfloat16_psum_adds_in_float32_and_rounds() -> None:
    dst = T([[256.0]], "bfloat16", "psum")
    state = np.array([[MATMUL]], np.uint8)
    result, _ = run("nc_matmul", dst, T([[1.0]]), T([[3.0]]), written=state)
    assert values(result) == [[260.0]]  # 259 is half way between 258 and 260; 260 is even
    with pytest.raises(NkiValidationError, match="dst has data type bfloat16 on NeuronCore-v3"):
        call("nc_matmul", dst.tile, T([[1.0]]), T([[3.0]]), generation=3)


# Transposes


def test_transpose_mode_keeps_every_bit_from_v3_on() -> None:
    nan = np.array([0x7FC1, 0xFF80, 0x0001, 0x3F80, 0x8000, 0x4000], np.uint16)
    data = out(3, 2, dtype="bfloat16")
    data.data = nan.reshape(3, 2).view(ml_dtypes.bfloat16)
    eye = T(np.eye(3), "bfloat16")
    result, _ = run("nc_matmul", psum(2, 3, dtype="bfloat16"), data, eye, is_transpose=True)
    assert np.array_equal(result["dst"].view(np.uint16), nan.reshape(3, 2).T)
    direct, _ = run("nc_transpose", psum(2, 3, dtype="bfloat16"), data)
    assert np.array_equal(direct["dst"].view(np.uint16), nan.reshape(3, 2).T)
    wide, _ = run("nc_matmul", psum(2, 3), data, eye, is_transpose=True)
    assert np.array_equal(wide["dst"].view(np.uint32) >> 16, nan.reshape(3, 2).T)


def test_transpose_mode_needs_an_identity() -> None:
    with pytest.raises(NkiError, match="has a moving tensor that is no identity") as caught:
        run("nc_matmul", psum(2, 2), T(np.ones((2, 2))), T(np.ones((2, 2))), is_transpose=True)
    assert caught.value.code == "NKI141"


def test_transposes_on_v2_spread_nan() -> None:
    data = T([[1.0, 2.0], [math.nan, 3.0]])
    result, _ = run("nc_transpose", psum(2, 2), data, generation=2)
    assert np.isnan(result["dst"][0]).all()
    assert values(result)[1] == [2.0, 3.0]
    exact, _ = run("nc_transpose", out(2, 2), data, generation=2)  # the vector engine moves bits
    assert exact["dst"][0, 0] == 1.0


def test_transpose_flattens_free_dimensions() -> None:
    data = T(np.arange(12).reshape(2, 2, 3), "int32")
    result, step = run("nc_transpose", out(6, 2, dtype="int32"), data)
    assert step.engine == "vector"
    assert np.array_equal(result["dst"], data.data.reshape(2, 6).T)


@pytest.mark.parametrize(
    ("dst", "data", "kwargs", "text"),
    [
        (Tile((33, 4), "float32"), Tile((4, 33), "float32"), {}, "exceeds 32 by 32 of the vector"),
        (
            Tile((4, 4), "float32"), Tile((4, 4), "float32"),
            {"engine": enums.engine.tensor}, "reads sbuf and writes psum, got data in sbuf and dst",
        ),
        (
            Tile((4, 5), "float32", "psum"), Tile((4, 4), "float32"), {},
            r"dst has shape \(4, 5\), the transpose of \(4, 4\) has \(4, 4\)",
        ),
        (Tile((4, 4), "bfloat16", "psum"), Tile((4, 4), "float32"), {}, "dst is bfloat16 and data is"),
    ],
)  # fmt: skip
def test_transpose_refuses(dst: Tile, data: Tile, kwargs: dict[str, Any], text: str) -> None:
    with pytest.raises(NkiValidationError, match=text):
        call("nc_transpose", dst, data, **kwargs)


# Rules of nc_matmul


def sb(*shape: int, dtype: str = "bfloat16", **more: object) -> Tile:
    return Tile(shape, dtype, "sbuf", **more)  # type: ignore[arg-type]


def ps(*shape: int, dtype: str = "float32") -> Tile:
    return Tile(shape, dtype, "psum")


MATMUL_REFUSALS = [
    (3, (ps(4, 8), sb(64, 4), sb(32, 8)), {}, "NKI120", "stationary has 64 partitions and moving has 32"),
    (3, (ps(129, 8), sb(64, 129), sb(64, 8)), {}, "NKI103", "dst partition dimension 129"),
    (3, (ps(4, 513), sb(64, 4), sb(64, 513)), {}, "NKI122", "513 exceeds maximum 512 of NeuronCore-v3"),
    (4, (ps(4, 4097), sb(64, 4), sb(64, 4097)), {}, "NKI122", "4097 exceeds maximum 4096 of NeuronCore-v4"),
    (3, (ps(4, 9), sb(64, 4), sb(64, 8)), {}, "NKI125", r"dst has shape \(4, 9\), the product has \(4, 8\)"),
    (3, (ps(4, 8), sb(64, 4), sb(64, 8, dtype="float32")), {}, "NKI108", "stationary is bfloat16 and moving"),
    (3, (sb(4, 8), sb(64, 4), sb(64, 8)), {}, "NKI109", "dst is in sbuf, allowed: psum"),
    (3, (ps(4, 8), sb(64, 4, dtype="int8"), sb(64, 8)), {}, "NKI107", "stationary has data type int8"),
    (3, (ps(4, 8), sb(64, 4, dtype="float8_e4m3fn"), sb(64, 8)), {}, "NKI107", "float8_e4m3fn does not exist"),
    (
        4, (ps(4, 8), sb(64, 4, dtype="float8_e4m3fn"), sb(64, 8, dtype="float8_e4m3")), {},
        "NKI108", "mixes float8_e4m3 and float8_e4m3fn",
    ),
    (2, (ps(4, 8), sb(64, 2, 4), sb(64, 2, 8)), {"perf_mode": DOUBLE}, "NKI124", "does not exist on NeuronCore-v2"),
    (3, (ps(4, 8), sb(64, 2, 4), sb(64, 2, 8)), {"perf_mode": DOUBLE}, "NKI124", "needs float8 operands"),
    (
        3, (ps(4, 8), sb(64, 8, dtype="float8_e4m3"), sb(64, 2, 8, dtype="float8_e4m3")),
        {"perf_mode": "double_row"}, "NKI124", r"operands of shape \(K, 2, N\), got \(64, 8\)",
    ),
    (3, (ps(4, 8), sb(64, 4), sb(64, 8)), {"tile_size": (64, 128)}, "NKI123", "must be given together"),
    (
        2, (ps(4, 8), sb(32, 4), sb(32, 8)), {"tile_size": (32, 128), "tile_position": (0, 0)},
        "NKI123", r"cannot use tile_size \(32, 128\) at tile_position \(0, 0\) on NeuronCore-v2",
    ),
    (
        3, (ps(4, 8), sb(32, 4), sb(32, 8)), {"tile_size": (32, 64), "tile_position": (16, 0)},
        "NKI123", r"at tile_position \(16, 0\)",
    ),
    (
        3, (ps(4, 8), sb(64, 4), sb(64, 8)), {"tile_size": (32, 64), "tile_position": (32, 64)},
        "NKI123", "does not fit tile_size",
    ),
    (
        4, (ps(4, 8), sb(32, 4), sb(32, 8, indirect=True)), {"is_transpose": True},
        "NKI119", "moving uses tensor indirection with is_transpose=True",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("generation", "tiles", "kwargs", "code", "text"), MATMUL_REFUSALS)
def test_matmul_refuses(
    generation: int, tiles: tuple[Tile, ...], kwargs: dict[str, Any], code: str, text: str
) -> None:
    with pytest.raises(NkiValidationError, match=text) as caught:
        call("nc_matmul", *tiles, generation=generation, **kwargs)
    assert caught.value.code == code


def test_matmul_cost() -> None:
    for dtype, kwargs, want in (
        ("bfloat16", {}, 512),
        ("float32", {}, 2048),
        ("float32", {"is_moving_onezero": True}, 1024),
    ):
        made = call(
            "nc_matmul", ps(128, 512), sb(128, 128, dtype=dtype), sb(128, 512, dtype=dtype),
            generation=3, **kwargs,
        )  # fmt: skip
        assert made.instruction.cost is not None
        assert made.instruction.cost.cycles(made) == want


# Microscaling

PACKED = ("float8_e5m2_x4", "float8_e4m3fn_x4", "float4_e2m1fn_x4")


@pytest.mark.parametrize("dtype", PACKED)
def test_packing_puts_the_first_element_lowest(dtype: str) -> None:
    lane = info(dtype).lane
    elements = np.array([[1.0, 0.0, 0.0, 2.0]], lane)
    item = int(mx.pack(elements, dtype)[0, 0])
    width = 8 * info(dtype).itemsize // 4
    code = [int(v) for v in elements.view(np.uint8)[0]]
    assert item == code[0] | code[3] << (3 * width)
    assert mx.unpack(mx.pack(elements, dtype), dtype).tolist() == [[1, 0, 0, 2]]


def group(value: float, position: int = 0) -> np.ndarray:
    x = np.zeros((32, 4), np.float32)
    x.reshape(-1)[position] = value
    return x


@pytest.mark.parametrize(
    ("value", "dtype", "rule", "exponent"),
    [
        (1.0, "float8_e4m3fn_x4", mx.ScaleRule.DOUBLED, -7),
        (1.0, "float8_e4m3fn_x4", mx.ScaleRule.OCP, -8),
        (-448.0, "float8_e4m3fn_x4", mx.ScaleRule.DOUBLED, 1),
        (1.99, "float8_e5m2_x4", mx.ScaleRule.DOUBLED, -14),
        (2.0, "float8_e5m2_x4", mx.ScaleRule.OCP, -14),
    ],
)
def test_block_scales(value: float, dtype: str, rule: mx.ScaleRule, exponent: int) -> None:
    scales = mx.block_scales(group(value, 13), dtype, rule)
    assert scales.tolist() == [[exponent + 127], [0], [0], [0]]  # groups of zeros: 2**-127


def test_block_scales_of_what_is_not_finite_are_nan() -> None:
    for value in (math.nan, math.inf):
        assert mx.block_scales(group(value), "float8_e5m2_x4", mx.ScaleRule.DOUBLED)[0, 0] == 255


def test_quantize_rounds_up_where_ocp_clips() -> None:
    x = T(group(1.999), "float16")
    for rule, want in ((mx.ScaleRule.DOUBLED, 2.0), (mx.ScaleRule.OCP, 1.75)):
        data, scale = out(32, 1, dtype="float8_e4m3fn_x4"), out(4, 1, dtype="float8_e8m0fnu")
        run("quantize_mx", data, x, scale, core=CoreState(scale_rule=rule))
        back = mx.dequantise(data.data, scale.data.view(np.uint8), "float8_e4m3fn_x4")
        assert back[0, 0] == want


def test_scales_lie_in_four_partitions_of_each_quadrant() -> None:
    assert mx.scale_rows(128).tolist() == [
        0,
        1,
        2,
        3,
        32,
        33,
        34,
        35,
        64,
        65,
        66,
        67,
        96,
        97,
        98,
        99,
    ]
    x = np.repeat(2.0 ** np.arange(8), 8)[:, None] * np.ones((64, 4))
    scale = out(64, 1, dtype="uint8")
    run("quantize_mx", out(64, 1, dtype="float8_e4m3fn_x4"), T(x, "bfloat16"), scale)
    got = scale.data[:, 0]
    assert got[[0, 1, 2, 3, 32, 33, 34, 35]].tolist() == [127 - 7 + e for e in range(8)]
    assert (np.delete(got, [0, 1, 2, 3, 32, 33, 34, 35]) == 4).all()  # the others keep their value


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**16), dtype=st.sampled_from(["float8_e5m2_x4", "float8_e4m3fn_x4"]))
def test_quantising_errs_by_half_an_ulp_at_most(seed: int, dtype: str) -> None:
    x = np.random.default_rng(seed).normal(size=(32, 8)).astype(np.float16)
    data, scale = out(32, 2, dtype=dtype), out(4, 2, dtype="float8_e8m0fnu")
    run("quantize_mx", data, T(x, "float16"), scale)
    scales = scale.data.view(np.uint8)
    back = mx.dequantise(data.data, scales, dtype)
    finfo = ml_dtypes.finfo(info(dtype).lane)  # type: ignore[no-untyped-call]
    unit = np.repeat(np.repeat(2.0 ** (scales.astype(int) - 127), 8, 0), 4, 1)
    spacing = np.maximum(np.abs(x), float(finfo.smallest_normal) * unit) * float(finfo.eps)
    assert (np.abs(back - x.astype(np.float64)) <= spacing / 2 + 1e-30).all()


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**16), kinds=st.tuples(st.sampled_from(PACKED), st.sampled_from(PACKED))
)
def test_matmul_mx_is_the_product_of_the_dequantised(seed: int, kinds: tuple[str, str]) -> None:
    random, sides = np.random.default_rng(seed), []
    for kind, free in zip(kinds, (2, 3), strict=True):
        lane = info(kind).lane
        elements = random.integers(-2, 3, (64, 4 * free)).astype(np.float32)
        scales = np.full((40, free), 200, np.uint8)
        scales[mx.scale_rows(64)] = random.integers(125, 130, (8, free))
        items, packed = out(64, free, dtype=kind), mx.pack(elements.astype(lane), kind)
        items.data = packed
        factors = np.repeat(2.0 ** (scales[mx.scale_rows(64)].astype(int) - 127), 8, axis=0)
        sides.append(
            (items, T(scales, "uint8"), elements.reshape(64, free, 4) * factors[..., None])
        )
    (a, a_scale, a_wide), (b, b_scale, b_wide) = sides
    result, _ = run("nc_matmul_mx", psum(2, 3), a, b, a_scale, b_scale)
    want = [
        [
            sum(float(a_wide[k, i, q] * b_wide[k, j, q]) for k in range(64) for q in range(4))
            for j in range(3)
        ]
        for i in range(2)
    ]
    assert values(result) == want  # small integers times powers of two are exact


@pytest.mark.parametrize(
    ("kwargs", "generation", "text"),
    [
        ({}, 3, "nc_matmul_mx does not exist on NeuronCore-v3"),
        (
            {"moving": sb(48, 4, dtype=PACKED[0])},
            4,
            "stationary has 64 partitions and moving has 48",
        ),
        ({"stationary": sb(64, 3, dtype=PACKED[0])}, 4, "free size 3 must be even and at most 128"),
        (
            {"moving_scale": sb(32, 4, dtype="uint8")},
            4,
            "needs at least 36 partitions and 4 elements",
        ),
        ({"stationary": sb(64, 2)}, 4, "stationary has data type bfloat16, allowed: float4"),
        ({"tile_size": (64, 64), "tile_position": (0, 0)}, 4, "columns are not tiled"),
    ],
)
def test_matmul_mx_refuses(kwargs: dict[str, Any], generation: int, text: str) -> None:
    arguments: dict[str, Any] = {
        "dst": ps(2, 4), "stationary": sb(64, 2, dtype=PACKED[0]),
        "moving": sb(64, 4, dtype=PACKED[2]), "stationary_scale": sb(36, 2, dtype="uint8"),
        "moving_scale": sb(64, 4, dtype="float8_e8m0fnu"), **kwargs,
    }  # fmt: skip
    with pytest.raises(NkiValidationError) as caught:
        call("nc_matmul_mx", generation=generation, **arguments)
    assert text in str(caught.value)


def test_quantize_mx_refuses() -> None:
    data, scale = sb(32, 1, dtype=PACKED[0]), sb(4, 1, dtype="uint8")
    with pytest.raises(NkiValidationError, match="dst has data type float4_e2m1fn_x4"):
        call("quantize_mx", sb(32, 1, dtype=PACKED[2]), sb(32, 4), scale)
    with pytest.raises(
        NkiValidationError, match="src has 8 elements per partition and dst 1 packed"
    ):
        call("quantize_mx", data, sb(32, 8), scale)
    with pytest.raises(
        NkiValidationError, match="src has 16 partitions, it needs a multiple of 32"
    ):
        call("quantize_mx", sb(16, 1, dtype=PACKED[0]), sb(16, 4), scale)
    with pytest.raises(NkiValidationError, match="at least 4 partitions and exactly 1 elements"):
        call("quantize_mx", data, sb(32, 4), sb(4, 2, dtype="uint8"))
