"""Functions element by element: against formulas, for shapes and types, and what they refuse."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nki
import nki.isa as nisa
import nki.language as nl
from nki.errors import NkiError, NkiTypeError, NkiValidationError, NkiWarning
from nki.language.function import Binary, Unary
from nki.language.tiles import promote
from tests.nki.language_tools import Array, inside, largest, rounding, run

pytestmark = pytest.mark.usefixtures("reference_executor")


def numbers(shape: tuple[int, ...], seed: int, dtype: Any = np.float32, scale: float = 1) -> Array:
    found: Array = (np.random.default_rng(seed).standard_normal(shape) * scale).astype(dtype)
    return found


_erf = np.vectorize(math.erf)


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _normal(x: Array) -> Array:
    return np.asarray(0.5 * (1 + _erf(x / math.sqrt(2))))


def _difference(f: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Return a derivative by central differences: good to 1e-8."""
    return lambda x: (f(x + 1e-5) - f(x - 1e-5)) / 2e-5


_gelu = lambda x: x * _normal(x)  # noqa: E731
_silu = lambda x: x * _sigmoid(x)  # noqa: E731
_gelu_sigmoid = lambda x: x * _sigmoid(1.702 * x)  # noqa: E731

# In float64, and the range that inputs are drawn from.
UNARY: dict[str, tuple[Callable[[Array], Array], float, float]] = {
    "abs": (np.abs, -9, 9),
    "arctan": (np.arctan, -1.5, 1.5),
    "ceil": (np.ceil, -300, 300),
    "copy": (lambda x: x, -9, 9),
    "cos": (np.cos, -9, 9),
    "erf": (_erf, -3, 3),
    "erf_dx": (_difference(_erf), -3, 3),
    "exp": (np.exp, -9, 9),
    "floor": (np.floor, -300, 300),
    "gelu": (_gelu, -5, 5),
    "gelu_apprx_sigmoid": (_gelu_sigmoid, -5, 5),
    "gelu_apprx_sigmoid_dx": (_difference(_gelu_sigmoid), -5, 5),
    "gelu_apprx_tanh": (
        lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))), -5, 5,
    ),
    "gelu_dx": (_difference(_gelu), -5, 5),
    "log": (np.log, 0.01, 9),
    "logical_not": (lambda x: (x == 0).astype(x.dtype), 0, 0.3),
    "mish": (lambda x: x * np.tanh(np.log1p(np.exp(x))), -5, 5),
    "negative": (lambda x: -x, -9, 9),
    "reciprocal": (lambda x: 1 / x, 0.1, 9),
    "relu": (lambda x: np.maximum(x, 0), -9, 9),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 0.1, 9),
    "sigmoid": (_sigmoid, -9, 9),
    "sign": (np.sign, -9, 9),
    "silu": (_silu, -9, 9),
    "silu_dx": (_difference(_silu), -5, 5),
    "sin": (np.sin, -9, 9),
    "softplus": (lambda x: np.log1p(np.exp(x)), -9, 9),
    "sqrt": (np.sqrt, 0.01, 9),
    "square": (lambda x: x * x, -9, 9),
    "tan": (np.tan, -1.2, 1.2),
    "tanh": (np.tanh, -4, 4),
    "trunc": (np.trunc, -300, 300),
}  # fmt: skip


def test_tables_name_every_function() -> None:
    made = {name: getattr(nl, name) for name in nl.__all__}
    assert {n for n, f in made.items() if isinstance(f, Unary)} == {*UNARY, "invert"}
    assert {n for n, f in made.items() if isinstance(f, Binary)} == {*BINARY, *BITS, *REMAINDERS}


@pytest.mark.parametrize("name", UNARY)
@settings(max_examples=3, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 128), st.integers(1, 9), st.integers(1, 5)),
    kind=st.sampled_from([np.float32, np.float16, ml_dtypes.bfloat16]),
    seed=st.integers(0, 99),
)
def test_unary(name: str, shape: tuple[int, ...], kind: Any, seed: int) -> None:
    function, low, high = UNARY[name]
    x = np.random.default_rng(seed).uniform(low, high, shape).astype(kind)
    if name == "logical_not":
        x = (x > 0.1).astype(kind)
    result = run(getattr(nl, name), x)
    assert result.dtype == kind
    want = function(x.astype(np.float64))
    # One rounding to float32 for each of at most four instructions, and one to the type.
    relative = rounding(kind) + 4 * rounding(np.float32)
    atol = (1e-7 if name.endswith("_dx") else 1e-9) + 2.0**-25
    np.testing.assert_allclose(result.astype(np.float64), want, rtol=relative, atol=atol)


