"""Every instruction of XLA: compared with XLA on the CPU, or refused with a code and a reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from neuronxcc.frontends.hlo import HloError, import_hlo
from neuronxcc.frontends.hlo.importer import HANDLERS
from neuronxcc.frontends.hlo.refused import REFUSED
from neuronxcc.frontends.model import load_model
from neuronxcc.ir.reference import evaluate
from neuronxcc.options import parse
from tests.frontends.hlo_text import by_xla, natively, proto_of, text_of, type_text
from tests.frontends.modules import Computation, module


def _words(text: str) -> list[str]:
    return text.split()


#: `xla/hlo/ir/hlo_opcode.h` of 2026, without the start and done of collectives.
OPCODES = frozenset(
    _words(
        """
    abs acos acosh add add-dependency after-all all-gather all-reduce all-to-all and asin asinh
    async-done async-start async-update atan atan2 atanh batch-norm-grad batch-norm-inference
    batch-norm-training bitcast bitcast-convert broadcast call cbrt ceil cholesky clamp
    count-leading-zeros collective-broadcast collective-permute collective-reduce compare complex
    concatenate conditional constant convert convolution copy copy-done copy-start cosine cosh
    custom-call divide domain dot dynamic-reshape dynamic-slice dynamic-update-slice erf
    exponential exponential-minus-one fft floor fusion gather get-dimension-size get-tuple-element
    imag infeed iota is-finite log log-plus-one logistic map maximum minimum mulhi multiply negate
    not opt-barrier or outfeed pad parameter partition-id popcnt power ragged-all-to-all
    ragged-dot real recv recv-done reduce reduce-precision reduce-scatter reduce-window remainder
    replica-id reshape reverse rng rng-bit-generator rng-get-and-update-state round-nearest-afz
    round-nearest-even rsqrt scaled-dot scan scatter select select-and-scatter send send-done
    set-dimension-size shift-left shift-right-arithmetic shift-right-logical shuffle sign sine
    sinh slice sort sqrt stochastic-convert subtract tan tanh topk transpose triangular-solve
    tuple while xor
    """
    )
)
_RNG = np.random.default_rng(11)
X = (_RNG.standard_normal((3, 4)) * 2).astype(np.float32)
Y = _RNG.standard_normal((3, 4)).astype(np.float32)
U = _RNG.random((3, 4), np.float32) * 0.9 + 0.05
I = _RNG.integers(-99, 99, (3, 4)).astype(np.int32)  # noqa: E741 - integers
J = _RNG.integers(1, 31, (3, 4)).astype(np.int32)
WIDE = _RNG.integers(-(2**63), 2**63, (3, 4))
P = X > 0
C = (X + 1j * Y).astype(np.complex64)
D = (U + 0.5j * Y).astype(np.complex64)
IMAGE = _RNG.standard_normal((2, 6, 5, 3)).astype(np.float32)
FEATURES = [_RNG.random(3, np.float32) + 0.5 for _ in range(4)]

_POSITIVE = frozenset({"log", "rsqrt", "sqrt", "log-plus-one"})
_WITHIN = frozenset({"acos", "asin", "atanh"})
UNARY = _words(
    """
    abs acos acosh asin asinh atanh cbrt ceil cosine cosh erf exponential exponential-minus-one
    floor log log-plus-one logistic negate round-nearest-afz round-nearest-even rsqrt sign sine
    sinh sqrt tan tanh real imag
    """
)
INTEGER_UNARY = ["abs", "negate", "sign", "not", "popcnt", "count-leading-zeros"]
BINARY = ["add", "subtract", "multiply", "divide", "remainder", "maximum", "minimum", "atan2"]
INTEGER_BINARY = _words(
    """
    add subtract multiply divide remainder maximum minimum and or xor shift-left
    shift-right-arithmetic shift-right-logical power
    """
)
COMPLEX_UNARY = _words(
    """
    abs exponential sine cosine negate log log-plus-one exponential-minus-one sqrt rsqrt tan tanh
    logistic sign real imag
    """
)

Case = tuple[str, list[np.ndarray]]


def _argument(op: str) -> np.ndarray:
    if op == "acosh":
        return U + 1
    return U if op in _POSITIVE | _WITHIN else X


def _complex_result(op: str) -> str:
    return "f32" if op in {"abs", "real", "imag"} else "c64"


CASES: dict[str, Case] = {
    **{op: (f"r = f32[3,4] {op}(p0)", [_argument(op)]) for op in UNARY},
    **{f"{op} of integers": (f"r = s32[3,4] {op}(p0)", [I]) for op in INTEGER_UNARY},
    **{op: (f"r = f32[3,4] {op}(p0, p1)", [X, Y]) for op in BINARY},
    **{f"{op} of integers": (f"r = s32[3,4] {op}(p0, p1)", [I, J]) for op in INTEGER_BINARY},
    **{
        f"{op} of complex numbers": (f"r = {_complex_result(op)}[3,4] {op}(p0)", [D])
        for op in COMPLEX_UNARY
    },
    **{
        f"{op} of complex numbers": (f"r = c64[3,4] {op}(p0, p1)", [C, D])
        for op in ("add", "subtract", "multiply", "divide", "power")
    },
    "movement of complex numbers": (
        """a = c64[4,3] transpose(p0), dimensions={1,0}
        b = c64[2,3] slice(a), slice={[1:3], [0:3]}
        c = c64[2,3] reverse(b), dimensions={0}
        z = c64[] constant((1, 2))
        d = c64[4,3] pad(c, z), padding=1_1x0_0
        e = c64[8,3] concatenate(a, d), dimensions={0}
        i = s32[] constant(1)
        f = c64[2,2] dynamic-slice(e, i, i), dynamic_slice_sizes={2,2}
        g = c64[8,3] dynamic-update-slice(e, f, i, i)
        r = c64[24] reshape(g)""",
        [C],
    ),
    "dot of complex numbers": (
        "r = c64[3,3] dot(p0, p1), lhs_contracting_dims={1}, rhs_contracting_dims={1}", [C, D]
    ),
    "select of complex numbers": (
        """q = pred[3,4] compare(p0, p1), direction=NE
        r = c64[3,4] select(q, p1, p0)""",
        [C, D],
    ),
    "new complex numbers": (
        """i = c64[3,4] iota(), iota_dimension=1
        z = c64[] constant((1, -2))
        b = c64[3,4] broadcast(z), dimensions={}
        s = c64[3,4] add(i, b)
        r = c64[3,4] multiply(s, p0)""",
        [C],
    ),
    "power": ("r = f32[3,4] power(p0, p1)", [U, Y]),
    "not of truth values": ("r = pred[3,4] not(p0)", [P]),
    "and of truth values": ("r = pred[3,4] and(p0, p0)", [P]),
    "mulhi": ("r = s32[3,4] mulhi(p0, p1)", [I * 12345678, J * 98765432]),
    "mulhi, unsigned": (
        "r = u32[3,4] mulhi(p0, p0)", [(I.astype(np.int64) * 40000000).astype(np.uint32)]
    ),
    "mulhi of 64 bits": ("r = s64[3,4] mulhi(p0, p1)", [WIDE, WIDE[::-1]]),
    "mulhi of 64 bits, unsigned": ("r = u64[3,4] mulhi(p0, p0)", [WIDE.astype(np.uint64)]),
    "is-finite": ("r = pred[3,4] is-finite(p0)", [np.where(P, np.inf, X).astype(np.float32)]),
    "complex": ("r = c64[3,4] complex(p0, p1)", [X, Y]),
    "compare": (
        "\n".join(
            [*(f"c{d} = pred[3,4] compare(p0, p1), direction={d}" for d in
               ("EQ", "NE", "LT", "LE", "GT", "GE")),
             f"r = ({', '.join(['pred[3,4]'] * 6)}) tuple(cEQ, cNE, cLT, cLE, cGT, cGE)"]
        ),
        [I % 3, J % 3],
    ),
    "compare, total order": (
        "r = pred[3,4] compare(p0, p1), direction=LT, type=TOTALORDER",
        [np.where(P, np.nan, X * 0).astype(np.float32), Y * -0.0],
    ),
    "select": ("r = f32[3,4] select(p0, p1, p2)", [P, X, Y]),
    "clamp": ("r = f32[3,4] clamp(p0, p1, p2)", [U - 1, X, U]),
    "clamp by scalars": (
        "r = f32[3,4] clamp(p0, p1, p2)", [np.array(-1, np.float32), X, np.array(1, np.float32)]
    ),
    "convert": (
        """a = s32[3,4] convert(p0)
        b = bf16[3,4] convert(p0)
        c = f32[3,4] convert(b)
        d = u8[3,4] convert(a)
        e = pred[3,4] convert(p0)
        r = (s32[3,4], bf16[3,4], f32[3,4], u8[3,4], pred[3,4]) tuple(a, b, c, d, e)""",
        [np.abs(X)],
    ),
    "bitcast-convert": (
        """a = u32[3,4] bitcast-convert(p0)
        b = u16[3,4,2] bitcast-convert(p0)
        c = f32[3,4] bitcast-convert(b)
        r = (u32[3,4], u16[3,4,2], f32[3,4]) tuple(a, b, c)""",
        [X],
    ),
    "reduce-precision": (
        "r = f32[3,4] reduce-precision(p0), exponent_bits=5, mantissa_bits=7", [X]
    ),
    "constant": ("r = f32[2,2] constant({{1, 2}, {3, nan}})", []),
    "iota": ("r = s32[3,4] iota(), iota_dimension=1", []),
    "broadcast": ("r = f32[3,2,4] broadcast(p0), dimensions={0,2}", [X]),
    "broadcast, turned": ("r = f32[4,2,3] broadcast(p0), dimensions={2,0}", [X]),
    "reshape": ("r = f32[2,6] reshape(p0)", [X]),
    "bitcast": ("r = f32[12] bitcast(p0)", [X]),
    "transpose": ("r = f32[4,3] transpose(p0), dimensions={1,0}", [X]),
    "reverse": ("r = f32[3,4] reverse(p0), dimensions={0,1}", [X]),
    "slice": ("r = f32[2,2] slice(p0), slice={[1:3], [0:4:2]}", [X]),
    "pad": ("r = f32[4,9] pad(p0, p1), padding=2_-1x1_1_1", [X, np.array(7, np.float32)]),
    "concatenate": ("r = f32[6,4] concatenate(p0, p1), dimensions={0}", [X, Y]),
    "dynamic-slice": (
        "r = f32[2,2] dynamic-slice(p0, p1, p2), dynamic_slice_sizes={2,2}",
        [X, np.array(5, np.int32), np.array(-1, np.int32)],
    ),
    "dynamic-update-slice": (
        """u = f32[2,2] slice(p0), slice={[0:2], [0:2]}
        r = f32[3,4] dynamic-update-slice(p0, u, p1, p1)""",
        [X, np.array(2, np.int32)],
    ),
    "gather": (
        ("r = f32[5,4] gather(p0, p1), offset_dims={1}, collapsed_slice_dims={0}, "
         "start_index_map={0}, index_vector_dim=1, slice_sizes={1,4}"),
        [X, np.array([2, 0, 9, -3, 1], np.int32)],
    ),
    "scatter": (
        ("r = f32[3,4] scatter(p0, p1, p2), to_apply=add, update_window_dims={1}, "
         "inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1"),
        [X, np.array([2, 0, 9, 2], np.int32), np.ones((4, 4), np.float32)],
    ),
    "tuple and get-tuple-element": (
        """t = (f32[3,4], s32[3,4]) tuple(p0, p1)
        r = s32[3,4] get-tuple-element(t), index=1""",
        [X, I],
    ),
    "copy": ("r = f32[3,4] copy(p0)", [X]),
    "opt-barrier": (
        """t = (f32[3,4], f32[3,4]) tuple(p0, p1)
        b = (f32[3,4], f32[3,4]) opt-barrier(t)
        r = f32[3,4] get-tuple-element(b), index=1""",
        [X, Y],
    ),
    "after-all and add-dependency": (
        """t = token[] after-all()
        r = f32[3,4] add-dependency(p0, t)""",
        [X],
    ),
    "get-dimension-size": ("r = s32[] get-dimension-size(p0), dimensions={1}", [X]),
    "reduce": (
        """z = f32[] constant(0)
        r = f32[4] reduce(p0, z), dimensions={0}, to_apply=add""",
        [X],
    ),
    "reduce-window": (
        """z = f32[] constant(-inf)
        r = f32[2,3,3,3] reduce-window(p0, z), window={size=1x3x2x1 stride=1x2x2x1
        pad=0_0x1_0x0_1x0_0}, to_apply=max""".replace("\n        pad", " pad"),
        [IMAGE],
    ),
    "select-and-scatter": (
        """z = f32[] constant(0)
        m = f32[] constant(-inf)
        w = f32[2,3,2,3] reduce-window(p0, m), window={size=1x2x2x1 stride=1x2x2x1}, to_apply=max
        r = f32[2,6,5,3] select-and-scatter(p0, w, z), window={size=1x2x2x1 stride=1x2x2x1}, \
