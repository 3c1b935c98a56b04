"""Jagged nested tensors as arguments of compiled functions, against the CPU's eager mode."""

from collections.abc import Callable, Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from torch._dynamo.utils import counters
from torch.nn import functional

from torch_neuronx.dynamo.errors import DynamicShapeError

from .dynamo_tools import watched

WIDTH = 8


def jagged(lengths: Sequence[int], device: str, *, grad: bool, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randn(n, WIDTH, generator=generator) for n in lengths]
    made = torch.nested.nested_tensor(rows, layout=torch.jagged)
    return made.to(device).detach().requires_grad_(grad)


def weights(x: Tensor, *shape: int) -> Tensor:
    count = torch.Size(shape).numel()
    return torch.arange(count, device=x.device).float().sin().reshape(shape)


def pointwise(x: Any) -> Any:
    return (x * 2 + 1).sigmoid() * x


def linear(x: Any) -> Any:
    return functional.linear(x, weights(x, 5, WIDTH), weights(x, 5))


def matmul(x: Any) -> Any:
    return x @ weights(x, WIDTH, 3)


def layer_norm(x: Any) -> Any:
    return functional.layer_norm(x, (WIDTH,), weights(x, WIDTH), weights(x, WIDTH))


def rms_norm(x: Any) -> Any:
    return functional.rms_norm(x, (WIDTH,))


def softmax(x: Any) -> Any:
    return x.softmax(-1)


def ragged_softmax(x: Any) -> Any:
    return x.softmax(1)


def values(x: Any) -> Any:
    return x.values().cumsum(0)


def offsets(x: Any) -> Any:
    return x.offsets().diff()


def padded(x: Any) -> Any:
    return x.to_padded_tensor(0.5)


def halves(x: Any) -> Any:
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * b, a], dim=-1)


def heads(x: Any) -> Any:
    return x.unflatten(-1, (2, 4)).transpose(1, 2).relu().transpose(1, 2).flatten(2)


def viewed(x: Any) -> Any:
    return x.view(x.shape[0], -1, 2, 4).view(x.shape) + torch.ones_like(x)


def converted(x: Any) -> Any:
    return x.double().float().clone()


def rebuilt(x: Any) -> Any:
    return torch.nested.nested_tensor_from_jagged(x.values() * 2, x.offsets())


def dropout(x: Any) -> Any:
    return functional.dropout(x, 0.0)


def mixed(x: Any) -> Any:
    return x.values() + 1, x * 2, x.offsets()


def ragged_sum(x: Any) -> Any:
    return x.sum(dim=1)


def last_sum(x: Any) -> Any:
    return x.sum(-1)


def ragged_mean(x: Any) -> Any:
    return x.mean(dim=1)


DIFFERENTIABLE = [
    pointwise, linear, matmul, layer_norm, rms_norm, softmax, values, padded, halves, heads,
    viewed, converted, rebuilt, dropout, mixed,
]  # fmt: skip
# PyTorch has no gradient of these for jagged tensors, on no device.
FORWARD = [*DIFFERENTIABLE, ragged_softmax, offsets, ragged_sum, last_sum, ragged_mean]


def dense(output: Any) -> list[Tensor]:
    leaves = output if isinstance(output, tuple) else (output,)
    return [leaf.values() if leaf.is_nested else leaf for leaf in leaves]


def run(function: Callable[..., Any], *args: Any) -> list[Tensor | None]:
    """Results and the gradients of the arguments, on the CPU."""
    output = dense(function(*args))
    total = sum((o * weights(o, *o.shape)).sum() for o in output if o.requires_grad)
    if isinstance(total, Tensor):
        total.backward()
    grads = [None if a.grad is None else a.grad.values().cpu() for a in args]
    return [o.detach().cpu() for o in output] + grads


def check(function: Callable[..., Any], compiled: Any, lengths: Sequence[int], grad: bool) -> None:
    expected = run(function, jagged(lengths, "cpu", grad=grad))
    got = run(compiled, jagged(lengths, "neuron", grad=grad))
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch.compiler.reset()


