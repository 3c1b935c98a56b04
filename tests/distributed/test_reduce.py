"""Reductions of several arrays and large copies, against one torch operator at a time.

Every definition is exact: the order of the fold, the type of the arithmetic and the one rounding
are all given, so results are compared bit for bit (any NaN for any NaN).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.isas import ISAS, core, forced

if TYPE_CHECKING:
    from collections.abc import Callable

Tensor = torch.Tensor
FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
SMALL_FLOATS = [
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]
SIGNED = [torch.int8, torch.int16, torch.int32, torch.int64]
UNSIGNED = [torch.uint8, torch.uint16, torch.uint32, torch.uint64]
COMPLEX = [torch.complex64, torch.complex128]
ARITHMETIC = ["sum", "product", "min", "max"]
BITWISE = ["band", "bor", "bxor"]
OPERATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add,
    "product": torch.mul,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def cases() -> list[tuple[torch.dtype, str]]:
    """Every operation that is defined for a type."""
    return (
        [(d, op) for d in FLOATS + SMALL_FLOATS for op in ARITHMETIC]
        + [(d, op) for d in [*SIGNED, *UNSIGNED, torch.bool] for op in ARITHMETIC + BITWISE]
        + [(d, op) for d in COMPLEX for op in ("sum", "product")]
    )


def arrays(dtype: torch.dtype, n: int, count: int, seed: int, shift: int) -> list[Tensor]:
    """`n` arrays, `shift` elements past an aligned address; half of them of random bits."""
    g = torch.Generator().manual_seed(seed)
    result = []
    for _ in range(n):
        size = shift + count
        if dtype == torch.bool:
            x = torch.randint(0, 2, (size,), generator=g, dtype=torch.uint8).view(dtype)
        elif seed % 2 or not (dtype.is_floating_point or dtype.is_complex):
            raw = torch.randint(0, 256, (size * dtype.itemsize,), generator=g, dtype=torch.uint8)
            x = raw.view(dtype)
        elif dtype in SMALL_FLOATS:
            x = torch.randn(size, generator=g).exp().to(dtype)
        else:
            x = torch.randn(size, generator=g, dtype=dtype)
        result.append(x[shift:])
    return result


def wide(x: Tensor) -> Tensor:
    """In the type of the arithmetic; integers as int64, which wraps as they do."""
    if x.dtype == torch.float64:
        return x
    return x.to(torch.float32 if x.dtype.is_floating_point else torch.int64)


def complex_product(a: Tensor, b: Tensor) -> Tensor:
    """The textbook's, of pairs; torch's may contract."""
    re = a[:, 0] * b[:, 0] - a[:, 1] * b[:, 1]
    im = a[:, 0] * b[:, 1] + a[:, 1] * b[:, 0]
    return torch.stack((re, im), 1)


def ordered(x: Tensor, dtype: torch.dtype) -> Tensor:
    """uint64 is held as int64: with the top bit flipped it compares as it should."""
    return x ^ torch.iinfo(torch.int64).min if dtype == torch.uint64 else x


def smaller(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.where((ordered(b, dtype) < ordered(a, dtype)) | b.isnan(), b, a)


def larger(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.where((ordered(b, dtype) > ordered(a, dtype)) | b.isnan(), b, a)


def combine(op: str, a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype == torch.bool:
        op = {"sum": "bor", "product": "band", "min": "band", "max": "bor"}.get(op, op)
    if op in ("min", "max"):
        return (smaller if op == "min" else larger)(a, b, dtype)
    return OPERATORS[op](a, b)


def wrap(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The low bits of int64 as a type of integers."""
    raw = x.contiguous().view(torch.uint8).view(*x.shape, 8)[..., : dtype.itemsize]
    return raw.contiguous().view(dtype).flatten()