@pytest.mark.parametrize("name", ["ceil", "floor", "trunc"])
def test_rounding_of_the_largest_and_of_what_is_no_number(name: str) -> None:
    x = np.array([[2.0**31, -(2.0**31), 1e30, np.inf, -np.inf, np.nan, 2.0**23 - 0.5, 8388609]])
    x = np.concatenate([x, -x], axis=1).astype(np.float32)
    np.testing.assert_array_equal(run(getattr(nl, name), x), getattr(np, name)(x))
    whole = np.arange(-8, 8, dtype=np.int32).reshape(2, 8)
    np.testing.assert_array_equal(run(getattr(nl, name), whole), whole)


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.uint32])
def test_invert(kind: Any) -> None:
    x = np.arange(12).reshape(3, 4).astype(kind)
    np.testing.assert_array_equal(run(nl.invert, x), ~x)
    with pytest.raises(NkiValidationError, match=r"needs integers.*\[NKI107\]"):
        run(nl.invert, x.astype(np.float32))


@pytest.mark.parametrize("number", [2, 2.0, np.float32(2), np.int8(2)])
def test_integers_written_as_floats(number: Any) -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        tile = nl.load(x)
        moved = nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=moved, data=tile, op0=nl.left_shift, operand0=number)
        places = nl.ndarray(tile.shape, dtype=tile.dtype, buffer=nl.sbuf)
        nisa.iota(places, [[1, x.shape[1]]], offset=number)
        result = nl.ndarray((2, *x.shape), dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(result[0], moved)
        nl.store(result[1], places)
        return result

    x = np.arange(6, dtype=np.int32).reshape(2, 3)
    got = kernel(x)
    np.testing.assert_array_equal(got, [x << 2, [[2, 3, 4]] * 2])


@pytest.mark.parametrize("number", [0.125, math.inf, math.nan, np.float32(-2.5)])
def test_floats_for_integers_are_refused(number: Any) -> None:
    @nki.jit
    def shifted(x: Any) -> Any:
        tile = nl.load(x)
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.left_shift, operand0=number)
        return x

    @nki.jit
    def counted(x: Any) -> Any:
        tile = nl.load(x)
        nisa.iota(tile, [[1, x.shape[1]]], offset=number)
        return x

    x = np.arange(6, dtype=np.int32).reshape(2, 3)
    with pytest.raises(NkiValidationError, match=r"operand0 .* needs integers.*\[NKI107\]"):
        shifted(x)
    with pytest.raises(NkiTypeError, match=r"offset must be a register or an integer, got float"):
        counted(x)


BINARY: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "abs_max": lambda x, y: np.where(np.abs(x) > np.abs(y), x, y),
    "abs_min": lambda x, y: np.where(np.abs(x) < np.abs(y), x, y),
    "divide": np.divide,
    "power": lambda x, y: np.abs(x) ** y,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
}
BITS = {
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "left_shift": np.left_shift,
    "right_shift": np.right_shift,
}
REMAINDERS = {"fmod": np.fmod, "mod": np.mod}
GAPS = "ignore::nki.errors.NkiWarning"


@pytest.mark.filterwarnings(GAPS)
@pytest.mark.parametrize("name", BINARY)
@settings(max_examples=4, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 128), st.integers(1, 40)),
    kind=st.sampled_from([np.float32, np.float16, ml_dtypes.bfloat16]),
    form=st.sampled_from(["tiles", "number last", "number first"]),
    seed=st.integers(0, 99),
)
def test_binary(name: str, shape: tuple[int, int], kind: Any, form: str, seed: int) -> None:
    x, y = (np.round(numbers(shape, seed + i, scale=2), 1).astype(kind) for i in (0, 1))
    if name == "power":
        x, y = np.abs(x), np.abs(y)
    if name == "divide":
        y = (np.abs(y) + kind(0.5)).astype(kind)
    function = getattr(nl, name)
    if form == "tiles":
        result = run(function, x, y)
        a, b = x, y
    elif form == "number last":
        result = run(lambda tile: function(tile, 1.5), x)
        a, b = x, np.asarray(1.5)
    else:
        result = run(lambda tile: function(1.5, tile), y)
        a, b = np.asarray(1.5), y
    assert result.dtype == kind
    with np.errstate(over="ignore"):
        want = np.asarray(BINARY[name](np.float64(a), np.float64(b))).astype(np.float64)
        want = np.where(np.abs(want) > largest(kind), np.inf, want)
    relative = rounding(kind) + 2 * rounding(np.float32)
    np.testing.assert_allclose(result.astype(np.float64), want, rtol=relative, atol=1e-7)


