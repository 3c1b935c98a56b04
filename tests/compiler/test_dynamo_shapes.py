"""Symbolic sizes, and what strict portability refuses."""

import warnings

import pytest
import torch
from torch import Tensor
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
