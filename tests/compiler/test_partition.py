"""What the forward pass saves for the backward pass."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from torch_neuronx.dynamo import backend
from torch_neuronx.dynamo.partition import norms_from_statistics

aten = torch.ops.aten


@pytest.fixture
def compiled() -> Iterator[list[backend.CompiledGraph]]:
    found: list[backend.CompiledGraph] = []
    torch.compiler.reset()
    backend.OBSERVERS.append(found.append)
    yield found
    backend.OBSERVERS.remove(found.append)


@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    inner=st.integers(1, 3),
    affine=st.tuples(st.booleans(), st.booleans()),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
@settings(max_examples=30, deadline=None)
def test_norm_from_statistics_is_the_norm(
    shape: list[int], inner: int, affine: tuple[bool, bool], dtype: torch.dtype
) -> None:
    normalized = shape[-inner:]
    generator = torch.Generator().manual_seed(0)
    x, *both = (
        torch.randn(n, generator=generator, dtype=dtype) for n in (shape, normalized, normalized)
    )
    given_ = [t for t, wanted in zip(both, affine, strict=True) if wanted]

    def norm(x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        left = list(rest)
        weight, bias = (left.pop(0) if wanted else None for wanted in affine)
        y, mean, rstd = torch.native_layer_norm(x, normalized, weight, bias, 1e-5)
        return y + 1, mean, rstd

    expected = norm(x, *given_)
    gm = make_fx(norm, tracing_mode="fake")(x, *given_)
    norms_from_statistics(gm.graph)
    gm.graph.lint()
    gm.recompile()
    (whole,) = gm.graph.find_nodes(op="call_function", target=aten.native_layer_norm.default)
    assert {user.args[1] for user in whole.users} == {1, 2}
    # Four roundings each of numbers of some units, and another order of summing.
    torch.testing.assert_close(gm(x, *given_), expected, rtol=0, atol=64 * torch.finfo(dtype).eps)


def test_norm_with_coarse_statistics_stays_whole() -> None:
    graph = torch.fx.Graph()
    with FakeTensorMode():
        x = torch.empty(4, 8, dtype=torch.bfloat16)
        values = torch.native_layer_norm(x, [8], None, None, 1e-5)
    assert values[1].dtype == torch.bfloat16  # the CPU's
    argument = graph.placeholder("x")
    argument.meta["val"] = x
    norm = graph.call_function(aten.native_layer_norm.default, (argument, [8], None, None, 1e-5))
    parts = [graph.call_function(operator.getitem, (norm, i)) for i in range(3)]
    for part, value in zip(parts, values, strict=True):
        part.meta["val"] = value
    graph.output(tuple(parts))
    before = str(graph)
    norms_from_statistics(graph)
    assert str(graph) == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_only_arguments_of_gelu_and_norm_are_saved(
    compiled: list[backend.CompiledGraph], dtype: torch.dtype
) -> None:
    def function(x: Tensor, scale: Tensor, up: Tensor, down: Tensor) -> Tensor:
        hidden = functional.layer_norm(x, (16,), scale, scale)
        return functional.gelu(hidden @ up) @ down

    def run(call: object, device: str, dtype: torch.dtype) -> list[Tensor]:
        generator = torch.Generator().manual_seed(0)
        args = [
            (torch.randn(*n, generator=generator) / 4).to(dtype).to(device, dtype).requires_grad_()
            for n in ((32, 16), (16,), (16, 64), (64, 16))
        ]
        assert callable(call)
        result = call(*args)
        result.sum().backward()
        return [result.detach(), *(a.grad for a in args)]

    ours = run(torch.compile(function, backend="neuron"), "neuron", dtype)
    forward = next(graph for graph in compiled if graph.kind == "forward")
    computed = [tuple(result.shape) for result in forward.imported.graph.results]
    assert sorted(computed) == [(32, 1), (32, 1), (32, 16), (32, 64)]  # one is the result
    theirs = run(function, "neuron", dtype)
    # The same arithmetic in another order, and in bfloat16 fewer roundings between operators.
    eps = torch.finfo(dtype).eps
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=8 * eps * float(other.abs().max()))


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (2, 0, 1)])
def test_a_norm_in_training_has_the_strides_of_eager_mode(order: tuple[int, ...]) -> None:
    weight = torch.ones(4, device="neuron", requires_grad=True)
    x = torch.randn([(2, 3, 4)[order.index(d)] for d in range(3)]).permute(order).to("neuron")
    assert x.shape == (2, 3, 4)

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return functional.layer_norm(x, (4,), weight, weight)

    compiled = torch.compile(norm, backend="neuron", dynamic=False)
    assert compiled(x, weight).stride() == norm(x, weight).stride() == (12, 4, 1)


# None makes numbers much larger: the sine of a large one depends on the last bit of the number.
_BEFORE: dict[str, Callable[[Tensor], Tensor]] = {
    "exp": lambda x: torch.exp(-x.abs()),
    "twice": lambda x: x + x,
    "part": lambda x: x[2:].repeat(2)[:6],
    "view": lambda x: x.view(2, 3).t().reshape(6),
    "sin": torch.sin,
    "norm": lambda x: functional.rms_norm(x, (6,)),
    "remainder": lambda x: 3.0 % (x + 4),
    "cumsum": lambda x: x.cumsum(0) / 6,
}
_WRITES: dict[str, Callable[[Tensor], object]] = {
    "add_": lambda x: x.add_(1),
    "mul_": lambda x: x.mul_(x),
    "a part": lambda x: x[1:4].zero_(),
    "a view": lambda x: x.view(3, 2)[:, 1].add_(5),
    "copy_": lambda x: x.copy_(x.flip(0)),
    "an element": lambda x: x.__setitem__(0, 7.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
@settings(max_examples=15, deadline=None)
@given(
    before=st.lists(st.sampled_from(sorted(_BEFORE)), min_size=1, max_size=3),
    writes=st.lists(st.sampled_from(sorted(_WRITES)), min_size=1, max_size=2),
    also=st.booleans(),
    checks=st.booleans(),
)
@example(before=["exp"], writes=["add_"], also=False, checks=True)
def test_the_backward_pass_sees_arguments_as_they_were(
    *, dynamic: bool, before: list[str], writes: list[str], also: bool, checks: bool
) -> None:
    """The forward pass reads a tensor, and then writes to it.

    In a backward pass that checks something, as that of `eigvals` does, tokens are arguments.
    """

    def function(x: Tensor, weight: Tensor) -> Tensor:
        read = x
        for name in before:
            read = _BEFORE[name](read)
        for name in writes:
            _WRITES[name](x)
        if checks:
            read = read + torch.linalg.eigvals(torch.diag(weight)).abs().sum()
        return read * weight + x if also else (read * weight).sin()

    def run(call: object, device: str) -> tuple[Tensor, ...]:
        x, weight = torch.linspace(0.2, 1.4, 6), torch.linspace(1.0, 2.0, 6)
        x, weight = x.to(device), weight.to(device).requires_grad_()
        assert callable(call)
        for _ in range(2):
            result = call(x, weight)
            (result * torch.arange(6.0, device=device)).sum().backward()
        assert weight.grad is not None
        return result.detach().cpu(), weight.grad.cpu(), x.cpu()

    torch.compiler.reset()
    compiled = torch.compile(function, backend="neuron", dynamic=dynamic)
    for one, other in zip(run(compiled, "neuron"), run(function, "cpu"), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