@pytest.mark.parametrize("name", BITS)
@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.int32, np.uint32])
def test_bits(name: str, kind: Any) -> None:
    x = np.arange(60, dtype=kind).reshape(5, 12)
    y = (np.arange(60) % 7).astype(kind).reshape(5, 12)
    np.testing.assert_array_equal(run(getattr(nl, name), x, y), BITS[name](x, y))
    number = run(lambda tile: getattr(nl, name)(tile, 3), x)
    np.testing.assert_array_equal(number, BITS[name](x, kind(3)))
    with pytest.raises(NkiTypeError, match=rf"nl.{name} y must be integer, got 1.5.*NKI240"):
        run(lambda tile: getattr(nl, name)(tile, 1.5), x)
    with pytest.raises(NkiTypeError, match=rf"nl.{name} x must be integer, got float32.*NKI240"):
        run(lambda tile: getattr(nl, name)(tile, 1), x.astype(np.float32))


@pytest.mark.filterwarnings(GAPS)
@pytest.mark.parametrize("name", REMAINDERS)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 999), number=st.booleans())
def test_remainders(name: str, seed: int, number: bool) -> None:
    # Multiples of 1/4 whose products are exact: then the remainder is exact too.
    rng = np.random.default_rng(seed)
    x = (rng.integers(-4000, 4000, (4, 30)) / 4).astype(np.float32)
    y = (rng.integers(1, 40, (4, 30)) * rng.choice([-1, 1], (4, 30)) / 4).astype(np.float32)
    function = getattr(nl, name)
    if number:
        result = run(lambda tile: function(tile, -2.75), x)
        np.testing.assert_array_equal(result, REMAINDERS[name](x, np.float32(-2.75)))
    else:
        np.testing.assert_array_equal(run(function, x, y), REMAINDERS[name](x, y))


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("divide", "nl.multiply"), ("fmod", "floor"), ("mod", "floor"), ("power", "nl.full")],
)
def test_functions_that_hardware_lacks_are_findings(name: str, remedy: str) -> None:
    x = np.ones((2, 2), np.float32)
    with pytest.warns(NkiWarning, match=rf"nl.{name}.* fails on hardware.*{remedy}.*NKI243"):
        assert run(lambda tile: getattr(nl, name)(tile, 2.0), x).shape == (2, 2)


# --- data types and shapes -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "y", "both"),
    [
        ("int32", "float16", "float16"),
        ("uint16", "tfloat32", "tfloat32"),
        ("float32", "tfloat32", "float32"),
        ("float32", "bfloat16", "float32"),
        ("float16", "bfloat16", "float32"),
        ("float8_e4m3", "float16", "float16"),
        ("float8_e4m3", "bfloat16", "bfloat16"),
        ("float8_e4m3", "float8_e5m2", "bfloat16"),
        ("int16", "int32", "int32"),
        ("uint8", "uint16", "uint16"),
        ("uint16", "int32", "int32"),
        ("int8", "uint8", "int16"),
        ("int8", "uint16", "int32"),
        ("int32", "uint32", "float32"),
        ("bool_", "float16", "float16"),
    ],
)
def test_results_of_two_types(x: str, y: str, both: str) -> None:
    assert promote(x, y) == promote(y, x) == both
    if "tfloat32" not in (x, y):
        made = inside(lambda: nl.add(nl.zeros((2, 2), x), nl.zeros((2, 2), y)).dtype)
        assert made == both


def test_a_given_type_is_that_of_the_result() -> None:
    x = numbers((4, 4), 0)
    assert run(lambda t: nl.exp(t, dtype=nl.float16), x).dtype == np.float16
    assert run(lambda t: nl.add(t, t, nl.bfloat16), x).dtype == ml_dtypes.bfloat16
    compared = run(lambda t: nl.less(t, 0.0, dtype=nl.uint8), x)
    np.testing.assert_array_equal(compared, (x < 0).astype(np.uint8))


def test_packed_types_have_no_arithmetic() -> None:
    def body() -> Any:
        four = nl.zeros((32, 4), nl.float8_e4m3fn_x4)
        return nl.add(four, nl.zeros((32, 4), nl.float32))

    with pytest.raises(NkiTypeError, match=r"no common data type.*\[NKI108\]"):
        inside(body)


def test_nothing_is_broadcast() -> None:
    wide, column = numbers((8, 6), 0), numbers((8, 1), 1)
    with pytest.raises(
        NkiError, match=r"one shape, got \(8, 6\) and \(8, 1\).*broadcast_to.*NKI24"
    ):
        run(nl.add, wide, column)
    # But where the documentation's example does.
    want = np.where(np.abs(wide) > np.abs(column), wide, column)
    np.testing.assert_array_equal(run(nl.abs_max, wide, column), want)
    want = np.where(np.abs(column) > np.abs(wide), column, wide)
    np.testing.assert_array_equal(run(nl.abs_max, column, wide), want)


