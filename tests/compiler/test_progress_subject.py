"""The progress of a compilation names the user's module or function."""

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torch_neuronx.dynamo import native
from torch_neuronx.dynamo.subject import subject_of, titled


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x) * 2
        return y


class Heir(Model):
    pass


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        return result + helper(result)

    return wrapper


def helper(x: Tensor) -> Tensor:
    return x * 2


class Decorated(Model):
    @logged
    @logged
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class Broken(Model):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        torch._dynamo.graph_break()
        return helper(y)


def function(x: Tensor) -> Tensor:
    return helper(x) + 1


@torch.no_grad()
def decorated_function(x: Tensor) -> Tensor:
    return x + 1


NAMELESS: Callable[[Tensor], Tensor] = lambda x: x * 5  # noqa: E731 - a function without a name
RESUMED = Broken.forward.__code__.co_firstlineno + 2

# What is compiled, and the names of its graphs.
CASES: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "module": (Model, ["Model.forward"]),
    "inherited": (Heir, ["Model.forward"]),
    "container": (lambda: nn.Sequential(Model(), nn.ReLU()), ["Sequential.forward"]),
    "decorated": (Decorated, ["Decorated.forward"]),
    "broken": (Broken, ["Broken.forward", f"Broken.forward from line {RESUMED}"]),
    "function": (lambda: function, ["function"]),
    "decorated function": (lambda: decorated_function, ["decorated_function"]),
    "lambda": (lambda: NAMELESS, ["<lambda>"]),
    "method": (lambda: Model().forward, ["Model.forward"]),
}


@pytest.fixture
def titles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    torch.compiler.reset()
    seen: list[str] = []

    def record(title: str) -> nullcontext[None]:
        seen.append(title)
        return nullcontext()

    monkeypatch.setattr(native, "Progress", record)
    return seen


def subjects(titles: list[str]) -> list[str]:
    assert all(title.startswith("compiling ") for title in titles)
    return [title.removeprefix("compiling ").rpartition(" (")[0] for title in titles]


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_graphs_are_named(titles: list[str], kind: str, dynamic: bool) -> None:
    make, names = CASES[kind]
    made: Any = make()
    if isinstance(made, nn.Module):
        made.to("neuron").requires_grad_(requires_grad=False)
    elif getattr(made, "__self__", None) is not None:
        made.__self__.to("neuron").requires_grad_(requires_grad=False)
    compiled: Any = torch.compile(made, backend="neuron", dynamic=dynamic)
    compiled(torch.ones(2, 3, device="neuron"))
    assert subjects(titles) == names
    assert all(title.endswith(".inference)") for title in titles)


def test_the_backward_graph_has_the_name_of_its_model(titles: list[str]) -> None:
    model = Model().to("neuron")
    compiled = torch.compile(model, backend="neuron", options={"model_name": "mine"})
    compiled(torch.ones(2, 3, device="neuron")).sum().backward()
    assert subjects(titles) == ["Model.forward", "Model.forward"]
    forward, backward = (title.rpartition(" (")[2] for title in titles)
    assert forward.startswith("mine.graph")
    assert forward.endswith(".forward)")
    assert backward == forward.replace(".forward", ".backward")


def test_without_a_subject_there_is_the_name_of_the_graph() -> None:
    assert subject_of(()) == ""
    assert titled("graph0.inference", "") == "graph0.inference"
    assert titled("graph0.inference", "f") == "f (graph0.inference)"
