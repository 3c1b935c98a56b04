"""Reductions, accumulator registers, and the functions of the Scalar Engine."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nki.errors import NkiValidationError
from nki.isa import enums
from nki.isa.spec import Tile
from nki.isa.state import CoreState
from tests.nki.isa_tools import T, call, out, run, values

CMD = enums.reduce_cmd
SMALL = hnp.arrays(np.float32, (2, 4), elements=st.integers(-64, 64).map(lambda n: n / 4))


def test_tensor_reduce_axes() -> None:
    x = T(np.arange(12).reshape(1, 2, 2, 3))
    assert values(run("tensor_reduce", out(1, 2, 2), "add", x, 3)[0]) == [[[3, 12], [21, 30]]]
    assert values(run("tensor_reduce", out(1, 2), "maximum", x, (2, 3))[0]) == [[5, 11]]
    assert values(run("tensor_reduce", out(1, 1), "add", x, [1, 2, -1], negate=True)[0]) == [[-66]]
    result, _ = run("tensor_reduce", out(1, 2, 1, 1), "minimum", x, (2, 3), keepdims=True)
    assert values(result) == [[[[0]], [[6]]]]


def test_tensor_reduce_on_patterns() -> None:
    x = T([[0b110, 0b011]], "uint8")
    for op, want in (("bitwise_and", 2), ("bitwise_or", 7), ("bitwise_xor", 5)):
        assert values(run("tensor_reduce", out(1, 1, dtype="uint8"), op, x, 1)[0]) == [[want]]


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"axis": 0}, r"axis \(0,\) of shape \(4, 2, 3\) are not the last free dimensions"),
        ({"axis": 1}, r"axis \(1,\) of shape \(4, 2, 3\) are not the last free dimensions"),
        ({"axis": (1, 2)}, "dst has 2 elements per partition, the reduction gives 1"),
        ({"op": "power"}, "tensor_reduce op cannot be power"),
        ({"op": "bitwise_or"}, "dst has data type float32; the bitvec operator"),
    ],
)
def test_tensor_reduce_refuses(kwargs: dict[str, Any], text: str) -> None:
    arguments: dict[str, Any] = {"op": "add", "axis": 2, **kwargs}
    with pytest.raises(NkiValidationError, match=text):
        call("tensor_reduce", Tile((4, 2), "float32"), data=Tile((4, 2, 3), "float32"), **arguments)


def test_partition_reduce() -> None:
    x = T([[1.0, 2.0], [3.0, 5.0]])
    for op, want in (("add", [4, 7]), ("average", [2, 3.5]), ("max", [3, 5])):
        assert values(run("tensor_partition_reduce", out(1, 2), op, x)[0]) == [want]
    bits = T([[6, 1], [3, 1]], "uint16")
    result, _ = run("tensor_partition_reduce", out(1, 2, dtype="uint16"), "bitwise_and", bits)
    assert values(result) == [[2, 1]]
    with pytest.raises(
        NkiValidationError, match=r"dst has shape \(2, 2\), it must be one partition"
    ):
        call("tensor_partition_reduce", x.tile, "add", x.tile)


# Accumulators of the Vector Engine


def test_tensor_scalar_reduce_chains() -> None:
    core, x = CoreState(), T([[1.0, 2.0], [3.0, 4.0]])
    result, _ = run("tensor_scalar_reduce", out(2, 2), x, "multiply", 2.0, "add", core=core)
    assert set(result) == {"dst"}
    res = out(2, 1)
    result, _ = run(
        "tensor_scalar_reduce", out(2, 2), x, "multiply", 1.0, "add", res, core=core,
        reduce_cmd=CMD.reduce,
    )  # fmt: skip
    assert values(result, "reduce_res") == [[9.0], [21.0]]
    result, _ = run(
        "tensor_scalar_reduce", out(2, 2), x, "add", 0.0, "multiply", res, core=core,
        reduce_cmd=CMD.load_reduce, reduce_init=10.0, reduce_res_negate=True,
    )  # fmt: skip
    assert values(result, "reduce_res") == [[-20.0], [-120.0]]
    assert core.accumulators["vector"][:2].tolist() == [20.0, 120.0]


def test_accumulators_belong_to_lanes() -> None:
    core, x = CoreState(), T([[1.0, 2.0]])
    run("tensor_scalar_reduce", out(1, 2), x, "add", 0.0, "add", core=core, lane=32)
    assert core.accumulators["vector"][32] == 3.0
    assert not core.accumulators["vector"][:32].any()
    assert not core.accumulators["scalar"].any()


@pytest.mark.parametrize(
    ("op", "want"),
    [
        ("add", [1, 3, 6]),
        ("subtract", [1, 1, 2]),  # the register is subtracted: 1 - 0, 2 - 1, 3 - 1
        ("multiply", [1, 2, 6]),
        ("max", [1, 2, 3]),
        ("min", [1, 1, 1]),
    ],
)
def test_cumulative(op: str, want: list[float]) -> None:
    core = CoreState()
    result, _ = run(
        "tensor_scalar_cumulative", out(1, 3), T([[0.0, 1.0, 2.0]]), "add", op, 1.0, core=core
    )
    assert values(result) == [want]
    assert core.accumulators["vector"][0] == want[-1]


def test_cumulative_goes_on_and_loads() -> None:
    core, x = CoreState(), T([[1.0, 1.0]])
    args = (x, "multiply", "add", 1.0)
    run("tensor_scalar_cumulative", out(1, 2), *args, core=core)
    result, _ = run("tensor_scalar_cumulative", out(1, 2), *args, core=core, reduce_cmd=CMD.reduce)
    assert values(result) == [[3, 4]]
    result, _ = run(
        "tensor_scalar_cumulative", out(1, 2), *args, T([[10.0]]), CMD.load_reduce, core=core
    )
    assert values(result) == [[11, 12]]


@settings(max_examples=30)
@given(x=SMALL, op=st.sampled_from(["add", "subtract", "multiply", "maximum", "minimum"]))
def test_cumulative_agrees_with_the_pseudocode(x: np.ndarray, op: str) -> None:
    functions: dict[str, Any] = {
        "add": lambda v, r: v + r, "subtract": lambda v, r: v - r,
        "multiply": lambda v, r: v * r, "maximum": max, "minimum": min,
    }  # fmt: skip
    start = {"multiply": 1.0, "maximum": -math.inf, "minimum": math.inf}.get(op, 0.0)
    result, _ = run("tensor_scalar_cumulative", out(2, 4), T(x), "add", op, 0.25)
    for lane in range(2):
        state = start
        for i in range(4):
            state = float(np.float32(functions[op](float(x[lane, i]) + 0.25, state)))
            assert float(result["dst"][lane, i]) == state


@pytest.mark.parametrize(
    ("name", "kwargs", "text"),
    [
        ("tensor_scalar_reduce", {"reduce_cmd": CMD.load_reduce}, "load_reduce needs reduce_init"),
        ("tensor_scalar_reduce", {"reduce_init": 1.0}, "reduce_init is only read with"),
        ("tensor_scalar_reduce", {"reduce_cmd": CMD.idle}, "reduce_cmd cannot be"),
        ("tensor_scalar_reduce", {"reverse0": True}, "reverse0 is documented as not supported"),
    ],
)
def test_accumulator_rules(name: str, kwargs: dict[str, Any], text: str) -> None:
    x = Tile((2, 2), "float32")
    with pytest.raises(NkiValidationError, match=text):
        call(name, x, x, "add", 1.0, "add", **kwargs)


def test_cumulative_refuses_wide_integers() -> None:
    x = Tile((2, 2), "int32")
    with pytest.raises(NkiValidationError, match="has data type int32, allowed: bfloat16"):
        call("tensor_scalar_cumulative", x, x, "add", "add", 1.0)


# Scalar Engine


def test_activation_scales_and_shifts() -> None:
    x, bias = T([[1.0, -2.0], [3.0, -4.0]], "bfloat16"), T([[0.5], [1.0]])
    result, _ = run("activation", out(2, 2), "relu", x, bias, 2.0)
    assert values(result) == [[2.5, 0.0], [7.0, 0.0]]
    result, _ = run("activation", out(2, 2), np.square, x, scale=T([[1.0], [2.0]]))
    assert values(result) == [[1.0, 4.0], [36.0, 64.0]]


def test_activation_accumulates() -> None:
    core, x, res = CoreState(), T([[1.0, 2.0], [3.0, 4.0]]), out(2, 1)

    def step(command: enums.reduce_cmd, result: T | None = None) -> dict[str, np.ndarray]:
        return run(
            "activation", out(2, 2), "copy", x, reduce_op="add", reduce_res=result,
            reduce_cmd=command, core=core,
        )[0]  # fmt: skip

    assert "reduce_res" not in step(CMD.reset_reduce)
    assert values(step(CMD.reduce, res), "reduce_res") == [[6.0], [14.0]]
    assert values(step(CMD.idle, res), "reduce_res") == [[6.0], [14.0]]
    assert values(step(CMD.reset, res), "reduce_res") == [[0.0], [0.0]]
    result, _ = run("activation_reduce", out(2, 2), "square", x, "add", res, core=core)
    assert values(result, "reduce_res") == [[5.0], [25.0]]


def test_reductions_use_the_values_before_the_cast() -> None:
    x = T([[0.25, 0.25, 0.25, 0.25]])
    result, _ = run("activation_reduce", out(1, 4, dtype="int8"), "copy", x, "add", out(1, 1))
    assert values(result) == [[0, 0, 0, 0]]
    assert values(result, "reduce_res") == [[1.0]]


def test_activation_reports_inputs_outside_of_the_range() -> None:
    _, step = run("activation", out(1, 2), "sin", T([[1.0, 9.0]]))
    assert [(f.code, f.text) for f in step.findings] == [
        ("NKI142", "1 of 2 inputs of sin lie outside of its documented range")
    ]


@pytest.mark.parametrize(
    ("kwargs", "generation", "text"),
    [
        ({"bias": 1.0}, 2, "bias must be a tensor of one element per partition on NeuronCore-v2"),
        ({"op": "reciprocal", "bias": Tile((2, 1), "float32")}, 2, "cannot have a bias"),
        ({"op": "prelu"}, 4, "use nisa.activate2 with relu_param"),
        ({"op": "cos"}, 4, "activation op cannot be cos"),
        ({"scale": Tile((2, 1), "bfloat16")}, 4, "scale has data type bfloat16, allowed: float32"),
        ({"bias": Tile((2, 1), "tfloat32")}, 4, "bias has data type tfloat32"),
        ({"reduce_cmd": CMD.reduce}, 4, "reduce_cmd.reduce needs reduce_op"),
        ({"reduce_cmd": CMD.load_reduce}, 4, "reduce_cmd cannot be reduce_cmd.load_reduce"),
        ({"reduce_op": "maximum"}, 4, "reduce_op cannot be maximum"),
    ],
)
def test_activation_refuses(kwargs: dict[str, Any], generation: int, text: str) -> None:
    x = Tile((2, 2), "float32")
    arguments: dict[str, Any] = {"dst": x, "op": "exp", "data": x, **kwargs}
    with pytest.raises(NkiValidationError, match=text):
        call("activation", generation=generation, **arguments)


@pytest.mark.parametrize(
    ("op0", "op1", "r0", "r1", "want"),
    [
        ("multiply", "add", False, False, 7.0),
        ("multiply", "subtract", False, False, 5.0),
        ("multiply", "subtract", False, True, -5.0),
        ("multiply", "bypass", False, False, 6.0),
        ("add", "bypass", False, False, 5.0),
        ("subtract", "bypass", False, False, 1.0),
        ("subtract", "bypass", True, False, -1.0),
        ("bypass", "bypass", False, False, 3.0),
    ],
)
def test_activate2_stages(op0: str, op1: str, r0: bool, r1: bool, want: float) -> None:
    args = ("copy", T([[3.0]]), 2.0, 1.0, op0, op1)
    result, _ = run("activate2", out(1, 1), *args, reverse0=r0, reverse1=r1)
    assert values(result) == [[want]]


def test_activate2_reduces_with_five_operators() -> None:
    wants = {"add": -2, "maximum": 3, "minimum": -4, "abs_max": -4, "abs_min": -1}
    for op, want in wants.items():
        result, _ = run(
            "activate2", out(1, 3), "copy", T([[3.0, -1.0, -4.0]]), 0.0, 0.0, "bypass", "bypass",
            reduce_op=op, reduce_res=out(1, 1), reduce_cmd=CMD.reset_reduce,
        )  # fmt: skip
        assert values(result, "reduce_res") == [[want]]


def test_activate2_refuses() -> None:
    x = Tile((2, 2), "float32")
    with pytest.raises(NkiValidationError, match="activate2 does not exist on NeuronCore-v3") as e:
        call("activate2", x, "copy", x, 1.0, 1.0, "multiply", "add", generation=3)
    assert e.value.code == "NKI112"
    assert "trn3" in e.value.remedy
    with pytest.raises(NkiValidationError, match=r"\(op0, op1\) = \(add, add\)"):
        call("activate2", x, "copy", x, 1.0, 1.0, "add", "add")
    with pytest.raises(NkiValidationError, match="need an operator to reverse"):
        call("activate2", x, "copy", x, 1.0, 1.0, "add", "bypass", reverse1=True)
    column = Tile((2, 1), "bfloat16"), Tile((2, 1), "float32")
    with pytest.raises(NkiValidationError, match="imm0 and imm1 have different data types"):
        call("activate2", x, "copy", x, *column, "multiply", "add")


def test_exponential() -> None:
    core, x = CoreState(), T([[1.0, 2.0], [0.0, -math.inf]])
    result, _ = run(
        "exponential", out(2, 2), x, T([[2.0], [0.0]]), out(2, 1), CMD.reset_reduce, core=core
    )
    e = math.exp(-1)
    assert np.allclose(result["dst"], np.array([[e, 1], [1, 0]]), rtol=2**-23)
    assert np.allclose(result["reduce_res"], np.array([[1 + e], [1]]), rtol=2**-23)
    result, _ = run(
        "exponential", out(2, 2), x, 0.0, out(2, 1), CMD.load_reduce, 100.0, core=CoreState()
    )
    assert result["reduce_res"][1, 0] == 101.0
    with pytest.raises(NkiValidationError, match="dst has data type uint32"):
        call("exponential", Tile((2, 2), "uint32"), x.tile)
