"""Constants with bits that are easily lost: signed zeros, denormals, infinities, NaN, the limits.

Operators times constants, compiled and on the CPU. What moves a constant or looks at its sign has
to give the same bits; what computes the same number, with the same sign if it is zero.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from neuronxcc.codegen import text as kernel_text
from neuronxcc.codegen.loop import Access, Dim, Kernel, Scalar, Slot, Store
from neuronxcc.ir import DType, Graph, Operand, build
from neuronxcc.ir.text import parse, to_text
from neuronxcc.neff import codec
from neuronxcc.neff.schema import decode_float, encode_float
from neuronxcc.program.memory import Buffer
from neuronxcc.program.program import Program
from neuronxcc.program.steps.loop import LoopStep

Function = Callable[[torch.Tensor], torch.Tensor]
Table = dict[str, Function]

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
F8 = (torch.float8_e4m3fn, torch.float8_e5m2)
NUMBERS = (
    *(0.0, -0.0, 1.0, -1.0, 2.0, -0.5, math.inf, -math.inf, math.nan, -math.nan),
    *(1e-40, -1e-45, 6e-8, 65504.0, -3e38),
)
CASES = [
    (c, dtype)
    for c in NUMBERS
    for dtype in FLOATS
    # PyTorch refuses numbers that are too large for the type.
    if not math.isfinite(c) or abs(c) <= torch.finfo(dtype).max
]
VALUES = [*NUMBERS, 2.5, -7.0, 0.125]


def bits(x: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor."""
    return x.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def moving(c: float) -> Table:
    """Operators whose results are elements and constants as they are, or their signs."""
    F = torch.nn.functional  # noqa: N806 - as everybody names it
    return {
        "full": lambda x: torch.full_like(x, c),
        "fill": lambda x: torch.empty_like(x).fill_(c),
        "neg": lambda x: -torch.full_like(x, c),
        "abs": lambda x: torch.full_like(x, c).abs(),
        "signbit": lambda x: torch.signbit(torch.full_like(x, c)),
        "copysign": lambda x: torch.copysign(x.nan_to_num(), c),
        "sign of x": lambda x: torch.copysign(torch.full_like(x, c).nan_to_num(), x),
        "where": lambda x: torch.where(mask(x), x, c),
        "where not": lambda x: torch.where(mask(x), c, x),
        "masked_fill": lambda x: x.masked_fill(mask(x), c),
        "pad": lambda x: F.pad(x, (1, 2), value=c),
        "cat": lambda x: torch.cat((x, torch.full_like(x, c))),
        "threshold": lambda x: F.threshold(x.nan_to_num(), 0.5, c),
        "index_fill": lambda x: x.index_fill(0, torch.tensor([1], device=x.device), c),
        "tensor": lambda x: torch.tensor([c], dtype=x.dtype, device=x.device).repeat(9),
        "zeros": lambda x: torch.where(mask(x), x, _zeros(x)[:1]),
        "two zeros": lambda x: _zeros(x).repeat(3) * 1,
        "mixed": lambda x: torch.cat((_zeros(x), torch.full_like(x, c)))[1:],
    }


def _zeros(x: torch.Tensor) -> torch.Tensor:
    return torch.tensor([0.0, -0.0], dtype=x.dtype, device=x.device)


def computing(c: float) -> Table:
    """Operators that compute with a constant what every processor computes alike."""
    return {
        "x / c": lambda x: x / c,
        "c / x": lambda x: c / x,
        "x * c": lambda x: x * c,
        "c + 1": lambda x: torch.full_like(x, c) + 1,
        "c - x": lambda x: torch.full_like(x, c) - x,
        "-0.0 - c": lambda x: -0.0 - torch.full_like(x, c),
        "c + -0.0": lambda x: torch.full_like(x, c) + -0.0,
        "x + 0": lambda x: x + 0,
        "x + 0.0": lambda x: x + 0.0,
        "x + -0.0": lambda x: x + -0.0,
        "x - 0.0": lambda x: x - 0.0,
        "0 - x": lambda x: 0 - x,
        "-0.0 - x": lambda x: -0.0 - x,
        "x * 0": lambda x: x * 0,
        "x * -0.0": lambda x: x * -0.0,
        "x - x": lambda x: x - x,
        "x * 1": lambda x: x * 1,
        "x * -1": lambda x: x * -1,
        "x / 1": lambda x: x / 1,
        "x == c": lambda x: x == torch.full_like(x, c),
        "x < c": lambda x: x < torch.full_like(x, c),
        "1 / c": lambda x: torch.full_like(x, c).reciprocal(),
        "round": lambda x: torch.full_like(x, c).round(),
        "trunc": lambda x: torch.full_like(x, c).trunc(),
        "amax": lambda x: torch.full_like(x, c).amax(),
        "times zeros": lambda x: x[:2] * _zeros(x),
        "by zeros": lambda x: x[:2] / _zeros(x),
    }


