"""tensor_tensor, tensor_scalar, scalar_tensor_tensor, reciprocal, tensor_tensor_scan."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nki.errors import NkiTypeError, NkiValidationError
from nki.isa import enums
from nki.isa.spec import Tile
from tests.nki.isa_tools import T, call, out, run, values

GPSIMD, SCALAR, VECTOR = enums.engine.gpsimd, enums.engine.scalar, enums.engine.vector
INTS = hnp.arrays(np.int32, (2, 3), elements=st.integers(-(2**31), 2**31 - 1))
SMALL = hnp.arrays(np.float32, (2, 3), elements=st.integers(-64, 64).map(lambda n: n / 4))


def test_tensor_tensor_computes_in_float32_and_casts() -> None:
    a, b = T([[1.0, 2.5]], "bfloat16"), T([[2, 3]], "int32")
    assert values(run("tensor_tensor", out(1, 2), a, b, "add")[0]) == [[3.0, 5.5]]
    assert values(run("tensor_tensor", out(1, 2, dtype="int8"), a, b, "add")[0]) == [[3, 6]]
    assert values(run("tensor_tensor", out(1, 2), a, b, "less")[0]) == [[1.0, 1.0]]


def test_wide_integers_are_exact_on_gpsimd_and_float32_on_vector() -> None:
    a, b = T([[2**24 + 1, 2**31 - 1]], "int32"), T([[0, 1]], "int32")
    result, step = run("tensor_tensor", out(1, 2, dtype="int32"), a, b, "add")
    assert (values(result), step.engine) == ([[2**24 + 1, -(2**31)]], "gpsimd")
    result, step = run("tensor_tensor", out(1, 2, dtype="int32"), a, b, "add", engine=VECTOR)
    assert (values(result), step.engine) == ([[2**24, 2**31 - 1]], "vector")


@given(x=INTS, y=INTS)
def test_gpsimd_integers_agree_with_python(x: np.ndarray, y: np.ndarray) -> None:
    for op, function in (
        ("add", int.__add__),
        ("multiply", int.__mul__),
        ("subtract", int.__sub__),
    ):
        for dtype in ("int32", "uint32"):
            result, _ = run(
                "tensor_tensor", out(2, 3, dtype=dtype), T(x, "int32"), T(y, "int32"), op
            )
            for position in np.ndindex(2, 3):
                want = function(int(x[position]), int(y[position]))
                assert (int(result["dst"][position]) - want) % 2**32 == 0


def test_psum_sends_integers_to_the_vector_engine() -> None:
    a = Tile((2, 2), "int32", "psum")
    b = Tile((2, 2), "int32")
    assert call("tensor_tensor", b, a, b, "add").engine == "vector"
    assert call("tensor_tensor", b, b, b, "add").engine == "gpsimd"
    assert call("tensor_tensor", b, b, b, "bitwise_and").engine == "vector"
    with pytest.raises(NkiValidationError, match="data1 and data2 are both in psum"):
        call("tensor_tensor", b, a, a, "add")


def test_bitvec_operators_work_on_patterns() -> None:
    a, b = T([[-1, 5]], "int8"), T([[1, 3]], "int8")
    assert values(run("tensor_tensor", out(1, 2, dtype="int8"), a, b, "bitwise_xor")[0]) == [
        [-2, 6]
    ]
    # Logical, not arithmetic; and nothing is cast: -1 has the pattern 0xFF.
    shifted, _ = run("tensor_tensor", out(1, 2, dtype="int8"), a, b, "right_shift")
    assert values(shifted) == [[127, 0]]
    wide, _ = run("tensor_tensor", out(1, 2, dtype="int32"), a, b, "bitwise_or")
    assert values(wide) == [[255, 7]]
    big = T([[32, 31]], "uint32")
    ones, _ = run(
        "tensor_tensor", out(1, 2, dtype="uint32"), T([[1, 1]], "uint32"), big, "left_shift"
    )
    assert values(ones) == [[0, 2**31]]


@pytest.mark.parametrize(
    ("dtype", "op", "text"),
    [
        ("float32", "bitwise_and", "dst has data type float32; the bitvec operator bitwise_and"),
        ("float32", "divide", "tensor_tensor op cannot be divide"),
        ("float32", "abs", "tensor_tensor op cannot be abs"),
    ],
)
def test_tensor_tensor_refuses(dtype: str, op: str, text: str) -> None:
    tile = Tile((2, 2), dtype)
    with pytest.raises(NkiValidationError, match=text):
        call("tensor_tensor", tile, tile, tile, op)


def test_tensor_tensor_shapes_and_generations() -> None:
    a, b = Tile((4, 6), "float32"), Tile((4, 2, 3), "float32")
    call("tensor_tensor", a, b, a, "add")
    with pytest.raises(NkiValidationError, match="dst has 4 partitions and data2 has 5") as caught:
        call("tensor_tensor", a, a, Tile((5, 6), "float32"), "add")
    assert caught.value.code == "NKI105"
    with pytest.raises(NkiValidationError, match=r"data2 of shape \(4, 1\) differ") as caught:
        call("tensor_tensor", a, a, Tile((4, 1), "float32"), "add")
    assert caught.value.code == "NKI106"
    with pytest.raises(NkiValidationError, match="abs_max does not exist on NeuronCore-v3"):
        call("tensor_tensor", a, a, a, "abs_max", generation=3)
    psum = Tile((4, 6), "float32", "psum")
    with pytest.raises(NkiValidationError, match="dst is in psum, which the gpsimd"):
        call("tensor_tensor", psum, a, a, "power")
    with pytest.raises(NkiValidationError, match="power runs on the gpsimd engine only"):
        call("tensor_tensor", a, a, a, "power", engine=VECTOR)


def test_tensor_indirection() -> None:
    index = Tile((32, 1), "uint32", partition=32)
    view = Tile((32, 4), "float32", indirect=True, index=index)
    plain = Tile((32, 4), "float32")
    call("tensor_tensor", plain, view, plain, "add")
    with pytest.raises(NkiValidationError, match="data2 does not support tensor indirection"):
        call("tensor_tensor", plain, plain, view, "add")
    with pytest.raises(NkiValidationError, match="which NeuronCore-v3 does not have"):
        call("tensor_tensor", plain, view, plain, "add", generation=3)
    skewed = Tile((32, 4), "float32", indirect=True, index=Tile((32, 1), "uint32", partition=16))
    with pytest.raises(NkiValidationError, match="has its index tensor at partition 16"):
        call("tensor_tensor", plain, skewed, plain, "add")
    scattered = Tile((32, 4), "float32", "psum", indirect=True)
    with pytest.raises(NkiValidationError, match="scattered in psum"):
        call("tensor_copy", scattered, plain, engine=SCALAR)


# tensor_scalar


def test_tensor_scalar_broadcasts_and_reverses() -> None:
    x, column = T([[1.0, 2.0], [3.0, 4.0]]), T([[10.0], [20.0]])
    assert values(run("tensor_scalar", out(2, 2), x, "subtract", 1.0)[0]) == [[0, 1], [2, 3]]
    result, _ = run("tensor_scalar", out(2, 2), x, "subtract", column, reverse0=True)
    assert values(result) == [[9, 8], [17, 16]]
    result, _ = run(
        "tensor_scalar", out(2, 2), x, "multiply", 2.0, op1="subtract", operand1=column,
        reverse1=True,
    )  # fmt: skip
    assert values(result) == [[8, 6], [14, 12]]


@pytest.mark.slow
@given(x=SMALL, a=st.integers(-8, 8), b=st.integers(-8, 8), r0=st.booleans(), r1=st.booleans())
def test_tensor_scalar_is_two_tensor_tensors(
    x: np.ndarray, a: int, b: int, r0: bool, r1: bool
) -> None:
    left, right = T(np.full((2, 3), a)), T(np.full((2, 3), b))
    for op0, op1 in (("subtract", "multiply"), ("maximum", "subtract")):
        middle = out(2, 3)
        run("tensor_tensor", middle, *((left, T(x)) if r0 else (T(x), left)), op0)
        want, _ = run(
            "tensor_tensor", out(2, 3), *((right, middle) if r1 else (middle, right)), op1
        )
        got, _ = run("tensor_scalar", out(2, 3), T(x), op0, float(a), r0, op1, float(b), r1)
        assert values(got) == values(want)
        if not r0:
            got, _ = run(
                "scalar_tensor_tensor", out(2, 3), T(x), op0, float(a), op1, right, reverse1=r1
            )
            assert values(got) == values(want)


def test_tensor_scalar_on_patterns() -> None:
    x = T([[0b1011, -1]], "int32")
    result, _ = run(
        "tensor_scalar",
        out(1, 2, dtype="int32"),
        x,
        "right_shift",
        1,
        op1="bitwise_and",
        operand1=3,
    )
    assert values(result) == [[0b01, 3]]
    result, _ = run("tensor_scalar", out(1, 2, dtype="int32"), x, "invert", None)
    assert values(result) == [[-12, 0]]
    result, _ = run(
        "tensor_scalar", out(1, 1, dtype="uint8"), T([[3]], "uint8"), "left_shift", 1, reverse0=True
    )
    assert values(result) == [[8]]


def test_tensor_scalar_engines() -> None:
    x = Tile((2, 2), "float32")
    assert call("tensor_scalar", x, x, "add", 1.0).engine == "vector"
    assert call("tensor_scalar", x, x, "rsqrt", 0.0).engine == "gpsimd"
    call(
        "tensor_scalar", x, x, "multiply", 1.0, op1="add", operand1=2.0, engine=SCALAR, generation=3
    )
    call("tensor_scalar", x, x, "maximum", 1.0, engine=SCALAR)
    refusals = (
        ({"op0": "maximum", "engine": SCALAR}, 3, r"operators \(maximum, None\) do not run on the"),
        ({"op0": "add", "engine": SCALAR}, 2, "cannot run on the scalar engine of NeuronCore-v2"),
        ({"op0": "add", "engine": GPSIMD}, 3, "runs on the gpsimd engine for rsqrt only"),
        ({"op0": "rsqrt", "operand0": None, "engine": VECTOR}, 3, "rsqrt runs on the gpsimd"),
        ({"op0": "square", "operand0": None}, 3, "square does not exist on NeuronCore-v3"),
    )
    for kwargs, generation, text in refusals:
        arguments: dict[str, Any] = {"operand0": 1.0, **kwargs}
        with pytest.raises(NkiValidationError, match=text):
            call("tensor_scalar", x, x, generation=generation, **arguments)


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"operand0": Tile((2, 1), "bfloat16")}, "arithmetic operators must be float32"),
        ({"operand0": Tile((2, 2), "float32")}, r"operand0 must have one element per partition"),
        ({"operand0": None}, "operator add needs operand0"),
        ({"op0": "abs", "operand0": 1.0}, "operand0 must be None or 0, because abs is a unary"),
        ({"operand0": 1.0, "op1": "add"}, "op1 and operand1 must be given together"),
        ({"operand0": 1, "op1": "bitwise_and", "operand1": 1}, "mixes bitvec and arithmetic"),
    ],
)
def test_tensor_scalar_refuses(kwargs: dict[str, Any], text: str) -> None:
    x = Tile((2, 2), "int32")
    with pytest.raises(NkiValidationError, match=text):
        call("tensor_scalar", x, x, **{"op0": "add", **kwargs})


def test_binding_errors_name_the_parameters() -> None:
    x = Tile((2, 2), "float32")
    with pytest.raises(NkiTypeError, match="reciprocal needs an argument data") as caught:
        call("reciprocal", x)
    assert "its parameters are dst, data, name" in str(caught.value)
    with pytest.raises(NkiTypeError, match="reciprocal was given 'mask' which it does not have"):
        call("reciprocal", x, x, mask=None)
    with pytest.raises(NkiTypeError, match="reciprocal was given 'dst' twice"):
        call("reciprocal", x, x, dst=x)
    with pytest.raises(NkiTypeError, match="reciprocal takes 3 arguments but 4 were given"):
        call("reciprocal", x, x, None, None)
    with pytest.raises(NkiTypeError, match="reciprocal data must be a tensor, got float"):
        call("reciprocal", x, 1.0)
    with pytest.raises(NkiTypeError, match="operand0 must be a number or a tensor of one element"):
        call("tensor_scalar", x, x, "add", "1")


# The others


def test_scalar_tensor_tensor() -> None:
    x, y = T([[1.0, 2.0]]), T([[10.0, 20.0]])
    result, _ = run("scalar_tensor_tensor", out(1, 2), x, "add", 1.0, "multiply", y)
    assert values(result) == [[20.0, 60.0]]
    result, _ = run(
        "scalar_tensor_tensor",
        out(1, 2),
        x,
        "subtract",
        1.0,
        "subtract",
        y,
        reverse0=True,
        reverse1=True,
    )
    assert values(result) == [[10.0, 21.0]]
    with pytest.raises(NkiValidationError, match="op0 cannot be bitwise_and"):
        call("scalar_tensor_tensor", x.tile, x.tile, "bitwise_and", 1, "add", y.tile)


def test_reciprocal() -> None:
    result, _ = run("reciprocal", out(1, 4), T([[4.0, -0.5, 0.0, math.inf]]))
    assert values(result) == [[0.25, -2.0, math.inf, 0.0]]
    made = call("reciprocal", Tile((128, 100), "float32"), Tile((128, 100), "float32"))
    assert made.instruction.cost is not None
    assert made.instruction.cost.cycles(made) == 800


def test_scan_is_the_documented_recurrence() -> None:
    a, b = T([[1.0, 2.0, 3.0]]), T([[10.0, 20.0, 30.0]])
    result, _ = run("tensor_tensor_scan", out(1, 3), a, b, 1.0, "multiply", "add")
    assert values(result) == [[11.0, 42.0, 156.0]]
    result, _ = run(
        "tensor_tensor_scan", out(1, 3), a, b, T([[0.0]]), "subtract", "add", reverse0=True
    )
    # reverse0: data0 is the right operand: state - data0
    assert values(result) == [[9.0, 27.0, 54.0]]


@settings(max_examples=30)
@given(a=SMALL, b=SMALL, start=st.integers(-4, 4), r0=st.booleans(), r1=st.booleans())
def test_scan_agrees_with_a_loop(
    a: np.ndarray, b: np.ndarray, start: int, r0: bool, r1: bool
) -> None:
    result, _ = run(
        "tensor_tensor_scan", out(2, 3), T(a), T(b), float(start), "subtract", "subtract", r0, r1
    )
    for lane in range(2):
        state = float(start)
        for i in range(3):
            inner = state - a[lane, i] if r0 else a[lane, i] - state
            state = float(b[lane, i] - inner if r1 else inner - b[lane, i])
            assert float(result["dst"][lane, i]) == state
