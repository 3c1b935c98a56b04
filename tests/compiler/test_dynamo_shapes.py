"""Symbolic sizes, and what strict portability refuses."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from neuronxcc.environment.compilation import TORCH_NEURONX_MAX_SHAPES
from neuronxcc.environment.variable import VariableError
from torch_neuronx.dynamo.shapes import DataShapeWarning, ShapeLimitWarning
from torch_neuronx.ops import PortabilityWarning, portability

from .dynamo_tools import watched

# Dynamo wraps what a backend raises in an exception of its own.
FAILED = torch._dynamo.exc.BackendCompilerFailed


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch.compiler.reset()


def model(x: Tensor) -> tuple[Tensor, int, Tensor]:
    places = torch.arange(x.shape[0], device=x.device)
    return (x * 2).softmax(-1).reshape(-1), x.shape[0] * 2, places


def rows(count: int) -> Tensor:
    return torch.linspace(-1, 1, count * 4).reshape(count, 4).to("neuron").requires_grad_()


def assert_same(count: int, compiled: object) -> None:
    x, y = rows(count), rows(count)
    got, expected = compiled(x), model(y)  # type: ignore[operator]
    torch.testing.assert_close(got[0], expected[0])
    assert got[1] == expected[1]
    assert got[2].tolist() == expected[2].tolist()
    got[0].square().sum().backward()
    expected[0].square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.parametrize("dynamic", [None, True])
def test_one_program_for_each_shape(dynamic: bool | None) -> None:
    compiled = torch.compile(model, backend="neuron", dynamic=dynamic)
    with watched() as graphs:
        for count in (3, 5, 7, 5, 3):
            assert_same(count, compiled)
    assert len(graphs) == (6 if dynamic else 8)  # the first shape is compiled twice if unasked


def test_floats_that_dynamo_makes_symbolic() -> None:
    norm = torch.nn.LayerNorm(4).to("neuron")  # its epsilon
    compiled = torch.compile(norm, backend="neuron", dynamic=True)
    for count in (3, 5):
        torch.testing.assert_close(compiled(rows(count)), norm(rows(count)))


class Scaled(torch.nn.Module):
    """Python floats, which Dynamo makes arguments, read in functions that an operator runs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = 0.25, 1.5

    def forward(self, x: Tensor) -> Tensor:
        # Dynamo itself fails where two functions read one of them, or where `torch.cond` runs one.
        a: Tensor = checkpoint(lambda x: (x * self.first).sin(), x, use_reentrant=False)
        b: Tensor = checkpoint(lambda x: (x - self.second).cos(), x, use_reentrant=False)
        return a + b


def test_floats_that_graphs_within_the_graph_read() -> None:
    module = Scaled().to("neuron")
    compiled = torch.compile(module, backend="neuron", dynamic=True)
    for count, second in ((3, 1.5), (5, 1.5), (5, -2.5)):
        module.second = second
        x, y = rows(count), rows(count)
        got, expected = compiled(x), module(y)
        torch.testing.assert_close(got, expected)
        got.sum().backward()
        expected.sum().backward()
        torch.testing.assert_close(x.grad, y.grad)


def test_more_shapes_than_the_bound_run_in_eager_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TORCH_NEURONX_MAX_SHAPES.name, "2")
    compiled = torch.compile(model, backend="neuron", dynamic=True)
    with watched() as graphs:
        assert_same(3, compiled)
        assert_same(5, compiled)
        with pytest.warns(ShapeLimitWarning) as caught:
            assert_same(7, compiled)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert_same(9, compiled)
    assert len(graphs) == 4
    assert str(caught[0].message) == (
        "a compiled graph was called with more than 2 different shapes; further ones run operator "
        "by operator, first: [7, 4]. A NeuronCore needs static shapes: pad inputs to a few sizes, "
        "or set TORCH_NEURONX_MAX_SHAPES to compile more programs"
    )


