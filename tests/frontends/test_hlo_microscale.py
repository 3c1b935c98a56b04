"""Microscaling: QuantizeMX and `__op$block_scaled_dot` against the OCP specification in NumPy."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuronxcc.frontends.hlo import HloError, import_hlo
from neuronxcc.frontends.model import load_model
from neuronxcc.ir.reference import evaluate
from neuronxcc.options import parse
from tests.frontends.hlo_text import natively
from tests.frontends.modules import custom, shape, tuple_shape

NAMES = {"float8_e5m2": ml_dtypes.float8_e5m2, "float8_e4m3fn": ml_dtypes.float8_e4m3fn}


def quantized(x: np.ndarray, name: str, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes and scale bytes, one group of 32 after the other."""
    largest, exponent = {"float8_e5m2": (57344.0, 15), "float8_e4m3fn": (448.0, 8)}[name]
    rows = np.moveaxis(x.astype(np.float64), dim, -1)
    codes = np.empty(rows.shape, np.uint8)
    scales = np.empty((*rows.shape[:-1], -(-rows.shape[-1] // 32)), np.uint8)
    for index in np.ndindex(*scales.shape):
        part = (*index[:-1], slice(32 * index[-1], 32 * index[-1] + 32))
        peak = float(np.abs(rows[part]).max())
        power = max(int(np.frexp(peak)[1]) - 1 - exponent, -127) if peak else -127
        scales[index] = power + 127
        scaled = np.clip(rows[part] / 2.0**power, -largest, largest)
        codes[part] = scaled.astype(np.float32).astype(NAMES[name]).view(np.uint8)
    return np.moveaxis(codes, -1, dim), np.moveaxis(scales, -1, dim)


def packed(codes: np.ndarray, dim: int) -> np.ndarray:
    last = np.ascontiguousarray(np.moveaxis(codes, dim, -1))
    return np.moveaxis(last.view("<u4"), -1, dim)


def quantize_module(x: str, data: Any, scale: Any, **config: Any) -> bytes:
    given_ = {"dtype": "float8_e5m2", "dim": -1, "block_size": 32, "scale_method": "EMAX", **config}
    return custom(
        "QuantizeMX", [x], tuple_shape(shape(data), shape(scale)), json.dumps(given_).encode()
    )


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(sorted(NAMES)), st.booleans(), st.integers(1, 20), st.integers(-40, 40))
def test_quantizing(name: str, last: bool, words: int, power: int) -> None:
    extent = 4 * words
    dims = (3, extent) if last else (extent, 3)
    rng = np.random.default_rng(words)
    x = (rng.standard_normal(dims) * 2.0**power).astype(ml_dtypes.bfloat16)
    x[0, 0] = 0
    dim = 1 if last else 0
    codes, scales = quantized(x.astype(np.float32), name, dim)
    words_shape = tuple(n // 4 if d == dim else n for d, n in enumerate(dims))
    content = quantize_module(
        f"bf16[{dims[0]},{dims[1]}]", f"u32[{words_shape[0]},{words_shape[1]}]",
        f"u8[{scales.shape[0]},{scales.shape[1]}]", dtype=name, dim=dim - 2,
    )  # fmt: skip
    got, got_scales = evaluate(import_hlo(content).graph, [x])
    np.testing.assert_array_equal(got_scales, scales)
    np.testing.assert_array_equal(got, packed(codes, dim))


@pytest.mark.parametrize("name", sorted(NAMES))
def test_the_program_gives_what_the_reference_gives(name: str) -> None:
    rng = np.random.default_rng(9)
    x = rng.standard_normal((3, 64)).astype(ml_dtypes.bfloat16)
    y = rng.standard_normal((5, 64)).astype(ml_dtypes.bfloat16)
    made = []
    for side in (x, y):
        n = len(side)
        content = quantize_module(f"bf16[{n},64]", f"u32[{n},16]", f"u8[{n},2]", dtype=name)
        imported = import_hlo(content)
        expected = evaluate(imported.graph, [side])
        for got, want in zip(natively(imported, [side]), expected, strict=True):
            np.testing.assert_array_equal(got, want)
        made.append(expected)
    imported = import_hlo(dot_module({"element_dtype": name}))
    given_ = [made[0][0], made[1][0], made[0][1], made[1][1]]
    (expected_dot,) = evaluate(imported.graph, given_)
    np.testing.assert_allclose(natively(imported, given_)[0], expected_dot, rtol=1e-5, atol=1e-5)


def test_a_group_with_nan_is_all_nan() -> None:
    x = np.ones((1, 64), ml_dtypes.bfloat16)
    x[0, 40] = np.nan
    content = quantize_module("bf16[1,64]", "u32[1,16]", "u8[1,2]", dtype="float8_e4m3fn")
    data, scales = evaluate(import_hlo(content).graph, [x])
    assert scales.tolist() == [[127 - 8, 255]]
    values = np.ascontiguousarray(data).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    assert (values[0, :32] == 256).all()
    assert np.isnan(values[0, 32:]).all()


def dot_module(config: Any, operands: list[str] | None = None, result: str = "f32[3,5]") -> bytes:
    text = (
        config if isinstance(config, bytes) else json.dumps({"scaled_dot_backend_config": config})
    )
    types = operands or ["u32[3,16]", "u32[5,16]", "u8[3,2]", "u8[5,2]"]
    given_ = text if isinstance(text, bytes) else text.encode()
    return custom("__op$block_scaled_dot", types, result, given_)


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("name", sorted(NAMES))
def test_products(name: str, batch: tuple[int, ...]) -> None:
    rng = np.random.default_rng(7)
    x, y = (rng.standard_normal((*batch, n, 64)).astype(np.float32) for n in (3, 5))
    sides = [quantized(side, name, side.ndim - 1) for side in (x, y)]
    values = [
        codes.view(NAMES[name]).astype(np.float64)
        * np.repeat(2.0 ** (s.astype(float) - 127), 32, -1)
        for codes, s in sides
    ]
    expected = values[0] @ np.swapaxes(values[1], -1, -2)
    lead = "".join(f"{n}," for n in batch)
    config: dict[str, Any] = {"element_dtype": name}
    if batch:
        config |= {"lhs_batch_dimensions": [0], "rhs_batch_dimensions": [0]}
        config |= {"lhs_contracting_dimensions": [2], "rhs_contracting_dimensions": [2]}
    content = dot_module(
        config, [f"u32[{lead}3,16]", f"u32[{lead}5,16]", f"u8[{lead}3,2]", f"u8[{lead}5,2]"],
        f"f32[{lead}3,5]",
    )  # fmt: skip
    data = [packed(codes, codes.ndim - 1) for codes, _ in sides]
    (got,) = evaluate(import_hlo(content).graph, [*data, *(scales for _, scales in sides)])
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-4)


ROW = ["u32[3,16]", "u32[5,16]", "u8[3,2]", "u8[5,2]"]
RESULT = tuple_shape(shape("u32[4,16]"), shape("u8[4,2]"))
QUANTIZE = ("bf16[4,64]", "u32[4,16]", "u8[4,2]")
REFUSED: dict[str, tuple[bytes, str]] = {
    "036": (
        custom("QuantizeMX", ["bf16[4,64]"], RESULT, b"{"),
        "invalid backend_config JSON",
    ),
    "037": (
        custom(
            "QuantizeMX", ["bf16[4,64]"] * 2, RESULT, b"{}"
        ),
        "operand count must be exactly 1, not 2",
    ),
    "038": (quantize_module("bf16[2,4,64]", "u32[2,4,16]", "u8[2,4,2]", dim=0), "dim 0 is invalid"),
    "039": (quantize_module(*QUANTIZE, block_size=16), "block_size must be 32, not 16"),
    "040": (quantize_module(*QUANTIZE, scale_method="RMS"), "unsupported: 'RMS'"),
    "041": (quantize_module("f32[4,64]", "u32[4,16]", "u8[4,2]"), "unsupported: f32"),
    "042": (quantize_module("bf16[4,64]", "u32[4,64]", "u8[4,2]"), "u32[4,16] is right"),
    "043": (dot_module({}, ROW[:3]), "exactly 4 operands, not 3"),
    "044": (dot_module({}, ["bf16[3,16]", *ROW[1:]]), "LHS input type is unsupported: bf16"),
    "045": (dot_module({}, result="f16[3,5]"), "output type is unsupported: f16[3,5]"),
    "046": (dot_module({}, ["u32[16]", *ROW[1:]]), "LHS tensor must have rank >= 2, not u32[16]"),
    "047": (dot_module({}, [ROW[0], "u32[16]", *ROW[2:]]), "RHS tensor must have rank >= 2"),
    "048": (
        dot_module({
            "lhs_batch_dimensions": [0], "rhs_batch_dimensions": [0],
            "lhs_contracting_dimensions": [1], "rhs_contracting_dimensions": [1],
        }),
        "batch dimension mismatch",
    ),
    "049": (dot_module(b"{"), "could not parse backend_config"),
    "050": (
        dot_module({}, ["u32[3,8]", ROW[1], "u8[3,1]", ROW[3]]), "sizes mismatch: [8] and [16]"
    ),
    "053": (
        dot_module({"lhs_batch_dimensions": [1], "rhs_batch_dimensions": [1]}),
        "overlaps with batch dimension",
    ),
    "054": (dot_module({"lhs_batch_dimensions": [2]}), "batch dimension index out of bounds: [2]"),
    "055": (
        dot_module({"lhs_contracting_dimensions": [2]}), "contracting dimension index out of bounds"
    ),
    "057": (custom("QuantizeMX", ["bf16[4,64]"], "u32[4,16]", b"{}"), "exactly 2 outputs"),
    "058": (quantize_module("bf16[4,30]", "u32[4,7]", "u8[4,1]"), "must be divisible by 4"),
}  # fmt: skip


@pytest.mark.parametrize("number", REFUSED)
def test_what_is_refused(number: str) -> None:
    content, text = REFUSED[number]
    with pytest.raises(HloError) as caught:
        import_hlo(content)
    assert caught.value.code == f"NCC_EVRF{number}"
    assert text in str(caught.value)
    assert "model.py" in str(caught.value)


@pytest.mark.parametrize("text", [b"", b"None", b"{}"])
def test_without_a_config_the_last_dimensions_are_meant(text: bytes) -> None:
    model = load_model(dot_module(text), parse("--target=trn3", environ={}))
    (warning,) = model.warnings
    assert warning.startswith("element_dtype is not given and taken as float8_e4m3fn\n  at instr")


@pytest.mark.parametrize("flags", ["--target=trn2", "--target=trn1"])
@pytest.mark.parametrize("unsafe", ["", " --experimental-unsafe-fp8e4m3fn-as-fp8e4m3"])
def test_the_ocp_type_needs_trn3_here_whatever_the_options(flags: str, unsafe: str) -> None:
    content = quantize_module(*QUANTIZE, dtype="float8_e4m3fn")
    with pytest.raises(HloError, match=r"NCC_EVRF051.*QuantizeMX"):
        load_model(content, parse(flags + unsafe, environ={}))
    load_model(content, parse("--target=trn3", environ={}))
    load_model(quantize_module(*QUANTIZE), parse(flags, environ={}))