select=ge, scatter=add""",
        [IMAGE],
    ),
    "map": ("r = f32[3,4] map(p0, p1), dimensions={0,1}, to_apply=max", [X, Y]),
    "sort": ("r = f32[3,4] sort(p0), dimensions={1}, to_apply=lt", [X]),
    "topk": ("r = (f32[3,2], s32[3,2]) topk(p0), k=2, largest=true", [X]),
    "dot": (
        "r = f32[3,3] dot(p0, p1), lhs_contracting_dims={1}, rhs_contracting_dims={1}", [X, Y]
    ),
    "convolution": (
        ("r = f32[2,4,3,4] convolution(p0, p1), window={size=3x2 stride=1x2 pad=0_0x0_1}, "
         "dim_labels=b01f_01io->b01f"),
        [IMAGE, _RNG.standard_normal((3, 2, 3, 4)).astype(np.float32)],
    ),
    "batch-norm-inference": (
        "r = f32[2,6,5,3] batch-norm-inference(p0, p1, p2, p3, p4), epsilon=0.01, feature_index=3",
        [IMAGE, *FEATURES],
    ),
    "batch-norm-training": (
        ("r = (f32[2,6,5,3], f32[3], f32[3]) batch-norm-training(p0, p1, p2), epsilon=0.01, "
         "feature_index=3"),
        [IMAGE, *FEATURES[:2]],
    ),
    "batch-norm-grad": (
        ("r = (f32[2,6,5,3], f32[3], f32[3]) batch-norm-grad(p0, p1, p2, p3, p4), epsilon=0.01, "
         "feature_index=3"),
        [IMAGE, *FEATURES[:3], IMAGE * 2],
    ),
    "call": ("r = f32[3,4] call(p0), to_apply=double", [X]),
    "fusion": ("r = f32[3,4] fusion(p0), kind=kLoop, calls=double", [X]),
    "while": (
        """i = s32[] constant(0)
        t = (s32[], f32[3,4]) tuple(i, p0)
        r = (s32[], f32[3,4]) while(t), condition=few, body=step""",
        [X],
    ),
    "conditional": (
        "r = f32[3,4] conditional(p0, p1, p1), branch_computations={double, halve}",
        [np.array(1, np.int32), X],
    ),
    "conditional by a truth value": (
        "r = f32[3,4] conditional(p0, p1, p1), true_computation=double, false_computation=halve",
        [np.array(1, np.bool_), X],
    ),
    "custom-call": ('r = f32[3,4] custom-call(p0), custom_call_target="Sharding"', [X]),
    "rng-bit-generator": (
        "r = (u64[2], u32[5]) rng-bit-generator(p0), algorithm=rng_default",
        [np.array([3, 4], np.uint64)],
    ),
}  # fmt: skip
#: Not for XLA's CPU: what there is to compare with stands in the test that is named.
ELSEWHERE = {
    "parameter": "every test",
    "atan": "test_opcodes_of_a_later_xla",
    "domain": "test_what_only_passes_values_on",
    "rng": "test_numbers_of_the_device",
    "replica-id": "test_hlo_collectives", "partition-id": "test_hlo_collectives",
    "all-gather": "test_hlo_collectives", "all-reduce": "test_hlo_collectives",
    "all-to-all": "test_hlo_collectives", "reduce-scatter": "test_hlo_collectives",
    "collective-broadcast": "test_hlo_collectives", "collective-permute": "test_hlo_collectives",
    "async-start": "test_hlo_async", "async-update": "test_hlo_async",
    "async-done": "test_hlo_async", "copy-start": "test_hlo_async", "copy-done": "test_hlo_async",
}  # fmt: skip
#: The case that has an opcode which is no case's name.
WITHIN = {
    "not": "not of truth values", "and": "and of integers", "or": "or of integers",
    "xor": "xor of integers", "popcnt": "popcnt of integers",
    "tuple": "tuple and get-tuple-element",
    "get-tuple-element": "tuple and get-tuple-element", "after-all": "after-all and add-dependency",
    "add-dependency": "after-all and add-dependency", "shift-left": "shift-left of integers",
    "shift-right-logical": "shift-right-logical of integers",
    "shift-right-arithmetic": "shift-right-arithmetic of integers",
    "count-leading-zeros": "count-leading-zeros of integers",
}  # fmt: skip


def _high(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    values = [int(a) * int(b) >> 64 for a, b in zip(x.ravel(), y.ravel(), strict=True)]
    return np.array(values, x.dtype).reshape(x.shape)


#: What XLA's CPU client doesn't take as it is.
BY_NUMPY: dict[str, Callable[..., np.ndarray]] = {
    "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh,
    "atanh": np.arctanh, "cosh": np.cosh, "sinh": np.sinh, "bitcast": np.ravel,
    "mulhi": lambda x, y: (x.astype(np.int64) * y >> 32).astype(x.dtype),
    "mulhi, unsigned": lambda x: (x.astype(np.uint64) * x >> np.uint64(32)).astype(x.dtype),
    "mulhi of 64 bits": _high,
    "mulhi of 64 bits, unsigned": lambda x: _high(x, x),
}  # fmt: skip


def compare(got: list[np.ndarray], wanted: list[np.ndarray], ulps: float = 64) -> None:
    """Bit for bit; floats within some roundings of the largest magnitude."""
    for one, other in zip(got, wanted, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        if other.dtype.kind not in "fc":
            np.testing.assert_array_equal(one.astype(other.dtype), other)
            continue
        finite = np.abs(other[np.isfinite(other)])
        largest = max(float(finite.max()) if finite.size else 0.0, 1e-3)
        eps = float(np.finfo(np.float32).eps)
        np.testing.assert_allclose(one, other, rtol=0, atol=ulps * eps * largest)


@pytest.mark.parametrize("name", CASES)
def test_the_reference_and_the_program_give_what_xla_gives(name: str) -> None:
    body, args = CASES[name]
    content = proto_of(text_of(body, args))
    imported = import_hlo(content)
    wanted = [BY_NUMPY[name](*args)] if name in BY_NUMPY else by_xla(content, args)
    compare(evaluate(imported.graph, args), wanted)
    compare(natively(imported, args), wanted)


@pytest.mark.parametrize("name", [name for name in CASES if "complex" in name])
def test_the_operators_on_complex_numbers_that_release_2_32_allows(name: str) -> None:
    body, args = CASES[name]
    load_model(proto_of(text_of(body, args)), parse("--target=trn2", environ={}))


def test_every_opcode_is_handled_or_refused_and_tested() -> None:
    known = HANDLERS.keys() | REFUSED.keys() | {"parameter"}
    assert known >= OPCODES, sorted(OPCODES - known)
    assert not HANDLERS.keys() & REFUSED.keys()
    collectives = {op for op in HANDLERS if op.endswith(("-start", "-done"))}
    for opcode in HANDLERS.keys() - ELSEWHERE.keys() - collectives - _OWN_NAMES:
        assert WITHIN.get(opcode, opcode) in CASES, opcode


#: Names in the tables that are none of XLA's instructions, but of operators of the same form.
_OWN_NAMES = frozenset(op for op in HANDLERS if op not in OPCODES and not op.endswith(
    ("-start", "-done")))  # fmt: skip


@pytest.mark.parametrize("opcode", sorted(REFUSED))
def test_what_is_refused_says_why_and_what_to_do(opcode: str) -> None:
    main = Computation("main", 1)
    main.add(opcode, "f32[4]", main.parameter("f32[4]"))
    with pytest.raises(HloError) as caught:
        import_hlo(module(main))
    assert caught.value.code == (REFUSED[opcode].code or "NCC_EUOC002")
    assert opcode in caught.value.text
    assert caught.value.remedy == REFUSED[opcode].remedy
    assert f"({opcode}) at model.py:1001" in str(caught.value)


def test_opcodes_of_a_later_xla() -> None:
    main = Computation("main", 1)
    main.add("atan", "f32[3,4]", main.parameter("f32[3,4]"))
    (got,) = evaluate(import_hlo(module(main)).graph, [X])
    np.testing.assert_allclose(got, np.arctan(X), rtol=1e-6)
    main.add("frobnicate", "f32[3,4]", 1000)
    with pytest.raises(HloError, match=r"NCC_EUOC002.*frobnicate"):
        import_hlo(module(main))


def test_what_only_passes_values_on() -> None:
    main = Computation("main", 1)
    main.add("domain", "f32[3,4]", main.parameter("f32[3,4]"))
    (got,) = evaluate(import_hlo(module(main)).graph, [X])
    np.testing.assert_array_equal(got, X)


@pytest.mark.parametrize("kind", ["rng_uniform", "rng_normal"])
def test_numbers_of_the_device(kind: str) -> None:
    low, high = np.array(2, np.float32), np.array(3, np.float32)
    args: list[Any] = [low, high]
    content = proto_of(text_of(f"r = f32[4000] rng(p0, p1), distribution={kind}", args))
    (got,) = natively(import_hlo(content), args)
    assert type_text(got) == "f32[4000]"
    if kind == "rng_uniform":
        assert 2 <= got.min() < 2.01
        assert 2.99 < got.max() < 3
    else:  # within five standard errors
        assert abs(got.mean() - 2) < 5 * 3 / 4000**0.5
        assert abs(got.std() - 3) < 5 * 3 / 8000**0.5