@pytest.mark.filterwarnings(
    "ignore:Error detected in IndexFillBackward"
)  # PyTorch's, while tracing
@pytest.mark.parametrize("dim", [0, 1])
def test_a_gradient_whose_shape_depends_on_numbers(dim: int) -> None:
    """That of the number filled in: PyTorch asks for the places, each once."""

    def fill(x: Tensor, places: Tensor, value: Tensor) -> Tensor:
        return (x * 2).index_fill(dim, places, value * 3)

    def run(call: object, device: str, count: int) -> list[Tensor]:
        x = torch.arange(3.0 * count).view(count, 3).to(device).requires_grad_()
        value = torch.tensor(5.0).to(device).requires_grad_()
        assert callable(call)
        result = call(x, torch.tensor([1, 0, 1], device=device), value)
        result.square().sum().backward()
        assert x.grad is not None
        assert value.grad is not None
        return [result.detach().cpu(), x.grad.cpu(), value.grad.cpu()]

    compiled = torch.compile(fill, backend="neuron", dynamic=True)
    for count in (3, 5):
        with pytest.warns(DataShapeWarning, match=r"_unique.* operator by operator"):
            got = run(compiled, "neuron", count)
        assert all(map(torch.equal, got, run(fill, "cpu", count)))


BY_DATA: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda x: x.sum().item() * x,
    "whole number": lambda x: x.new_ones(int(x.argmax().item()) + 2) * x.sum(),
    "nonzero": lambda x: x.nonzero() * 2,
    "mask": lambda x: x[x > 0] + 1,
    "unique": lambda x: torch.unique(x.sign(), return_counts=True),
    "repeated": lambda x: x.repeat_interleave((x > 0).long() + 1),
}


@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", BY_DATA)
def test_shapes_of_data_that_dynamo_was_asked_to_capture(name: str, dynamic: bool | None) -> None:
    function = BY_DATA[name]
    capture = torch._dynamo.config.patch(
        capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True
    )
    with capture, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled = torch.compile(function, backend="neuron", dynamic=dynamic, fullgraph=True)
        for values in ([1.0, 0.0, -2.0, 3.0, 0.0], [0.5, 2.0, -1.0]):
            x = torch.tensor(values)
            for got, expected in zip(
                pytree.tree_leaves(compiled(x.to("neuron"))),
                pytree.tree_leaves(function(x)),
                strict=True,
            ):
                torch.testing.assert_close(got.cpu(), expected)
    said = [str(w.message) for w in caught if w.category is DataShapeWarning]
    assert said
    assert all("it runs operator by operator. Compile what is before" in text for text in said)
    if name == "item" and not dynamic:
        return  # PyTorch makes the number a tensor, so there is nothing to refuse
    with capture, portability("strict"), pytest.raises(FAILED, match=r"NCC_EUOC002|NCC_EMOD025"):
        torch.compile(lambda x: function(x * 2), backend="neuron", dynamic=dynamic)(x.to("neuron"))


SIZES_OF_GRADIENTS = {
    "convolutions": lambda: torch.nn.Sequential(
        torch.nn.Conv1d(2, 4, 3), torch.nn.ReLU(), torch.nn.Conv1d(4, 2, 3)
    ),
    "norms": lambda: torch.nn.Sequential(
        torch.nn.Conv1d(2, 4, 3, padding=1), torch.nn.GroupNorm(2, 4), torch.nn.GELU()
    ),
    "pools": lambda: torch.nn.Sequential(torch.nn.Conv1d(2, 4, 1), torch.nn.MaxPool1d(2)),
    "adaptive": lambda: torch.nn.Sequential(
        torch.nn.Conv1d(2, 4, 3), torch.nn.AdaptiveAvgPool1d(5), torch.nn.Linear(5, 3)
    ),
}


