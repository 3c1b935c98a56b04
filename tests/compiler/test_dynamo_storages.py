"""Compiled functions that give their arguments other memory: `x.data = y` and `x.set_(y)`."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from torch_neuronx.dynamo.backend import compile_graph
from torch_neuronx.dynamo.errors import CaptureError


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch.compiler.reset()


def _data(x: Tensor, y: Tensor) -> Any:
    x.data = y
    return x * 2


def _computed(x: Tensor, y: Tensor) -> Any:
    x.data = x.data * 3 + y
    return x + 1


def _swapped(x: Tensor, y: Tensor) -> Any:
    x.data, y.data = y.data, x.data
    return x - y


def _twice(x: Tensor, y: Tensor) -> Any:
    x.data = y
    x.data = x.data + 1
    return x * y


def _written_before(x: Tensor, y: Tensor) -> Any:
    x.add_(1)
    x.data = y * 2
    return x + y


def _set(x: Tensor, y: Tensor) -> Any:
    x.set_(y)  # type: ignore[call-overload]
    return x.sum()


def _view(x: Tensor, y: Tensor) -> Any:
    x.data = y.t()
    return x[0]


def _step(x: Tensor, y: Tensor) -> Any:
    """An optimizer of somebody's own."""
    with torch.no_grad():
        x.data = x.data - 0.1 * y
    return x.detach()


WRITES: list[Callable[[Tensor, Tensor], Any]] = [
    _data,
    _computed,
    _swapped,
    _twice,
    _written_before,
    _set,
    _view,
    _step,
]


def _run(function: Callable[..., Any], device: str, *, grad: bool) -> list[Any]:
    """Result, arguments, what the arguments' memory was, and which of these share memory."""
    x = torch.linspace(-1, 2, 9).view(3, 3).to(device).requires_grad_(grad)
    y = torch.linspace(1, 3, 9).cos().view(3, 3).to(device)
    before = [x.detach().view(3, 3), y.view(3, 3)]
    result = function(x, y)
    tensors = [result, x, y, *before]
    places = [t.untyped_storage().data_ptr() for t in tensors[1:]]
    shared = [[a == b for a in places] for b in places]
    return [*(t.detach().cpu() for t in tensors), [t.stride() for t in tensors], shared]


#: PyTorch fails for these with symbolic sizes, or not, by the order of a set: what guards a size
#: has lost its source where two arguments have taken each other's place ("sources must not be empty
#: for symbol").
ONLY_STATIC = {_swapped}


@pytest.mark.parametrize(
    ("write", "dynamic"),
    [
        pytest.param(write, dynamic, id=f"{write.__name__.strip('_')}-{dynamic}")
        for write in WRITES
        for dynamic in (None, True)
        if not (dynamic and write in ONLY_STATIC)
    ],
)
def test_arguments_have_other_memory(
    write: Callable[[Tensor, Tensor], Any], dynamic: bool | None
) -> None:
    ours = _run(torch.compile(write, backend="neuron", dynamic=dynamic), "neuron", grad=False)
    # Compiled by PyTorch without a compiler: `data` counts no writes, which Dynamo models.
    theirs = _run(torch.compile(write, backend="aot_eager", dynamic=dynamic), "cpu", grad=False)
    for got, expected in zip(ours, theirs, strict=True):
        if isinstance(expected, Tensor):
            torch.testing.assert_close(got, expected)
        else:
            assert got == expected


def test_a_parameter_is_replaced() -> None:
    ours = _run(torch.compile(_step, backend="neuron"), "neuron", grad=True)
    theirs = _run(_step, "cpu", grad=True)
    for got, expected in zip(ours[:3], theirs[:3], strict=True):
        torch.testing.assert_close(got, expected)


def test_memory_is_replaced_in_a_forward_graph() -> None:
    """What is kept for the backward pass comes behind the results of the graph, too."""

    def function(weight: Tensor, state: Tensor, y: Tensor) -> Tensor:
        state.data = y * 2
        return (weight * state).sin() * weight

    def run(call: Callable[..., Tensor], device: str) -> list[Tensor]:
        weight = torch.linspace(-1, 1, 3).to(device).requires_grad_()
        state, y = torch.zeros(3, device=device), torch.arange(3.0, device=device)
        result = call(weight, state, y)
        result.sum().backward()
        assert weight.grad is not None
        return [t.detach().cpu() for t in (result, weight.grad, state, y)]

    compiled = torch.compile(function, backend="neuron")
    torch.testing.assert_close(run(compiled, "neuron"), run(function, "cpu"))


def test_other_writes_that_capture_leaves_are_refused() -> None:
    graph = torch.fx.Graph()
    with FakeTensorMode():
        x = graph.placeholder("x")
        x.meta["val"] = torch.ones(3, device="neuron")
        written = graph.call_function(torch.ops.aten.squeeze_.default, (x,))
        written.meta["val"] = x.meta["val"]
        graph.output((written,))
    with pytest.raises(
        CaptureError, match=r"aten.squeeze_.default: PyTorch's capture left a write"
    ):
        compile_graph(torch.fx.GraphModule({}, graph), ())