@pytest.mark.every(2)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
@pytest.mark.parametrize(
    ("function", "grad"),
    [(f, False) for f in FORWARD] + [(f, True) for f in DIFFERENTIABLE],
)
def test_functions_of_jagged_tensors(function: Callable[[Any], Any], grad: bool) -> None:
    compiled = torch.compile(function, backend="neuron", fullgraph=True)
    for lengths in ((3, 1, 4), (2, 2, 4), (5, 1, 6)):
        check(function, compiled, lengths, grad)


def test_other_lengths_are_traced_as_seldom_as_pytorch_does() -> None:
    lengths = ((3, 1, 4), (4, 1, 3), (1, 3, 4), (5, 2, 2), (6, 3, 2), (5, 2, 2))
    traced = []
    for device, backend in (("cpu", "aot_eager"), ("neuron", "neuron")):
        torch.compiler.reset()
        counters.clear()
        compiled = torch.compile(pointwise, backend=backend, fullgraph=True)
        with watched() as graphs:
            for each in lengths:
                run(compiled, jagged(each, device, grad=False))
        traced.append(counters["stats"]["unique_graphs"])
    assert traced == [2, 2]
    # One program for each set of: rows in all, shortest and longest length.
    assert len(graphs) == len({(sum(each), min(each), max(each)) for each in lengths})


@pytest.mark.slow
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4), grad=st.booleans())
@settings(max_examples=10, deadline=None)
def test_any_lengths(lengths: list[int], grad: bool) -> None:
    torch.compiler.reset()
    for function in (layer_norm, mixed, padded):
        compiled = torch.compile(function, backend="neuron", fullgraph=True)
        check(function, compiled, lengths, grad)


@pytest.mark.parametrize("shared", [False, True])
def test_two_jagged_tensors(shared: bool) -> None:
    def function(x: Any, y: Any) -> Any:
        return (x * 2).sin(), y.softmax(-1)

    def of_the_same_lengths(x: Any, y: Any) -> Any:
        return x * y + x

    def arguments(device: str) -> list[Any]:
        x = jagged((3, 1, 4), device, grad=False)
        if shared:
            y = torch.nested.nested_tensor_from_jagged(x.values() * 3, x.offsets())
        else:
            y = jagged((2, 5, 1), device, grad=False)
        return [x.requires_grad_(), y.detach().requires_grad_()]

    tried = of_the_same_lengths if shared else function
    compiled = torch.compile(tried, backend="neuron", fullgraph=True)
    expected, got = run(tried, *arguments("cpu")), run(compiled, *arguments("neuron"))
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def attention(x: Any) -> Any:
    q = x.unflatten(-1, (2, 4)).transpose(1, 2)
    return functional.scaled_dot_product_attention(q, q * 2, q).transpose(1, 2).flatten(2) + 1


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
def test_attention_ends_the_graph_as_on_the_cpu() -> None:
    for lengths in ((3, 1, 4), (5, 5, 2)):
        expected = run(attention, jagged(lengths, "cpu", grad=False))
        for function in (attention, torch.compile(attention, backend="neuron")):
            got = run(function, jagged(lengths, "neuron", grad=False))
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    for device, backend in (("cpu", "aot_eager"), ("neuron", "neuron")):
        torch.compiler.reset()
        compiled = torch.compile(attention, backend=backend, fullgraph=True)
        with pytest.raises(torch._dynamo.exc.Unsupported, match="fake tensors"):
            compiled(jagged((3, 1, 4), device, grad=False))


def test_shapes_that_lengths_decide_are_refused() -> None:
    def function(x: Any) -> Any:
        return x.unbind()[0] * 2

    compiled = torch.compile(function, backend="neuron", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as raised:
        compiled(jagged((3, 1), "neuron", grad=False))
    assert isinstance(raised.value.inner_exception, DynamicShapeError)
    assert "instruction 'unbind' has shape '[u0, 8]'" in str(raised.value)


def listed(rows: list[Tensor]) -> Any:
    return torch.nested.nested_tensor(rows, layout=torch.jagged)


def listed_with_gradient(rows: list[Tensor]) -> Any:
    return torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True)