def divided(x: Tensor, n: int, dtype: torch.dtype) -> Tensor:
    """Integers divided with truncation, after they have wrapped."""
    if dtype == torch.uint64:
        return torch.tensor([(v % 2**64) // n for v in x.tolist()], dtype=torch.uint64)
    x = wrap(x, dtype).to(torch.int64)
    return wrap(torch.div(x, n, rounding_mode="trunc"), dtype)


def reference(op: str, inputs: list[Tensor], pre: float, ranks: int, post: float = 1.0) -> Tensor:
    dtype = inputs[0].dtype
    scaled = pre != 1 or ranks != 1 or post != 1
    if dtype.is_complex:
        inputs = [torch.view_as_real(x) for x in inputs]
    if inputs[0].is_floating_point():
        total = wide(inputs[0]) * pre
        for x in inputs[1:]:
            if dtype.is_complex and op == "product":
                total = complex_product(total, wide(x) * pre)
            else:
                total = combine(op, total, wide(x) * pre, dtype)
        total = total / ranks if ranks != 1 else total * post
        return torch.view_as_complex(total) if dtype.is_complex else total.to(dtype)
    total = wide(inputs[0]) * int(pre)
    for x in inputs[1:]:
        following = wide(x) * int(pre)
        if op in ("min", "max") and scaled and dtype != torch.uint64:
            total, following = (wrap(t, dtype).to(torch.int64) for t in (total, following))
        total = combine(op, total, following, dtype)
    return divided(total, ranks, dtype) if scaled else wrap(total, dtype)


def check_equal(got: Tensor, wanted: Tensor) -> None:
    assert got.dtype == wanted.dtype
    if got.is_complex():
        got, wanted = torch.view_as_real(got), torch.view_as_real(wanted)
    bits = BITS[got.dtype.itemsize]
    same = got.contiguous().view(bits) == wanted.contiguous().view(bits)
    if got.is_floating_point():
        same |= got.to(torch.float64).isnan() & wanted.to(torch.float64).isnan()
    wrong = (~same).nonzero()
    assert not len(wrong), f"{len(wrong)} differ, first at {wrong[0].tolist()}"


@given(
    case=st.sampled_from(cases()),
    inputs=st.integers(1, 6),
    outputs=st.integers(0, 4),
    count=st.integers(0, 700),
    shifts=st.tuples(st.integers(0, 70), st.integers(0, 70)),
    pre=st.sampled_from([1.0, 1.0, 0.3, 3.0, -2.0]),
    ranks=st.sampled_from([1, 1, 2, 3, 4, 7, 300]),
    in_place=st.booleans(),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=150)
@pytest.mark.parametrize("name", ISAS)
def test_reduce(
    name: str,
    case: tuple[torch.dtype, str],
    inputs: int,
    outputs: int,
    count: int,
    shifts: tuple[int, int],
    pre: float,
    ranks: int,
    in_place: bool,
    seed: int,
) -> None:
    dtype, op = case
    if not dtype.is_floating_point and not dtype.is_complex:
        pre = 1.0 if dtype == torch.bool or op in BITWISE else float(round(pre))
        ranks = 1 if dtype == torch.bool or op in BITWISE else ranks
    given_arrays = arrays(dtype, inputs, count, seed, shifts[0])
    wanted = reference(op, given_arrays, pre, ranks)
    results = arrays(dtype, outputs, count, seed, shifts[1])
    if in_place:
        results[:inputs] = given_arrays[:outputs]
    with forced(name):
        core.distributed_reduce(op, given_arrays, results, pre, 1 / ranks)
    for got in results:
        check_equal(got, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8])
@pytest.mark.parametrize("shift", [0, 3])
@pytest.mark.usefixtures("isa")
def test_large_outputs_are_written_past_the_cache(dtype: torch.dtype, shift: int) -> None:
    inputs = arrays(dtype, 3, (1 << 21) // dtype.itemsize + 5, 2, shift)
    wanted = reference("sum", inputs, 1.0, 1)
    for results in ([torch.empty_like(inputs[0])], [inputs[1], inputs[0]]):
        core.distributed_reduce("sum", inputs, results)
        for got in results:
            check_equal(got, wanted)
        inputs = [x.clone() for x in arrays(dtype, 3, (1 << 21) // dtype.itemsize + 5, 2, shift)]


@pytest.mark.usefixtures("isa")
def test_a_scale_after_that_is_not_a_division() -> None:
    for dtype in FLOATS + SMALL_FLOATS:
        inputs = arrays(dtype, 3, 1000, 0, 0)
        wanted = reference("sum", inputs, 0.5, 1, 1.7)
        out = torch.empty_like(inputs[0])
        core.distributed_reduce("sum", inputs, [out], 0.5, 1.7)
        check_equal(out, wanted)


@pytest.mark.usefixtures("isa")
def test_an_average_of_thirds_is_torchs_division() -> None:
    inputs = arrays(torch.float32, 3, 1000, 0, 0)
    out = torch.empty_like(inputs[0])
    core.distributed_reduce("sum", inputs, [out], 1.0, 1 / 3)
    assert torch.equal(out, (inputs[0] + inputs[1] + inputs[2]) / 3)


@given(
    size=st.one_of(st.integers(0, 300), st.integers((1 << 20) - 70, (1 << 20) + 900)),
    shifts=st.tuples(st.integers(0, 64), st.integers(0, 64)),
)
@settings(max_examples=60)
@pytest.mark.parametrize("name", ISAS)
def test_copy(name: str, size: int, shifts: tuple[int, int]) -> None:
    source = (torch.arange(size + shifts[0]) * 7 % 251).to(torch.uint8)[shifts[0] :]
    whole = torch.full((shifts[1] + size + 64,), 255, dtype=torch.uint8)
    with forced(name):
        core.distributed_copy(whole[shifts[1] : shifts[1] + size], source)
    assert torch.equal(whole[shifts[1] : shifts[1] + size], source)
    assert bool((whole[: shifts[1]] == 255).all())
    assert bool((whole[shifts[1] + size :] == 255).all())


@pytest.mark.parametrize(
    ("dtype", "op", "scales", "text"),
    [
        (torch.float32, "band", (1, 1), 'the reduction "band" is not defined for Float'),
        (torch.float8_e5m2, "bxor", (1, 1), 'the reduction "bxor" is not defined for'),
        (torch.complex64, "max", (1, 1), 'the reduction "max" is not defined for ComplexFloat'),
        (torch.bool, "sum", (1, 0.5), "a reduction of Bool cannot be scaled"),
        (torch.int32, "sum", (0.5, 1), "not scaled by 0.5 and 1"),
        (torch.int32, "sum", (1, 0.3), "not scaled by 1 and 0.3"),
        (torch.int64, "bor", (2, 1), 'the reduction "bor" is not defined for Long'),
        (torch.float4_e2m1fn_x2, "sum", (1, 1), 'the reduction "sum" is not defined for'),
    ],
)
def test_what_a_type_does_not_have(
    dtype: torch.dtype, op: str, scales: tuple[float, float], text: str
) -> None:
    x = torch.zeros(64, dtype=torch.uint8).view(dtype)
    with pytest.raises(TypeError, match=text):
        core.distributed_reduce(op, [x, x], [x], *scales)


def test_no_inputs_and_unknown_names() -> None:
    x = torch.zeros(4)
    with pytest.raises(RuntimeError, match="at least one input"):
        core.distributed_reduce("sum", [], [x])
    with pytest.raises(ValueError, match='no reduction is called "mean"'):
        core.distributed_reduce("mean", [x], [x])
