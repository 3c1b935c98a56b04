"""Programs of elementwise steps: each step is ATen's operator, and optimizers come out the same."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.isas import core

Tensor = torch.Tensor
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
WIDE = (torch.float32, torch.float64)
# The order of enum class Op in csrc/kernels/multi_tensor.h.
NAMES = [
    "Copy",
    "Neg",
    "Abs",
    "Sqrt",
    "Rsqrt",
    "Reciprocal",
    "Sign",
    "Fill",
    "AddScalar",
    "MulScalar",
    "DivScalar",
    "RevSubScalar",
    "MaxScalar",
    "MinScalar",
    "PowScalar",
    "Mul",
    "Div",
    "Maximum",
    "Minimum",
    "Add",
    "LerpScalar",
    "LerpTensor",
    "Addcmul",
    "Addcdiv",
]
OP = {name: number for number, name in enumerate(NAMES)}
# dst, then a, b, c and the scalar (None: from the group).
Step = tuple[int, int, int, int, int, float | None]

Reference = Callable[[Tensor, Tensor, Tensor, float], Tensor]
REFERENCE: dict[str, Reference] = {
    "Copy": lambda a, _b, _c, _s: a.clone(),
    "Neg": lambda a, _b, _c, _s: -a,
    "Abs": lambda a, _b, _c, _s: a.abs(),
    "Sqrt": lambda a, _b, _c, _s: a.sqrt(),
    "Rsqrt": lambda a, _b, _c, _s: a.rsqrt(),
    "Reciprocal": lambda a, _b, _c, _s: a.reciprocal(),
    "Sign": lambda a, _b, _c, _s: a.sign(),
    "Fill": lambda a, _b, _c, s: torch.full_like(a, s),
    "AddScalar": lambda a, _b, _c, s: a + s,
    "MulScalar": lambda a, _b, _c, s: a * s,
    "DivScalar": lambda a, _b, _c, s: a / s,
    "RevSubScalar": lambda a, _b, _c, s: torch.rsub(a, s),
    "MaxScalar": lambda a, _b, _c, s: a.clamp_min(s),
    "MinScalar": lambda a, _b, _c, s: a.clamp_max(s),
    "Mul": lambda a, b, _c, _s: a * b,
    "Div": lambda a, b, _c, _s: a / b,
    "Maximum": lambda a, b, _c, _s: torch.maximum(a, b),
    "Minimum": lambda a, b, _c, _s: torch.minimum(a, b),
    "Add": lambda a, b, _c, s: torch.add(a, b, alpha=s),
    "LerpScalar": lambda a, b, _c, s: torch.lerp(a, b, s),
    "LerpTensor": lambda a, b, c, _s: torch.lerp(a, b, c),
    "Addcmul": lambda a, b, c, s: torch.addcmul(a, b, c, value=s),
    "Addcdiv": lambda a, b, c, s: torch.addcdiv(a, b, c, value=s),
}
# ATen's own vector body and scalar tail differ in these, or MKL computes them with an error.
INEXACT = {"Sqrt", "Rsqrt"}
INEXACT_16 = {"Add", "Addcmul", "Addcdiv", "LerpScalar", "LerpTensor"}


def step(op: str, dst: int, a: int = 0, b: int = 0, c: int = 0, scalar: float | None = 0.0) -> Step:
    return (OP[op], dst, a, b, c, scalar)


def run(
    steps: list[Step], groups: list[list[Tensor | None]], scalars: list[list[float]] | None = None
) -> None:
    core.kernel_run_program(steps, len(groups[0]), groups, scalars or [])


def same(result: Tensor, expected: Tensor, ulps: float = 0) -> None:
    eps = torch.finfo(result.dtype).eps * ulps
    torch.testing.assert_close(result, expected, rtol=eps, atol=eps, equal_nan=True)


def operands(n: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(n, generator=generator).to(dtype) for _ in range(3)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", REFERENCE)
@pytest.mark.parametrize("n", [1, 37, 1024, 70_003])
def test_each_step_is_aten_s(name: str, dtype: torch.dtype, n: int) -> None:
    a, b, c = operands(n, dtype)
    for t in (a, b):
        t[::17], t[3::17], t[5::19] = math.nan, math.inf, 0.0
    loose = name in INEXACT or (dtype not in WIDE and name in INEXACT_16)
    for scalar in (0.3, 1.0, -0.7, 0.0):
        out = torch.empty_like(a)
        run([step(name, 3, 0, 1, 2, scalar)], [[a, b, c, out]])
        same(out, REFERENCE[name](a, b, c, scalar).to(dtype), 4 if loose else 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0, -1.0, 3.0, -0.5, -2.0])
def test_powers(dtype: torch.dtype, exponent: float) -> None:
    a = operands(1003, dtype)[0]
    out = torch.empty_like(a)
    program = [step("PowScalar", 1, 0, scalar=exponent)]
    if dtype not in WIDE and exponent in (3.0, -0.5, -2.0):
        with pytest.raises(RuntimeError, match=r"exponent -?\d(\.5)? is not supported for"):
            run(program, [[a, out]])
    else:
        run(program, [[a, out]])
        same(out, a**exponent, 2 if abs(exponent) == 0.5 else 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_instruction_sets_agree(isa: str, dtype: torch.dtype) -> None:
    a, b, c = operands(5000, dtype)
    out = torch.empty_like(a)
    for name, reference in REFERENCE.items():
        run([step(name, 3, 0, 1, 2, 0.3)], [[a, b, c, out]])
        # Without fused multiply-add a sum of terms that cancel is off by their rounding.
        size = 4 * (1 + a.abs() + b.abs() + (b / c).abs() + (b * c).abs())
        expected = reference(a, b, c, 0.3)
        off = ((out - expected).abs() / size).nan_to_num(0).max().item()
        assert off <= torch.finfo(dtype).eps, isa


@st.composite
def programs(draw: st.DrawFn) -> list[Step]:
    """Steps over slots 0..2 (tensors) and 3, 4 (temporaries, written first by steps 0 and 1)."""
    names = [n for n in REFERENCE if n not in INEXACT]
    steps = [step("Copy", 3, 0), step("Neg", 4, 1)]
    slot = st.integers(0, 4)
    for _ in range(draw(st.integers(1, 12))):
        scalar = draw(st.sampled_from([0.25, 0.9, -1.5, 1e-3]))
        name = draw(st.sampled_from(names))
        steps.append(step(name, draw(slot), draw(slot), draw(slot), draw(slot), scalar))
    return steps


@given(steps=programs(), sizes=st.lists(st.integers(0, 700), min_size=1, max_size=4))
def test_programs_are_their_steps_one_by_one(steps: list[Step], sizes: list[int]) -> None:
    groups = [operands(n, torch.float64) for n in sizes]
    expected = [
        [*(t.clone() for t in group), *map(torch.empty_like, group[:2])] for group in groups
    ]
    for group in expected:
        for op, dst, a, b, c, scalar in steps:
            assert scalar is not None
            group[dst].copy_(REFERENCE[NAMES[op]](group[a], group[b], group[c], scalar))
    run(steps, [[*group, None, None] for group in groups])
    for result, reference in zip(groups, expected, strict=True):
        for t, r in zip(result, reference[:3], strict=True):
            same(t, r)


LR, BETA1, BETA2, EPS, DECAY = 1e-3, 0.9, 0.999, 1e-8, 1e-2


def adamw(t: int) -> list[Step]:
    """torch.optim.AdamW's steps; slots: parameter, gradient, both averages, a temporary."""
    p, g, m, v, tmp = range(5)
    return [
        step("MulScalar", p, p, scalar=1 - LR * DECAY),
        step("LerpScalar", m, m, g, scalar=1 - BETA1),
        step("MulScalar", v, v, scalar=BETA2),
        step("Addcmul", v, v, g, g, 1 - BETA2),
        step("Sqrt", tmp, v),
        step("DivScalar", tmp, tmp, scalar=(1 - BETA2**t) ** 0.5),
        step("AddScalar", tmp, tmp, scalar=EPS),
        step("Addcdiv", p, p, m, tmp, -LR / (1 - BETA1**t)),
    ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("temporary", [False, True])
def test_adamw_is_torch_s(dtype: torch.dtype, temporary: bool) -> None:
    if dtype == torch.float16:
        pytest.skip("eps is zero in float16")
    sizes = [1, 100, 4097, 200_001]
    start = [operands(n, dtype)[:2] for n in sizes]
    parameters = [torch.nn.Parameter(p.clone()) for p, _ in start]
    for parameter, (_, grad) in zip(parameters, start, strict=True):
        parameter.grad = grad.clone()
    optimizer = torch.optim.AdamW(parameters, lr=LR, weight_decay=DECAY, foreach=True)
    groups: list[list[Tensor | None]] = [
        [
            p.clone(),
            g,
            torch.zeros_like(p),
            torch.zeros_like(p),
            None if temporary else torch.empty_like(p),
        ]
        for p, g in start
    ]
    for t in range(1, 6):
        optimizer.step()
        run(adamw(t), groups)
    for group, parameter in zip(groups, parameters, strict=True):
        p, _, m, v, _ = group
        state = optimizer.state[parameter]
        assert p is not None
        assert m is not None
        assert v is not None
        exact = dtype in WIDE
        same(m, state["exp_avg"], 0 if exact else 4)
        same(v, state["exp_avg_sq"], 0 if exact else 4)
        # MKL's square root is up to an ulp off; the update is LR of that, the sum rounds once.
        same(p, parameter.detach(), 2 if exact else 4)


def test_sgd_with_momentum_is_torch_s() -> None:
    sizes = [3, 5000]
    start = [operands(n, torch.float32) for n in sizes]
    parameters = [torch.nn.Parameter(p.clone()) for p, _, _ in start]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)
    groups: list[list[Tensor | None]] = [
        [p.clone(), torch.empty_like(p), torch.zeros_like(p), None] for p, _, _ in start
    ]
    p, g, buf, tmp = range(4)
    steps = [
        step("Add", tmp, g, p, scalar=0.01),
        step("MulScalar", buf, buf, scalar=0.9),
        step("Add", buf, buf, tmp, scalar=1.0),
        step("Add", tmp, tmp, buf, scalar=0.9),
        step("Add", p, p, tmp, scalar=-0.1),
    ]
    for round_ in range(3):
        for parameter, group, (_, b, c) in zip(parameters, groups, start, strict=True):
            grad = b * (round_ + 1) + c
            parameter.grad = grad.clone()
            group[1] = grad
        optimizer.step()
        run(steps, groups)
    for group, parameter in zip(groups, parameters, strict=True):
        assert group[0] is not None
        same(group[0], parameter.detach(), 1)


