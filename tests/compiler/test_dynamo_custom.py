"""Custom operators and optimizers in compiled graphs."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from .dynamo_tools import check, host_operators, watched


@torch.library.custom_op("test_dynamo::twice", mutates_args=())
def twice(x: Tensor, more: float) -> Tensor:
    return x * 2 + more


@twice.register_fake
def _twice_fake(x: Tensor, more: float) -> Tensor:
    assert more == 1.5
    return torch.empty_like(x)


def _twice_gradient(_ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return grad * 2, None


twice.register_autograd(_twice_gradient)


@torch.library.custom_op("test_dynamo::bump", mutates_args=("y",))
def bump(x: Tensor, y: Tensor) -> Tensor:
    y.add_(x.sum())
    return x + 1


@bump.register_fake
def _bump_fake(x: Tensor, y: Tensor) -> Tensor:
    assert y.dim() == 2
    return torch.empty_like(x)


@torch.library.custom_op("test_dynamo::fill", mutates_args=("y",))
def fill(y: Tensor, value: int) -> None:
    y.fill_(value)


LIBRARY = torch.library.Library("test_dynamo", "FRAGMENT")
LIBRARY.define("doubled.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)", tags=torch.Tag.out)


@torch.library.impl("test_dynamo::doubled.out", "CompositeExplicitAutograd", lib=LIBRARY)
def _doubled(x: Tensor, *, out: Tensor) -> Tensor:
    return out.copy_(x * 2)


@torch.library.register_fake("test_dynamo::doubled.out", lib=LIBRARY)
def _doubled_fake(_x: Tensor, *, out: Tensor) -> Tensor:
    return out


def calls_it(x: Tensor, y: Tensor) -> Tensor:
    return twice(x, 1.5) * y  # type: ignore[no-any-return]


def writes_a_temporary(x: Tensor, y: Tensor) -> Tensor:
    z = y.detach().clone()
    return bump(x.detach(), z) + z * x  # type: ignore[no-any-return]


def writes_part_of_an_argument(x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        bumped = bump(x.detach(), y.detach()[1:])
    return bumped + x  # type: ignore[no-any-return]


def writes_a_row(x: Tensor, _y: Tensor) -> Tensor:
    made = torch.empty_like(x)
    fill(made[0], 7)
    return made[0] + x


def writes_transposed(x: Tensor, y: Tensor) -> Tensor:
    z = (y.detach() * 2).t()
    fill(z[1], 3)
    return z.t() * x


def fills_a_tensor(x: Tensor, y: Tensor) -> Tensor:
    made = torch.zeros(x.shape[0] + 1, *x.shape[1:], device=x.device)
    given = torch.ops.test_dynamo.doubled.out(x.detach(), out=made[1:])
    result: Tensor = given * y + made[1:]
    return result


CASES: list[tuple[Callable[..., Any], str]] = [
    (calls_it, "test_dynamo::twice"),
    (writes_a_temporary, "test_dynamo::bump"),
    (writes_part_of_an_argument, "test_dynamo::bump"),
    (writes_a_row, "test_dynamo::fill"),
    (writes_transposed, "test_dynamo::fill"),
    (fills_a_tensor, "test_dynamo::doubled.out"),
]


@pytest.mark.parametrize(("function", "op"), CASES, ids=lambda p: getattr(p, "__name__", ""))
def test_custom_operator(function: Callable[..., Any], op: str, place: str) -> None:
    args = [torch.linspace(-1, 2, 12).reshape(4, 3).to(place).requires_grad_() for _ in range(2)]
    graphs = check(function, args)
    assert host_operators(graphs) == [op]


# ---- optimizers ---------------------------------------------------------------------------------

Made = Callable[[Sequence[Parameter]], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Made] = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "AMSGrad": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True, weight_decay=0.1),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-2),
    "Adagrad": torch.optim.Adagrad,
    "Adadelta": torch.optim.Adadelta,
    "Adamax": torch.optim.Adamax,
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "ASGD": torch.optim.ASGD,
    "Rprop": torch.optim.Rprop,
}


@pytest.fixture
def parameters(device: str) -> Callable[[], list[Parameter]]:
    def make() -> list[Parameter]:
        torch.manual_seed(0)
        return [Parameter(torch.randn(4, 3).to(device)) for _ in range(3)]

    return make


# PyTorch's own optimizers and Dynamo warn about lr_scheduler and the profiler.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_step(name: str, parameters: Callable[[], list[Parameter]]) -> None:
    torch.compiler.reset()
    eager, compiled = parameters(), parameters()
    one, other = OPTIMIZERS[name](eager), OPTIMIZERS[name](compiled)
    step = torch.compile(other.step, backend="neuron")
    with watched() as graphs:
        for number in range(3):
            for a, b in zip(eager, compiled, strict=True):
                grad = torch.linspace(-1, 1, 12).reshape(4, 3).roll(number).to(a.device)
                a.grad, b.grad = grad.clone(), grad.clone()
            one.step()
            step()
    assert not host_operators(graphs)
    # Few roundings a step: the compiled step may contract products and sums.
    for a, b in zip(eager, compiled, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-6)