# Dynamo looks at the gradient of what the function returns.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("name", SIZES_OF_GRADIENTS)
def test_compiled_autograd_with_symbolic_sizes(name: str) -> None:
    """Its graphs take a list of tensors, some of whose symbolic sizes are no argument."""
    torch.manual_seed(0)
    theirs = SIZES_OF_GRADIENTS[name]()
    ours = copy.deepcopy(theirs).to("neuron")

    def train(net: torch.nn.Module, x: Tensor) -> Tensor:
        loss: Tensor = net(x).square().mean()
        loss.backward()
        return loss

    with torch._dynamo.config.patch(compiled_autograd=True):
        compiled = torch.compile(train, backend="neuron", dynamic=True)
        for length in (8, 9, 12, 8):
            x = torch.linspace(-1, 1, 4 * length).view(2, 2, length)
            torch.testing.assert_close(compiled(ours, x.to("neuron")).cpu(), train(theirs, x))
            for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
                torch.testing.assert_close(mine.grad, other.grad, check_device=False)
                mine.grad = other.grad = None


@pytest.mark.parametrize("text", ["0", "-3", "many"])
def test_a_wrong_bound(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TORCH_NEURONX_MAX_SHAPES.name, text)
    with pytest.raises(VariableError, match=f"_SHAPES='{text}' is not valid; allowed: a number, 1"):
        TORCH_NEURONX_MAX_SHAPES.get()
    monkeypatch.delenv(TORCH_NEURONX_MAX_SHAPES.name)
    assert TORCH_NEURONX_MAX_SHAPES.get() == TORCH_NEURONX_MAX_SHAPES.default


def test_strict_refuses_symbolic_sizes() -> None:
    compiled = torch.compile(model, backend="neuron", dynamic=True)
    with portability("strict"), pytest.raises(FAILED) as caught:
        compiled(rows(3))
    text = str(caught.value)
    assert "[NCC_EMOD025] Dynamic shape is not supported: instruction '" in text
    assert "The Neuron compiler requires all tensor dimensions to be statically sized" in text
    assert f"at {__file__}:" in text
    assert "remedy: torch.compile(..., dynamic=False)" in text


def svd(x: Tensor) -> Tensor:
    values: Tensor = torch.linalg.svdvals(x)  # asks for it
    return values * 2


def double(x: Tensor) -> Tensor:
    return x.double() * 2


def test_strict_refuses_operators_of_no_neuroncore() -> None:
    with portability("strict"), pytest.raises(FAILED) as caught:
        torch.compile(svd, backend="neuron")(rows(3).detach())
    text = str(caught.value)
    assert "[NCC_EUOC002] An unsupported operator was used: aten::_linalg_svd" in text
    assert f"at {__file__}:" in text
    assert "values: Tensor = torch.linalg.svdvals(x)  # asks for it" in text
    assert "reason: matrix decompositions are not operators of the compiler" in text
    assert "remedy: " in text


def test_strict_refuses_types_of_no_neuroncore() -> None:
    with portability("strict"), pytest.raises(FAILED) as caught:
        torch.compile(double, backend="neuron")(rows(3).detach())
    assert "aten::mul.Tensor on float64 does not run on a NeuronCore (trn2) [NCC_ESPP004]" in str(
        caught.value
    )
    assert "return x.double() * 2" in str(caught.value)


def test_strict_refuses_custom_operators() -> None:
    @torch.library.custom_op("test_shapes::same", mutates_args=())
    def same(x: Tensor) -> Tensor:
        return x.clone()

    same.register_fake(torch.empty_like)

    def function(x: Tensor) -> Tensor:
        return same(x) + 1  # type: ignore[no-any-return]

    with portability("strict"), pytest.raises(FAILED) as caught:
        torch.compile(function, backend="neuron")(rows(3).detach())
    assert "An unsupported operator was used: test_shapes::same" in str(caught.value)
    assert "the compiler has no lowering for it: it would run on the host" in str(caught.value)


def test_warn_names_what_it_runs_anyway() -> None:
    x = rows(3).detach()
    with portability("warn"), pytest.warns(PortabilityWarning) as caught:
        got = torch.compile(svd, backend="neuron")(x)
    torch.testing.assert_close(got.cpu(), svd(x.cpu()))
    mine = [w for w in caught if "_linalg_svd" in str(w.message)]
    assert mine
    assert all(w.filename == __file__ for w in mine[:1])