def test_steps_that_are_merged_see_aliases() -> None:
    """The gradient slot is the same array as the average: the second step reads the first's."""
    for alias in (False, True):
        d, g = operands(1000, torch.float32)[:2]
        expected = d * 0.5
        other = expected if alias else g
        expected = torch.addcmul(expected, other, other, value=0.25)
        steps = [step("MulScalar", 0, 0, scalar=0.5), step("Addcmul", 0, 0, 1, 1, 0.25)]
        run(steps, [[d, d if alias else g]])
        same(d, expected)


def test_a_temporary_that_is_read_again_is_kept() -> None:
    p, m, v = (t.abs() for t in operands(3000, torch.float32))
    last = torch.empty_like(p)
    root = [step("Sqrt", 3, 2), step("DivScalar", 3, 3, scalar=0.5), step("AddScalar", 3, 3)]
    run([*root, step("Addcdiv", 0, 0, 1, 3, -0.1), step("Copy", 4, 3)], [[p, m, v, None, last]])
    same(last, v.sqrt() / 0.5, 4)


def test_scalars_per_tensor() -> None:
    tensors = [torch.ones(5), torch.ones(70_000)]
    steps = [step("MulScalar", 0, 0, scalar=2.0), step("AddScalar", 0, 0, scalar=None)]
    run(steps, [[t] for t in tensors], [[0.0, 10.0], [0.0, 20.0]])
    assert (tensors[0] == 12).all()
    assert (tensors[1] == 22).all()