def test_arguments_are_tiles_and_numbers() -> None:
    with pytest.raises(NkiTypeError, match=r"nl.add was given two numbers.*\[NKI240\]"):
        nl.add(1, 2.0)
    with pytest.raises(NkiTypeError, match=r"nl.exp x must be a tile, got ndarray.*\[NKI240\]"):
        nl.exp(np.zeros((2, 2)))  # type: ignore[arg-type]
    hbm = nl.ndarray((4, 4), nl.float32, nl.shared_hbm)
    with pytest.raises(NkiTypeError, match=r"nl.add x must be a tile in sbuf or psum.*nl.load"):
        nl.add(hbm, 1)
    with pytest.raises(NkiError, match=r"outside of a kernel.*\[NKI143\]"):
        nl.exp(nl.zeros((4, 4), nl.float32))


def test_targets_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    x = numbers((8, 6), 0, scale=0.3)
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn1")
    np.testing.assert_allclose(run(nl.cos, x), np.cos(x), rtol=1e-6)
    with pytest.raises(NkiValidationError, match=r"abs_max does not exist on NeuronCore-v2"):
        run(nl.abs_max, x, x)


def test_longer_tiles_than_engines_count_are_cut() -> None:
    x = np.arange(2 * 70001).reshape(2, 70001).astype(np.uint8)
    np.testing.assert_array_equal(run(lambda t: nl.add(nl.copy(t), t), x // 3), x // 3 * 2)
    np.testing.assert_array_equal(run(lambda t: nl.floor(nl.minimum(9, t)), x), np.minimum(x, 9))
    deep = x[:, :70000].reshape(2, 7, 10000)
    np.testing.assert_array_equal(run(lambda t: nl.bitwise_and(t, 3), deep), deep & 3)


# --- as operators --------------------------------------------------------------------------------


def test_functions_are_operators_of_instructions() -> None:
    x, y = numbers((8, 6), 0), numbers((8, 6), 1)

    def body(a: Any, b: Any) -> Any:
        out = nl.ndarray(a.shape, a.dtype)
        nisa.tensor_tensor(out, a, b, op=nl.add)
        nisa.activation(out, op=nl.tanh, data=out)
        nisa.tensor_scalar(out, out, op0=nl.max, operand0=0.1, op1=nl.multiply,
                           operand1=2.0)  # fmt: skip
        return out

    want = np.maximum(np.tanh(x + y), 0.1) * 2
    np.testing.assert_allclose(run(body, x, y), want, rtol=1e-6)


@pytest.mark.parametrize("name", ["add", "max", "exp", "logical_and", "bypass", "sum", "copy"])
def test_operators_are_values(name: str) -> None:
    op = getattr(nl, name)
    assert (op.__name__, repr(op), {op: 1}[op]) == (name, f"nl.{name}", 1)
    assert pickle.loads(pickle.dumps(op)) is op  # noqa: S301
    assert copy.deepcopy(op) is op
    assert op == op  # noqa: PLR0124
    assert op != nl.bitwise_or


@pytest.mark.parametrize(
    ("symbol", "function", "operate"),
    [
        ("x + y", "nl.add", lambda t: t + 1),
        ("x + y", "nl.add", lambda t: 1 + t),
        ("x * y", "nl.multiply", lambda t: t * t),
        ("x / y", "nl.reciprocal", lambda t: 2 / t),
        ("x @ y", "nl.matmul", lambda t: t @ t),
        ("x < y", "nl.less", lambda t: t < 2),
        ("x & y", "nl.bitwise_and", lambda t: t & 2),
        ("-x", "nl.negative", lambda t: -t),
        ("~x", "nl.invert", lambda t: ~t),
        ("abs x", "nl.abs", abs),
    ],
)
def test_tensors_have_no_operators(symbol: str, function: str, operate: Any) -> None:
    tensor = nl.ndarray((4, 4), nl.float32)
    with pytest.raises(NkiTypeError) as caught:
        operate(tensor)
    assert str(caught.value).startswith(f"{symbol} was written for the tensor")
    assert function in caught.value.remedy
    assert caught.value.code == "NKI244"


def test_equality_of_tensors_is_that_of_objects() -> None:
    tensor = nl.ndarray((4, 4), nl.float32)
    assert tensor == tensor  # noqa: PLR0124
    assert tensor != nl.ndarray((4, 4), nl.float32)
    assert (tensor == None) is False  # noqa: E711 (what kernels write, because `is` is refused)


def test_conditions_look_at_comparisons_only() -> None:
    seen: list[bool] = []

    def body(x: Any) -> Any:
        seen.extend(
            [bool(nl.equal(x, x)), bool(nl.less(x, 0.0)), bool(nl.zeros((2, 2), nl.float32))]
        )
        return x

    x = np.array([[1, -1]], np.float32)
    run(body, x)
    assert seen == [True, False, True]  # any other tensor is true


def test_sums_of_integers_are_exact_on_gpsimd() -> None:
    x = np.array([[2**30 + 1, -5]], np.int32)
    np.testing.assert_array_equal(run(nl.add, x, x // 2), x + x // 2)
