"""Complex numbers with special and large parts, compiled, against the CPU.

PyTorch's kernels say which parts of a result are infinite or NaN: a sum multiplies its second
operand by 1 + 0i, a quotient is NumPy's, functions are those of C99. Eager mode runs these kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch

Function = Callable[..., torch.Tensor]

PARTS = (0.0, -0.0, 1.0, -2.5, math.inf, -math.inf, math.nan, 3e38)
SCALARS = (
    *(math.nan, math.inf, -math.inf, 0.0, -0.0, 2.0, 1),
    *(complex(math.nan, 0), complex(0, math.inf), 1 - 2j),
)
COMPLEX = [complex(a, b) for a in PARTS for b in PARTS]

SUMS: dict[str, Function] = {
    f"{name} alpha={alpha}": partial(getattr(torch, name), alpha=alpha)
    for name in ("add", "sub", "rsub")
    for alpha in (1, 0, -1, 2, 0.5)
}
BINARY: dict[str, Function] = SUMS | {
    "mul": torch.mul,
    "div": torch.div,
    "eq": torch.eq,
    "ne": torch.ne,
    "where": lambda x, y: torch.where(x.real > 0, x, y),
    "addcmul": lambda x, y: torch.addcmul(x, y, x),
    "addcmul of itself": lambda x, y: torch.addcmul(x, x, y, value=-2),
    "addcdiv": lambda x, y: torch.addcdiv(x, y, x),
    "in place": lambda x, y: (x * (1 + 0j)).add_(y).sub_(x),
    "foreach": lambda x, y: torch._foreach_sub([x * (1 + 0j)], [y])[0],
}
UNARY: dict[str, Function] = {
    name: getattr(torch, name)
    for name in (
        *("neg", "abs", "angle", "conj_physical", "sgn", "square", "reciprocal", "isnan", "isinf"),
        *("isfinite", "exp", "log", "sqrt", "rsqrt", "sin", "cos", "tanh", "sigmoid"),
    )
} | {f"x ** {p}": lambda x, p=p: x**p for p in (0, 1, 2, 3, -1, -2, 0.5, -0.5, 2 + 0j)}
for _s in SCALARS:
    UNARY |= {
        f"x + {_s}": lambda x, s=_s: x + s,
        f"x - {_s}": lambda x, s=_s: x - s,
        f"{_s} - x": lambda x, s=_s: s - x,
        f"x * {_s}": lambda x, s=_s: x * s,
        f"x / {_s}": lambda x, s=_s: x / s,
        f"{_s} / x": lambda x, s=_s: s / x,
        f"sub(x, {_s}, alpha=2)": lambda x, s=_s: torch.sub(x, s, alpha=2),
        f"x - tensor({_s})": lambda x, s=_s: x - torch.tensor(s, device=x.device),
    }
POWERS: dict[str, Function] = {"x ** y": torch.pow, "float_power": torch.float_power}


def parts(x: torch.Tensor) -> torch.Tensor:
    """Real and imaginary part along a last dimension; of a real tensor itself."""
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def differences(function: Function, got: torch.Tensor, *args: torch.Tensor) -> list[str]:
    """Elements of which a part is of another class than the CPU's or another number."""
    want = function(*args)
    # One by one, elements take the scalar path of the CPU's kernels: where that gives another kind
    # of number than the vectors' one, either is right.
    alone = torch.cat([function(*(a[i : i + 1] for a in args)) for i in range(len(args[0]))])
    assert got.dtype == want.dtype
    mine, theirs, other = parts(got.cpu()), parts(want), parts(alone)
    wrong = (kinds_of(mine) != kinds_of(theirs)) & (kinds_of(theirs) == kinds_of(other))
    if mine.dtype.is_floating_point:
        size = parts(want.abs()[..., None] if want.is_complex() else want).nan_to_num(0.0, 0.0, 0.0)
        bound = 64 * torch.finfo(mine.dtype).eps * torch.maximum(size, theirs.abs())
        near = (mine - theirs).abs() <= bound
        ordinary = mine.isfinite() & theirs.isfinite()
        wrong = torch.where(ordinary & ((mine != 0) | (theirs != 0)), ~near, wrong)
    else:
        wrong = mine != theirs
    found = wrong.reshape(len(want), -1).any(-1).nonzero()[:, 0].tolist()
    return [f"{[a[i].item() for a in args]}: {got[i].item()}, CPU {want[i].item()}" for i in found]


def kinds_of(x: torch.Tensor) -> torch.Tensor:
    """Which of NaN, either infinity, either zero, other numbers."""
    kind = x.isnan() * 1 + x.isposinf() * 2 + x.isneginf() * 3
    return torch.where(x == 0, 4 + x.signbit().int(), kind)


def check(table: dict[str, Function], *args: torch.Tensor) -> None:
    """Compile all functions in one program and compare each."""

    def every(*args: torch.Tensor) -> dict[str, torch.Tensor]:
        return {name: function(*args) for name, function in table.items()}

    torch.compiler.reset()
    got = torch.compile(every, backend="neuron", fullgraph=True)(*(a.to("neuron") for a in args))
    found = {name: differences(f, got[name], *args) for name, f in table.items()}
    assert not {name: f"{len(d)} differ, {d[0]}" for name, d in found.items() if d}


def pairs(left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Every element of one beside every element of the other."""
    return left.repeat_interleave(len(right)), right.repeat(len(left))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_one_operand(dtype: torch.dtype) -> None:
    check(UNARY, torch.tensor(COMPLEX, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
@pytest.mark.parametrize("mixture", ["complex and complex", "complex and real", "real and complex"])
def test_two_operands(mixture: str, dtype: torch.dtype) -> None:
    values = {
        "complex": torch.tensor(COMPLEX, dtype=dtype)[::3],
        "real": torch.tensor(PARTS, dtype=dtype.to_real()),
    }
    left, _, right = mixture.split()
    x, y = pairs(values[left], values[right])
    check(BINARY, x, y)
    # Of a power with an angle of so many turns nothing is left, its sign neither.
    small = parts(y).abs().reshape(len(y), -1).ne(PARTS[-1]).all(-1)
    check(POWERS, x[small], y[small])


@pytest.mark.parametrize("number", [1j, 2.0 - 1j, -0.5j])
def test_gradients_of_complex_numbers_that_are_constants(number: complex) -> None:
    """The gradient of a product conjugates the other factor, a number without a tensor."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return (torch.complex(x, x * 2) * number).angle() + (x / number).real

    x = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    here, there = x.to("neuron").requires_grad_(), x.clone().requires_grad_()
    torch.compile(function, backend="neuron")(here).sum().backward()
    function(there).sum().backward()
    torch.testing.assert_close(here.grad.cpu(), there.grad)  # type: ignore[union-attr]