def test_result_does_not_depend_on_threads() -> None:
    def once() -> list[Tensor]:
        start = [operands(n, torch.float32) for n in (300_007, 11)]
        run(adamw(3), [[*t, torch.ones_like(t[0]), None] for t in start])
        return [t for group in start for t in group]

    threads = torch.get_num_threads()
    many = once()
    try:
        torch.set_num_threads(1)
        assert all(torch.equal(a, b) for a, b in zip(many, once(), strict=True))
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("steps", "slots", "scalars", "message"),
    [
        ([step("Neg", 0, 2)], 2, None, "step 0 names slot 2 of 2"),
        ([step("Neg", 0, 1)], 2, None, "step 0 reads temporary slot 1 before any step wrote it"),
        ([step("Neg", 0)] * 65, 1, None, "65 steps, at most 64"),
        (
            [step("AddScalar", 0, scalar=None)],
            1,
            None,
            "takes its scalar from the group, which has",
        ),
        ([step("Neg", 0)], 1, [[1.0, 2.0]], "a group has 2 scalars for 1 steps"),
        ([step("PowScalar", 0, scalar=1.7)], 1, None, "exponent 1.7 is not supported for Float"),
        ([step("Neg", 0)], 33, None, "33 slots, at most 32"),
    ],
)
def test_bad_programs_change_nothing(
    steps: list[Step], slots: int, scalars: list[list[float]] | None, message: str
) -> None:
    t = torch.ones(4)
    with pytest.raises(RuntimeError, match=message):
        run(steps, [[t, *[None] * (slots - 1)]], scalars)
    assert (t == 1).all()


def test_dtype_is_checked() -> None:
    with pytest.raises(RuntimeError, match="run_program: expected float32, float64, bfloat16 or f"):
        run([step("Neg", 0)], [[torch.ones(3, dtype=torch.int32)]])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("isa")
def test_adam_in_one_pass_is_its_steps(dtype: torch.dtype) -> None:
    """To the bit, also for zeros, subnormals, infinities and NaN.

    The steps are kept apart by a temporary that is kept.
    """
    generator = torch.Generator().manual_seed(3)
    n = 70_001
    magnitude = torch.empty(n).uniform_(-45, 38, generator=generator)
    special = torch.tensor([0.0, -0.0, 1e-45, torch.inf, torch.nan, 1e-38, 3e38])
    square = torch.cat([torch.pow(10.0, magnitude), torch.rand(n, generator=generator), special])
    p, m, g = (torch.randn(len(square), generator=generator) for _ in range(3))
    arrays = [x.to(dtype) for x in (p, g, m, square)]
    one_pass: list[Tensor | None] = [*(x.clone() for x in arrays), None]
    apart: list[Tensor | None] = [*(x.clone() for x in arrays), torch.empty_like(arrays[0])]
    for t in (1, 2, 1000):
        for steps in (adamw(t), adamw(t)[1:]):
            run(steps, [one_pass])
            run(steps, [apart])
    for ours, theirs in zip(one_pass[:4], apart[:4], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
