"""Casts on read and write, operators, activation functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import nki
import nki.isa as nisa
import nki.language as nl
from nki.dtypes import NAMES, info
from nki.isa.act import ACTIVATIONS, activate, outside
from nki.isa.alu import ALU, apply, fold, op_name, scan
from nki.isa.cast import bit_pattern, to_float32, write


def f32(values: Any) -> np.ndarray:
    return np.array(values, np.float32)


F32 = hnp.arrays(np.float32, (3, 5), elements=st.floats(width=32))


def written(numbers: list[float], dtype: str) -> list[float]:
    return [float(v) for v in write(np.array(numbers, np.float32), dtype)]


@pytest.mark.usefixtures("executor", "own_cache")
@pytest.mark.parametrize("dtype", ["float8_e4m3", "float8_e4m3fn", "float8_e5m2", "float16"])
def test_what_is_too_large_keeps_its_sign(dtype: str) -> None:
    """Also as NaN, which `float8_e4m3fn` has for it: a view as integers shows the sign."""
    numbers = [math.inf, 1e9, 465.0, 464.0, 448.0, 447.0]
    x = f32([[*numbers, *(-n for n in numbers)]])

    @nki.jit
    def kernel(x: Any) -> Any:
        tile = nl.load(x)
        cast = nl.ndarray(x.shape, dtype, nl.sbuf)
        nisa.tensor_copy(dst=cast, src=tile)
        out = nl.ndarray(x.shape, dtype, nl.shared_hbm)
        nisa.dma_copy(dst=out, src=cast)
        return out

    got, expected = np.asarray(kernel(x)), write(x, dtype)
    assert got.tobytes() == expected.tobytes()


def test_integers_round_to_even_and_saturate() -> None:
    assert written([0.5, 1.5, 2.5, -0.5, -1.5], "int32") == [0, 2, 2, 0, -2]
    assert written([300.0, -300.0, math.inf, -math.inf, math.nan], "int8") == [
        127,
        -128,
        127,
        -128,
        0,
    ]
    assert written([3e9, -1.0], "uint32") == [3e9, 0]
    assert written([3e9, -3e9], "int32") == [2**31 - 1, -(2**31)]
    assert written([5e9], "uint32") == [2**32 - 1]


def test_integers_to_narrower_integers_saturate() -> None:
    assert write(np.array([300, -300]), "int8").tolist() == [127, -128]
    assert write(np.array([-1, 70000]), "uint16").tolist() == [0, 65535]


def test_floats_round_to_even_and_overflow_to_infinity() -> None:
    assert written([1 + 2**-8, 1 + 3 * 2**-8], "bfloat16") == [1.0, 1 + 2**-6]
    assert written([-3.4028235e38], "bfloat16") == [-math.inf]
    assert written([70000.0], "float16") == [math.inf]
    assert written([240.0, 247.0, 248.0], "float8_e4m3") == [240.0, 240.0, math.inf]
    assert written([448.0, 460.0], "float8_e4m3fn") == [448.0, 448.0]
    assert math.isnan(written([500.0], "float8_e4m3fn")[0])
    assert written([57344.0, 70000.0], "float8_e5m2") == [57344.0, math.inf]


def test_tfloat32_keeps_ten_bits_of_mantissa() -> None:
    ulp = 2.0**-10
    assert written([1 + ulp / 2, 1 + 3 * ulp / 2, 1 + ulp], "tfloat32") == [1, 1 + 2 * ulp, 1 + ulp]
    assert written([math.inf, -math.inf], "tfloat32") == [math.inf, -math.inf]
    assert math.isnan(written([math.nan], "tfloat32")[0])
    # A copy keeps all bits; reading for arithmetic does not.
    bits = bit_pattern(np.array([1 + 2**-20], np.float32))
    assert float(write(bits, "tfloat32")[0]) == 1 + 2**-20
    assert float(to_float32(write(bits, "tfloat32"), "tfloat32")[0]) == 1.0


def test_bool_is_one_where_not_zero() -> None:
    assert write(np.array([0.0, -2.0, math.nan], np.float32), "bool_").tolist() == [0, 1, 1]
    assert write(np.array([4, 0], np.uint8), "bool_").tolist() == [4, 0]  # a copy of stored bytes


@pytest.mark.parametrize("dtype", [n for n in NAMES if not info(n).is_packed and n != "bool_"])
@settings(max_examples=25)
@given(x=F32)
def test_write_agrees_with_the_nearest_value(dtype: str, x: np.ndarray) -> None:
    kind = info(dtype)
    got = write(x, dtype)
    assert got.dtype == kind.numpy
    assert got.shape == x.shape
    if kind.itemsize < 4 or kind.is_float:  # 32-bit integers are not all float32
        again = write(to_float32(got, dtype), dtype)
        known = ~np.isnan(x)
        assert np.array_equal(bit_pattern(again)[known], bit_pattern(got)[known])
    if kind.is_int:
        limits = np.iinfo(kind.numpy)
        inside = np.isfinite(x) & (np.abs(x) < 2**31) & (x >= limits.min) & (x <= limits.max)
        assert (np.abs(got[inside].astype(np.float64) - x[inside]) <= 0.5).all()


def test_packed_types_have_no_value() -> None:
    items = np.array([[1, 2]], np.uint32)
    assert write(items, "float8_e5m2_x4") is items
    with pytest.raises(AssertionError):
        write(np.array([1.0], np.float32), "float8_e5m2_x4")
    with pytest.raises(AssertionError):
        to_float32(items, "float8_e5m2_x4")


# Operators

SCALAR: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "maximum": max,
    "minimum": min,
    "equal": lambda x, y: x == y,
    "not_equal": lambda x, y: x != y,
    "greater": lambda x, y: x > y,
    "greater_equal": lambda x, y: x >= y,
    "less": lambda x, y: x < y,
    "less_equal": lambda x, y: x <= y,
    "logical_and": lambda x, y: bool(x) and bool(y),
    "logical_or": lambda x, y: bool(x) or bool(y),
    "logical_xor": lambda x, y: bool(x) != bool(y),
    "abs_max": lambda x, y: x if abs(x) > abs(y) else y,
    "abs_min": lambda x, y: x if abs(x) < abs(y) else y,
    "abs": lambda x, _: abs(x),
    "square": lambda x, _: x * x,
    "relu": lambda x, _: max(x, 0),
    "bitwise_and": lambda x, y: x & y,
    "bitwise_or": lambda x, y: x | y,
    "bitwise_xor": lambda x, y: x ^ y,
    "invert": lambda x, _: x ^ 0xFF,
    "left_shift": lambda x, y: (x << y) & 0xFF,
    "right_shift": lambda x, y: x >> y,
}


@pytest.mark.parametrize("name", SCALAR)
@settings(max_examples=25)
@given(data=st.data())
def test_operators_agree_with_python(name: str, data: st.DataObject) -> None:
    if ALU[name].bitvec:
        numbers: st.SearchStrategy[Any] = st.integers(0, 255)
        kind: type = np.uint8
    else:
        numbers = st.integers(-1000, 1000).map(lambda n: n / 8)
        kind = np.float32
    x, y = data.draw(numbers), data.draw(numbers)
    one = apply(name, np.array([x], kind), np.array([y], kind))
    assert one.dtype == kind
    assert float(one[0]) == float(SCALAR[name](x, y))
    if not ALU[name].unary:
        back = apply(name, np.array([y], kind), np.array([x], kind), reverse=True)
        assert back.tolist() == one.tolist()


def test_every_operator_is_tested() -> None:
    assert set(ALU) - set(SCALAR) == {"power", "rsqrt", "reciprocal"}
    x = np.array([4.0, 0.25], np.float32)
    assert apply("power", x, f32([0.5])).tolist() == [2.0, 0.5]
    assert apply("rsqrt", x, x).tolist() == [0.5, 2.0]
    assert apply("reciprocal", x, x).tolist() == [0.25, 4.0]


def test_ties_of_magnitude_give_the_second() -> None:
    one = f32([1.0])
    assert apply("abs_max", one, -one).tolist() == [-1.0]
    assert apply("abs_min", one, -one).tolist() == [-1.0]


@pytest.mark.parametrize("name", [op.name for op in ALU.values() if op.reduces and not op.bitvec])
@settings(max_examples=25)
@given(x=hnp.arrays(np.float32, (2, 6), elements=st.integers(-3, 3).map(float)))
def test_fold_is_a_loop(name: str, x: np.ndarray) -> None:
    for lane in range(2):
        state = float(x[lane, 0])
        for value in x[lane, 1:]:
            state = float(SCALAR[name](state, float(value)))
        assert float(fold(name, x)[lane]) == state
    start = f32([1.0, 2.0])
    assert np.array_equal(scan(name, start, x)[:, -1], fold(name, x, start))


def test_operator_names() -> None:
    assert op_name(np.add) == "add"
    assert op_name("max") == "maximum"
    assert op_name(np.bitwise_and) == "bitwise_and"
    with pytest.raises(ValueError, match="3 is no operator"):
        op_name(3)


# Activation functions

KNOWN = {
    "copy": (1.5, 1.5),
    "square": (1.5, 2.25),
    "sigmoid": (0.0, 0.5),
    "relu": (-1.0, 0.0),
    "prelu": (-2.0, 0.0),
    "gelu": (1.0, 0.8413447),
    "gelu_dx": (1.0, 1.0833155),
    "gelu_apprx_tanh": (1.0, 0.84119199),
    "gelu_apprx_sigmoid": (1.0, 0.84579577),
    "gelu_apprx_sigmoid_dx": (0.0, 0.5),
    "silu": (1.0, 0.73105858),
    "silu_dx": (1.0, 0.92767051),
    "tanh": (1.0, 0.76159416),
    "softplus": (0.0, 0.69314718),
    "mish": (1.0, 0.86509839),
    "erf": (1.0, 0.84270079),
    "erf_dx": (0.0, 1.1283792),
    "exp": (1.0, 2.7182818),
    "log": (2.0, 0.69314718),
    "sin": (1.0, 0.84147098),
    "arctan": (1.0, 0.78539816),
    "sqrt": (2.0, 1.4142136),
    "rsqrt": (4.0, 0.5),
    "reciprocal": (4.0, 0.25),
    "sign": (-3.0, -1.0),
    "abs": (-3.0, 3.0),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_functions_at_a_known_point(name: str) -> None:
    x, want = KNOWN[name]
    got = float(activate(name, f32([x]))[0])
    assert got == pytest.approx(want, rel=1e-7)  # the constants above have eight digits


def test_sin_goes_on_as_a_cubic() -> None:
    got = activate("sin", f32([9.0, -9.0, math.pi / 2]))
    assert got[0] == pytest.approx(27.65, abs=0.005)  # documented
    assert got[1] == -got[0]
    assert got[2] == 1.0
    inside, beyond = activate("sin", f32([3.1415925, 3.1415930]))
    assert abs(inside - beyond) < 1e-6


def test_prelu_takes_a_slope() -> None:
    got = activate("prelu", f32([-2.0, 2.0]), f32([0.25]))
    assert got.tolist() == [-0.5, 2.0]


def test_documented_ranges() -> None:
    inputs = f32([0.0, 2.0**-64, 2.0**64, 2.0**65, math.nan])
    assert outside("log", inputs).tolist() == [True, False, False, True, False]
    assert outside("reciprocal", f32([-1.0, -(2.0**-43)])).tolist() == [False, True]
    assert not outside("exp", inputs).any()
    narrow = {n for n, row in ACTIVATIONS.items() if math.isfinite(row.high)}
    assert narrow == {"sin", "arctan", "log", "sqrt", "rsqrt", "reciprocal"}


DERIVATIVES = {
    "gelu": "gelu_dx",
    "gelu_apprx_sigmoid": "gelu_apprx_sigmoid_dx",
    "silu": "silu_dx",
    "erf": "erf_dx",
}


@pytest.mark.parametrize("name", DERIVATIVES)
@settings(max_examples=25)
@given(x=st.floats(-4, 4))
def test_derivatives_agree_with_differences(name: str, x: float) -> None:
    h = 1e-5
    at = np.array([x - h, x + h])
    function = ACTIVATIONS[name].function
    low, high = function(at, np.zeros(1))
    got = ACTIVATIONS[DERIVATIVES[name]].function(np.array([x]), np.zeros(1))[0]
    # The central difference errs by h**2 / 6 times the third derivative (below 10), and by
    # rounding of about 2**-52 * |f| / h.
    assert got == pytest.approx((high - low) / (2 * h), abs=2 * h * h + 4 * 2**-52 * 5 / h)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_limits_at_infinity_are_no_nan(name: str) -> None:
    with np.errstate(all="ignore"):
        got = activate(name, f32([-math.inf, math.inf]))
    undefined = {"log": 0, "sqrt": 0, "rsqrt": 0}
    for position in range(2):
        if undefined.get(name) != position:
            assert not math.isnan(float(got[position])), name


def test_float8_is_that_of_ml_dtypes() -> None:
    assert info("float8_e4m3").numpy == ml_dtypes.float8_e4m3