def both(table: Table, x: torch.Tensor) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """Every function's result, compiled (all in one program) and by the CPU."""
    torch.compiler.reset()

    def every(x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {name: function(x) for name, function in table.items()}

    want = every(x)
    got = torch.compile(every, backend="neuron", fullgraph=True)(x.to("neuron"))
    return [(name, got[name].cpu(), want[name]) for name in table]


def mask(x: torch.Tensor) -> torch.Tensor:
    return torch.arange(len(x), device=x.device) % 3 == 0


@pytest.mark.every(4)
@pytest.mark.parametrize(("c", "dtype"), CASES)
def test_moved_constants_keep_their_bits(c: float, dtype: torch.dtype) -> None:
    x = torch.tensor(VALUES, dtype=dtype)
    for name, got, want in both(moving(c), x):
        assert got.dtype == want.dtype, name
        assert torch.equal(bits(got), bits(want)), f"{name}: {got} instead of {want}"


@pytest.mark.every(4)
@pytest.mark.parametrize(("c", "dtype"), CASES)
def test_constants_in_arithmetic(c: float, dtype: torch.dtype) -> None:
    x = torch.tensor(VALUES, dtype=dtype)
    for name, got, want in both(computing(c), x):
        # The sign of a NaN that was computed is nobody's rule.
        same = (got == want) & (torch.signbit(got) == torch.signbit(want))
        assert (same | (got.isnan() & want.isnan())).all(), f"{name}: {got} not {want}"


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_limits_of_integers(dtype: torch.dtype) -> None:
    info = torch.iinfo(dtype)
    x = torch.tensor([info.min, info.max, 0, 1, 7], dtype=dtype)
    for c in (info.min, info.max, info.max - 1, 0, 1):
        table: Table = {
            "full": lambda x, c=c: torch.full_like(x, c),  # type: ignore[misc]
            "add": lambda x, c=c: x + c,  # type: ignore[misc]
            "multiply": lambda x, c=c: x * c,  # type: ignore[misc]
            "where": lambda x, c=c: torch.where(mask(x), x, c),  # type: ignore[misc]
            "equal": lambda x, c=c: x == c,  # type: ignore[misc]
            "and": lambda x, c=c: x & c,  # type: ignore[misc]
            "tensor": lambda x, c=c: torch.tensor([c, 1], dtype=x.dtype, device=x.device) * 1,  # type: ignore[misc]
        }
        for name, got, want in both(table, x):
            assert torch.equal(got, want), (name, c)


@pytest.mark.parametrize("dtype", F8, ids=str)
def test_all_codes_of_8_bits_as_constants(dtype: torch.dtype) -> None:
    # In parts, so that they are constants of the graph and not its arguments.
    for start in range(0, 256, 32):
        codes = list(range(start, start + 32))

        def held(x: torch.Tensor, codes: list[int] = codes) -> torch.Tensor:
            made = torch.tensor(codes, dtype=torch.uint8, device=x.device).view(dtype)
            return torch.cat((x, made, made[3:4].expand(4)))

        torch.compiler.reset()
        x = torch.zeros(2).to(dtype)
        got = torch.compile(held, backend="neuron", fullgraph=True)(x.to("neuron"))
        assert torch.equal(bits(got), bits(held(x)))


# The last one of each is a signalling NaN.
ODD = {
    torch.float32: (
        torch.int32,
        [0x7FC00001, -0x3FFFF0, 0x7FC12345, 0x7FC00000, -0x400000, 0x7F800001],
    ),
    torch.float16: (torch.int16, [0x7E01, -0x1FF, 0x7FFF, 0x7E00, -0x200, 0x7C01]),
    torch.bfloat16: (torch.int16, [0x7FC1, -0x3F, 0x7FFF, 0x7FC0, -0x40, 0x7F81]),
}


@pytest.mark.parametrize("dtype", ODD, ids=str)
def test_payloads_of_nan(dtype: torch.dtype) -> None:
    whole, codes = ODD[dtype]

    def held(x: torch.Tensor) -> list[torch.Tensor]:
        made = [torch.tensor(c, dtype=whole, device=x.device).view(dtype) for c in codes]
        return [torch.where(mask(x), x, one) for one in made] + [one.expand(3) for one in made]

    x = torch.tensor(VALUES, dtype=dtype)
    torch.compiler.reset()
    got = torch.compile(held, backend="neuron", fullgraph=True)(x.to("neuron"))
    for mine, theirs in zip(got, held(x), strict=True):
        assert torch.equal(bits(mine), bits(theirs))


COMPLEX = [complex(a, b) for a in (0.0, -0.0, 1.5) for b in (0.0, -0.0, -2.0, math.inf)]


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_parts_of_complex_constants(dtype: torch.dtype) -> None:
    x = torch.tensor([1.0, -2.0, 3.0], dtype=dtype)
    for c in COMPLEX:
        table: Table = {
            "where": lambda x, c=c: torch.where(mask(x), x, c),  # type: ignore[misc]
            "full": lambda x, c=c: torch.full_like(x, c),  # type: ignore[misc]
        }
        for name, got, want in both(table, x):
            assert torch.equal(bits(got), bits(want)), (name, c)


# ---- the ways that a constant takes ------------------------------------------------------------

PAIRS = [
    (0.0, -0.0),
    (complex(0.0, 0.0), complex(0.0, -0.0)),
    (complex(0.0, 0.0), complex(-0.0, 0.0)),
    (math.nan, 1.0),
    (5e-324, 0.0),
]


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_numbers_that_are_equal_but_not_the_same(one: complex, other: complex) -> None:
    dtype = DType.F64 if type(one) is float else DType.C128
    scalars = [Scalar.make("const", dtype, value=v) for v in (one, other)]
    assert scalars[0] is not scalars[1]
    nodes = [build.constant(v, dtype) for v in (one, other)]
    assert nodes[0] is not nodes[1]
    assert Scalar.make("const", dtype, value=copy.copy(one)) is scalars[0]
    calls = [
        build.custom_call("aten::full_like", [nodes[0].type], [nodes[0]], args=(Operand(0), v))
        for v in (one, other)
    ]
    assert calls[0] is not calls[1]
    kernels = [
        Kernel("k", (Dim(2),), (Slot(dtype),), (Store(Access(0, (1,)), scalar),))
        for scalar in scalars
    ]
    texts = [kernel_text.to_text(kernel) for kernel in kernels]
    assert texts[0] != texts[1]
    buffer = Buffer("output", dtype, (2,), (1,), 0)
    program = Program(
        "p", (buffer,), tuple(LoopStep(kernel, ((0, 0),)) for kernel in kernels), (0,)
    )
    encoded = codec.encode(program)
    read = codec.decode(encoded.document, encoded.contents)
    for step, scalar in zip(read.steps, scalars, strict=True):
        assert isinstance(step, LoopStep)
        assert step.kernel.stores[0].value is scalar
    graph = Graph("g", (), tuple(nodes))
    assert parse(to_text(graph)).results == graph.results


@pytest.mark.parametrize("value", [math.nan, -math.nan, -0.0, 5e-324, math.inf, -1e308])
def test_floats_in_files(value: float) -> None:
    read = decode_float(encode_float(value))
    assert np.float64(read).tobytes() == np.float64(value).tobytes()
    json.dumps(encode_float(value), allow_nan=False)
