"""Assertions and draws of compiled functions are those of eager mode."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.device.enqueued import to_the_end
from torch_neuronx import neuron

aten = torch.ops.aten
TEXT = "Expected Tensor with single nonzero value, but got zero"


def plain(x: Tensor) -> Tensor:
    torch._assert_async((x > 0).all())
    return x + 1


def by_name(x: Tensor) -> Tensor:
    torch._assert_async(input=(x > 0).all())
    return x + 1


def number(x: Tensor) -> Tensor:
    torch._assert_async((x > 0).prod())
    return x + 1


def operator(x: Tensor) -> Tensor:
    aten._assert_async((x > 0).all())
    return x + 1


def overload(x: Tensor) -> Tensor:
    aten._assert_async.default((x > 0).all())
    return x + 1


def with_text(x: Tensor) -> Tensor:
    torch._assert_async((x > 0).all(), "not positive")
    return x + 1


def nothing_else(x: Tensor) -> None:
    torch._assert_async((x > 0).all())


def many_values(x: Tensor) -> Tensor:
    torch._assert_async(x > 0)
    return x + 1


def no_values(x: Tensor) -> Tensor:
    torch._assert_async(x[:0], "no")
    return x + 1


ASSERTIONS = [
    plain, by_name, number, operator, overload, with_text, nothing_else, many_values,
    no_values,
]  # fmt: skip


def outcome(function: Callable[[Tensor], Any], x: Tensor) -> Any:
    """What a call gives, or how it fails."""
    try:
        result = to_the_end(function, x)
    except RuntimeError as error:
        return "fails", str(error).split(" (While running")[0]
    return "gives", None if result is None else result.tolist()


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch.compiler.reset()
    FakeTensorMode.cache_clear()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", ASSERTIONS, ids=lambda f: str(f.__name__))
def test_assertions_hold_as_in_eager_mode(function: Callable[[Tensor], Any], dynamic: bool) -> None:
    compiled = torch.compile(function, backend="neuron", fullgraph=True, dynamic=dynamic)
    for values in ([1.0, 2.0], [1.0, -2.0], [3.0, 4.0, 5.0]):
        x = torch.tensor(values)
        assert outcome(compiled, x.to("neuron")) == outcome(function, x)


def test_assertions_in_training() -> None:
    x = torch.tensor([1.0, -1.0], device="neuron", requires_grad=True)
    compiled = torch.compile(plain, backend="neuron")
    with pytest.raises(RuntimeError, match=TEXT):
        to_the_end(compiled, x)
    compiled(x.detach().abs().requires_grad_()).sum().backward()


# Functions of a tensor of numbers from 1 to 9 and one of probabilities, which draw.
DRAWS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "binomial": torch.binomial,
    "binomial of results": lambda n, p: torch.binomial(n + 1, p / 2),
    "binomials": lambda n, p: torch.binomial(n, p) * 100 + torch.binomial(n, p),
    "rand, binomial": lambda n, p: torch.rand_like(n) + torch.binomial(n, p),
    "binomial, rand": lambda n, p: torch.binomial(n, p) + torch.rand_like(n),
    "binomial of a transposed": lambda n, p: torch.binomial(n.t(), p.t()),
    "dirichlet": lambda n, _: torch._sample_dirichlet(n),
    "Binomial": lambda _, p: torch.distributions.Binomial(10, p).sample(),
    "Dirichlet": lambda n, _: torch.distributions.Dirichlet(n).sample(),
    "poisson": lambda n, _: torch.poisson(n),
    "gamma": lambda n, _: torch._standard_gamma(n),
    "multinomial": lambda n, _: torch.multinomial(n, 3),
    "normal": torch.normal,
    "bernoulli": lambda _, p: torch.bernoulli(p),
    "geometric": lambda n, _: torch.empty_like(n).geometric_(0.3),
    "cauchy": lambda n, _: torch.empty_like(n).cauchy_(),
    "log normal": lambda n, _: torch.empty_like(n).log_normal_(),
    "exponential": lambda n, _: torch.empty_like(n).exponential_(),
    "randperm": lambda n, _: torch.randperm(9, device=n.device),
    "randint": lambda n, _: torch.randint_like(n, 9),
    "rrelu": lambda n, _: torch.nn.functional.rrelu(4 - n, training=True),
    "dropout": lambda n, _: torch.nn.functional.dropout(n, 0.3),
}


# Dynamo's, about PyTorch's own function of Dirichlet distributions.
@pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated")
@pytest.mark.parametrize("backend", ["neuron", "aot_eager"])
@pytest.mark.parametrize("name", DRAWS)
def test_the_first_call_draws_what_eager_mode_draws(name: str, backend: str) -> None:
    """Compiling draws nothing from the device's generator, and neither does the trace."""
    function = DRAWS[name]
    n = torch.arange(20.0).remainder(9).add(1).reshape(4, 5).to("neuron")
    p = torch.linspace(0.1, 0.9, 20).reshape(4, 5).to("neuron")
    compiled = torch.compile(function, backend=backend)
    drawn = []
    for each in (function, compiled):
        torch.manual_seed(0)
        drawn.append(torch.stack([each(n, p), each(n, p)]))
    torch.testing.assert_close(drawn[1], drawn[0])


def test_tracing_draws_nothing() -> None:
    before = neuron.get_rng_state()
    with FakeTensorMode():
        x = torch.empty(3, 2, device="neuron")
        for made in (torch.binomial(x, x), torch._sample_dirichlet(x)):
            assert (made.shape, made.dtype, made.device) == (x.shape, x.dtype, x.device)
    assert torch.equal(neuron.get_rng_state(), before)
