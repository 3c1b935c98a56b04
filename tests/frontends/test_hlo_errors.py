"""What is refused, by which code, naming which instruction, with which remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from neuronxcc.frontends.hlo import HloError, import_hlo
from neuronxcc.frontends.hlo import importer as importer_module
from neuronxcc.frontends.hlo.schema import message
from neuronxcc.frontends.model import load_model
from neuronxcc.options import parse
from tests.frontends.modules import Computation, module, scalar, shape, tuple_shape


def entry() -> Computation:
    return Computation("main", 1)


def refused(content: bytes) -> HloError:
    with pytest.raises(HloError) as caught:
        import_hlo(content)
    return caught.value


def unary(opcode: str, type_: str = "f32[4]", **fields: Any) -> bytes:
    main = entry()
    main.add(opcode, type_, main.parameter(type_), **fields)
    return module(main)


def dynamic() -> bytes:
    main = entry()
    main.parameter(shape("f32[4,3]", (True, False)))
    return module(main)


def bits(algorithm: int) -> bytes:
    main = entry()
    state = main.parameter("u64[2]")
    result = tuple_shape(shape("u64[2]"), shape("u32[3]"))
    main.add("rng-bit-generator", result, state, rng_algorithm=algorithm)
    return module(main)


REFUSED: dict[str, tuple[Callable[[], bytes], str, str]] = {
    "unknown operator": (lambda: unary("fft"), "NCC_EUOC002", "operator was used: fft"),
    "triangular solve": (
        lambda: unary("triangular-solve"), "NCC_EUOC002", "multiply by an inverse instead"
    ),
    "dynamic shape": (
        dynamic, "NCC_EMOD025",
        "instruction 'parameter.1000' has shape 'f32[<=4,3]'. The Neuron compiler requires all",
    ),
    "FNUZ": (lambda: unary("abs", "f8e4m3fnuz[4]"), "NCC_EVRF005", "f8e4m3fnuz"),
    "float4": (lambda: unary("abs", "f4e2m1fn[4]"), "NCC_ESPP004", "f4e2m1fn"),
    "float8_e3m4": (lambda: unary("abs", "f8e3m4[4]"), "NCC_ESPP047", "f8e3m4"),
    "random algorithm": (lambda: bits(1), "NCC_EVRF006", "other than RNG_DEFAULT"),
    "custom call": (
        lambda: unary("custom-call", custom_call_target="lapack_sgesdd"), "NCC_EHCA005",
        "a target name that is not recognized: 'lapack_sgesdd'",
    ),
    "wrong shape": (
        lambda: _binary("add", "f32[4]", "f32[5]"), "NCC_EVRF064", "HLO verification failed"
    ),
    "wrong result": (
        lambda: _declared("f32[5]"), "NCC_EVRF064", "the result is f32[4], the module says f32[5]"
    ),
    "no module": (lambda: b"hello world", "NCC_EHLO001", "no HloModuleProto"),
    "nothing": (lambda: b"", "NCC_EHLO001", "(0 bytes)"),
}  # fmt: skip


def _binary(opcode: str, lhs: str, rhs: str) -> bytes:
    main = entry()
    main.add(opcode, lhs, main.parameter(lhs), main.parameter(rhs))
    return module(main)


def _declared(type_: str) -> bytes:
    main = entry()
    main.add("negate", type_, main.parameter("f32[4]"))
    return module(main)


@pytest.mark.parametrize("name", REFUSED)
def test_code_and_text(name: str) -> None:
    make, code, text = REFUSED[name]
    error = refused(make())
    assert error.code == code
    assert str(error).startswith(f"[{code}] ")
    assert text in str(error)
    assert "\n  remedy: " in str(error)


def test_the_line_of_the_user_is_named() -> None:
    error = refused(unary("fft"))
    assert error.where is not None
    assert str(error.where) == "instruction 'fft.1001' (fft) at model.py:1001"


# ---- targets ----------------------------------------------------------------------------------


def _dot(dtype: str) -> bytes:
    main = entry()
    dims = message("Dot")(lhs_contracting_dimensions=[1], rhs_contracting_dimensions=[0])
    x, y = main.parameter(f"{dtype}[4,4]"), main.parameter(f"{dtype}[4,4]")
    main.add("dot", f"{dtype}[4,4]", x, y, dot_dimension_numbers=dims)
    return module(main)


def test_a_lossy_product_is_a_warning_until_it_is_forbidden() -> None:
    (warning,) = load_model(_dot("s32"), parse("--target trn2", environ={})).warnings
    assert warning.startswith("[NCC_EVRF035] ")
    assert "instruction 'dot.1002' (dot) at model.py:1002" in warning
    assert not load_model(_dot("s32"), parse("--target trn1", environ={})).warnings
    options = parse("--target trn2 --implicit-integer-downcast=scatter,pow", environ={})
    with pytest.raises(HloError, match="NCC_EVRF035"):
        load_model(_dot("s32"), options)


@pytest.mark.parametrize("dtype", ["f64", "c128"])
def test_no_target_has_64_bit_floats(dtype: str) -> None:
    with pytest.raises(HloError, match="NCC_ESPP004"):
        load_model(unary("negate", f"{dtype}[4]"), parse("", environ={}))


def test_the_ocp_float8_needs_trn3_or_an_option() -> None:
    content = unary("copy", "f8e4m3fn[4]")
    load_model(content, parse("--target trn3", environ={}))
    with pytest.raises(HloError, match=r"NCC_EVRF051.*not supported on TRN1/TRN2"):
        load_model(content, parse("--target trn2", environ={}))
    unsafe = "--target trn2 --experimental-unsafe-fp8e4m3fn-as-fp8e4m3"
    load_model(content, parse(unsafe, environ={}))


_OLD, _NEW = ("trn1", "trn1n", "inf2", "trn2"), ("trn3",)
#: Element type -> targets that take it, and the code on others.
TYPES: dict[str, tuple[tuple[str, ...], str]] = {
    "f8e5m2": (_OLD + _NEW, ""), "f8e4m3": (_OLD + _NEW, ""), "f8e4m3fn": (_NEW, "NCC_EVRF051"),
    "f8e8m0fnu": (_OLD + _NEW, ""), "f8e3m4": ((), "NCC_ESPP047"),
    "f8e4m3fnuz": ((), "NCC_EVRF005"), "f8e5m2fnuz": ((), "NCC_EVRF005"),
    "f8e4m3b11fnuz": ((), "NCC_EVRF005"), "f4e2m1fn": ((), "NCC_ESPP004"),
    "s4": ((), "NCC_ESPP004"), "u4": ((), "NCC_ESPP004"), "f64": ((), "NCC_ESPP004"),
    "c128": ((), "NCC_ESPP004"), "bf16": (_OLD + _NEW, ""), "f16": (_OLD + _NEW, ""),
    "s8": (_OLD + _NEW, ""), "u8": (_OLD + _NEW, ""), "s16": (_OLD + _NEW, ""),
    "s64": (_OLD + _NEW, ""), "u64": (_OLD + _NEW, ""), "c64": (_OLD + _NEW, ""),
}  # fmt: skip


@pytest.mark.parametrize("dtype", TYPES)
def test_types_by_target(dtype: str) -> None:
    allowed, code = TYPES[dtype]
    content = unary("reshape", f"{dtype}[4]")
    for target in _OLD + _NEW:
        options = parse(f"--target={target}", environ={})
        if target in allowed:
            assert not load_model(content, options).warnings
        else:
            with pytest.raises(HloError, match=code):
                load_model(content, options)


# ---- modules that contradict themselves ---------------------------------------------------------


def test_computations_may_not_call_each_other_in_a_circle() -> None:
    main, other = entry(), Computation("other", 2)
    main.add("call", "f32[]", main.parameter("f32[]"), called_computation_ids=[2])
    other.add("call", "f32[]", other.parameter("f32[]"), called_computation_ids=[1])
    assert "calls itself" in str(refused(module(main, other)))


def test_a_missing_computation_is_named() -> None:
    main = entry()
    main.add("call", "f32[]", main.parameter("f32[]"), called_computation_ids=[7])
    assert "computation 'main' calls number 7, which is missing" in str(refused(module(main)))


def test_operands_come_before_their_users() -> None:
    main = entry()
    main.add("negate", "f32[]", 1001)
    main.parameter("f32[]")
    assert "operand 1001 does not come before its user" in str(refused(module(main)))


def test_calls_that_double_at_every_level_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """2**60 instructions out of a few hundred bytes."""
    monkeypatch.setattr(importer_module, "MAX_INSTRUCTIONS", 10_000)
    computations = [scalar("add", number=2)]
    for level in range(60):
        made = Computation(f"level{level}", 3 + level)
        x, y = made.parameter("f32[]"), made.parameter("f32[]")
        below = computations[-1].proto.id
        first = made.add("call", "f32[]", x, y, called_computation_ids=[below])
        second = made.add("call", "f32[]", first, y, called_computation_ids=[below])
        made.add("call", "f32[]", second, first, called_computation_ids=[below])
        computations.append(made)
    main = entry()
    x, y = main.parameter("f32[]"), main.parameter("f32[]")
    main.add("call", "f32[]", x, y, called_computation_ids=[computations[-1].proto.id])
    error = refused(module(main, *computations))
    assert error.code == "NCC_EVRF007"
    assert "number of instructions generated exceeds the limit of 10000" in str(error)


def test_a_literal_of_another_size_is_refused() -> None:
    main = entry()
    literal = message("Literal")(shape=shape("f32[1000000]"), f32s=[1.0])
    main.add("constant", "f32[1000000]", literal=literal)
    assert "a literal of type f32[1000000] holds 1 elements" in str(refused(module(main)))