def joined(rows: list[Tensor]) -> Any:
    """Its gradient goes on to the rows."""
    return torch.nested.as_nested_tensor([r.requires_grad_() for r in rows], layout=torch.jagged)


def of_values(rows: list[Tensor]) -> Any:
    lengths = torch.tensor([0, *(len(row) for row in rows)], device=rows[0].device)
    return torch.nested.nested_tensor_from_jagged(torch.cat(rows), lengths.cumsum(0))


def of_values_with_gradient(rows: list[Tensor]) -> Any:
    lengths = torch.tensor([0, *(len(row) for row in rows)], device=rows[0].device)
    values = torch.cat(rows).requires_grad_()
    return torch.nested.nested_tensor_from_jagged(values, lengths.cumsum(0))


# Dynamo's own question whether an argument has a gradient.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize(
    "make",
    [listed, listed_with_gradient, joined, of_values, of_values_with_gradient],
)
def test_however_it_was_made(make: Callable[[list[Tensor]], Any], trained: bool) -> None:
    """Made on the device, many are views of their values, which have sizes of their own."""

    def run(device: str, backend: str) -> list[Tensor]:
        torch.manual_seed(0)
        layer = torch.nn.Linear(WIDTH, WIDTH).requires_grad_(trained).to(device)
        generator = torch.Generator().manual_seed(1)
        rows = [torch.randn(n, WIDTH, generator=generator).to(device) for n in (3, 5, 2)]
        torch._dynamo.reset()
        result = torch.compile(lambda x: layer(x).sigmoid(), backend=backend)(make(rows))
        if result.requires_grad:
            result.values().square().sum().backward()
        gradients = [t.grad for t in (*layer.parameters(), *rows) if t.grad is not None]
        assert bool(gradients) == (trained or make is joined)
        return [t.detach().cpu() for t in (result.values(), *gradients)]

    torch.testing.assert_close(run("neuron", "neuron"), run("cpu", "eager"))


def test_a_view_of_a_part_of_its_values_is_refused() -> None:
    """PyTorch makes symbols of the part's sizes when it repeats the view on fake tensors."""
    values = torch.randn(12, WIDTH, device="neuron")[2:]
    offsets = torch.tensor([0, 4, 10], device="neuron")
    x = torch.nested.nested_tensor_from_jagged(values, offsets)
    with pytest.raises(DynamicShapeError, match=r"NCC_EMOD025.*has shape '\[s\d+, 8\]'"):
        torch.compile(pointwise, backend="neuron")(x)
    whole = torch.nested.nested_tensor_from_jagged(values.clone(), offsets)
    result = torch.compile(pointwise, backend="neuron")(whole)
    torch.testing.assert_close(result.values(), pointwise(values))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("trained", [False, True])
def test_made_in_the_function(dynamic: bool, trained: bool) -> None:
    """There is none among its arguments; numbers and other tensors are."""

    def function(x: Tensor, scale: float) -> Tensor:
        rows = torch.nested.as_nested_tensor([x, x[:1], x[1:3]], layout=torch.jagged)
        result: Tensor = (rows * scale).sin().values() + x.sum()
        return result

    compiled = torch.compile(function, backend="neuron", dynamic=dynamic)
    for rows in (4, 6):
        x = torch.linspace(-1, 1, rows * WIDTH).reshape(rows, WIDTH)
        mine, theirs = (x.to(d).requires_grad_(trained) for d in ("neuron", "cpu"))
        got, expected = compiled(mine, 0.5 * rows), function(theirs, 0.5 * rows)
        torch.testing.assert_close(got.cpu(), expected)
        if trained:
            for result in (got, expected):
                result.square().sum().backward()
            assert mine.grad is not None
            torch.testing.assert_close(mine.grad.cpu(), theirs.grad)
