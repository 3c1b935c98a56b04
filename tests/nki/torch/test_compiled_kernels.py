"""Kernels and operators made of them: eager, compiled, and their gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import nki.isa as nisa
import nki.language as nl
from examples import nki_sine
from neuronxcc.program.program import CallStep
from neuronxcc.program.steps.loop import LoopStep
from nki.errors import NkiError
from tests.nki.torch.kernels_for_tests import (
    Way,
    combine,
    cosine,
    increment_into,
    shift,
    sine,
)
from torch_neuronx import nki, nki_op
from torch_neuronx.dynamo.backend import CompiledGraph

DEVICES = ("cpu", "neuron")


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def compiled(function: Any) -> Any:
    return torch.compile(function, backend="neuron", fullgraph=True)


def calls(graph: CompiledGraph) -> int:
    return sum(isinstance(step, CallStep) for step in graph.executable.program.steps)


@nki_op("nki_tests::sine", mutates_args={})
def sine_op(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    sine(x, out)
    return out


@nki_op("nki_tests::cosine", mutates_args={})
def cosine_op(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    cosine(x, out)
    return out


def sine_function(x: torch.Tensor) -> Any:
    return Sine.apply(x)  # type: ignore[no-untyped-call]


def _save(ctx: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
    del output
    ctx.save_for_backward(*inputs)


def _sine_backward(ctx: Any, grad: torch.Tensor) -> Any:
    (x,) = ctx.saved_tensors
    return grad * cosine_op(x)


sine_op.register_autograd(_sine_backward, setup_context=_save)


@nki_op("nki_tests::increment_", mutates_args={"out"})
def increment_(a: torch.Tensor, out: torch.Tensor) -> None:
    increment_into(a, out)


class Sine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        out = torch.empty_like(x)
        sine(x, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        out = torch.empty_like(x)
        cosine(x, out)
        return grad * out


@pytest.mark.parametrize("device", DEVICES)
def test_kernels_are_steps(device: str, graphs: list[CompiledGraph]) -> None:
    a, b = (torch.randn(16, 8, device=device) for _ in range(2))

    def f(a: torch.Tensor, b: torch.Tensor) -> Any:
        out = torch.empty_like(a)
        increment_into(a * 2, out)
        return combine(out.t(), b.t().sin(), scale=3.0, way=Way.SUBTRACT) * 2

    torch.testing.assert_close(compiled(f)(a, b), f(a, b))
    (graph,) = graphs
    assert calls(graph) == 2
    assert not graph.imported.host_calls
    # What stands before and after them is fused as ever.
    assert sum(isinstance(s, LoopStep) for s in graph.executable.program.steps) <= 4


def test_outputs_that_are_empty_before_are_not_copied(graphs: list[CompiledGraph]) -> None:
    def f(a: torch.Tensor) -> torch.Tensor:
        empty, full = torch.empty_like(a), torch.zeros_like(a)
        increment_into(a, empty)
        increment_into(a * 2, full)
        return empty + full

    a = torch.randn(8, 8)
    torch.testing.assert_close(compiled(f)(a), f(a))
    bodies = [s.bodies[0] for s in graphs[0].executable.program.steps if isinstance(s, CallStep)]
    inputs = sorted(sum(b.kind == "input" for b in body.buffers) for body in bodies)
    assert inputs == [1, 2]


@pytest.mark.parametrize("executor", ["native", "reference"])
def test_reference_executors_take_kernels(
    executor: str, monkeypatch: pytest.MonkeyPatch, graphs: list[CompiledGraph]
) -> None:
    def f(a: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(a)
        increment_into(a * 2, out)
        return out.sin()

    a = torch.randn(8, 8)
    expected = f(a)
    monkeypatch.setenv("TORCH_NEURONX_EXECUTOR", executor)
    other = "reference" if executor == "native" else "native"
    monkeypatch.setenv("TORCH_NEURONX_NKI_EXECUTOR", other)
    torch.testing.assert_close(compiled(f)(a), expected)
    assert not graphs[0].imported.host_calls


@pytest.mark.parametrize("device", DEVICES)
def test_arguments_of_the_graph_are_written(device: str) -> None:
    def f(cache: torch.Tensor, row: torch.Tensor) -> Any:
        same, more = shift(cache, row + 1)
        return same * 2, more["moved"], more["second"]

    row = torch.randn(1, 3, device=device)
    one, two = (torch.ones(4, 3, device=device) for _ in range(2))
    before = one._version
    for found, expected in zip(compiled(f)(one, row), f(two, row), strict=True):
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(one, two)
    assert one._version > before


# PyTorch's own tracer makes one.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("function", [sine_op, sine_function])
@pytest.mark.parametrize("device", DEVICES)
def test_gradients(device: str, function: Any, graphs: list[CompiledGraph]) -> None:
    def f(x: torch.Tensor) -> Any:
        return (function(x * 1.5) * 2).sum()

    x = torch.randn(8, 8, device=device, requires_grad=True)
    (eager,) = torch.autograd.grad(f(x), x)
    torch.testing.assert_close(eager, 3 * (x * 1.5).cos(), rtol=1e-5, atol=1e-5)
    (found,) = torch.autograd.grad(compiled(f)(x), x)
    torch.testing.assert_close(found, eager)
    assert [graph.kind for graph in graphs] == ["forward", "backward"]
    # What needs no gradient may run in the forward graph, as AOTAutograd's partition decides.
    assert sum(map(calls, graphs)) == 2


@pytest.mark.parametrize("device", DEVICES)
def test_operators_follow_the_rules_of_pytorch(device: str) -> None:
    x = torch.randn(4, 4, device=device)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(sine_op, (x,), test_utils=tests)
    torch.library.opcheck(increment_, (x, x.clone()), test_utils=tests)
    out = torch.zeros_like(x)
    increment_(x, out)
    torch.testing.assert_close(out, x + 1)

    def f(x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        increment_(x, out)
        return out * 2

    torch.testing.assert_close(compiled(f)(x), (x + 1) * 2)


# PyTorch's own tracer instantiates the Function.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_the_example_of_the_documentation() -> None:
    assert nki_sine.run() == []


def test_undeclared_writes_are_found() -> None:
    @nki_op("nki_tests::undeclared", mutates_args={})
    def undeclared(a: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        increment_into(a, out)
        return a + 1

    a = torch.ones(2, 2)
    with pytest.raises(NkiError, match=r"writes its argument 'out'; .*mutates_args=.*NKI273"):
        undeclared(a, torch.zeros(2, 2))


def test_a_kernel_itself_can_be_an_operator() -> None:
    @nki_op("nki_tests::double")
    @nki.jit
    def double(a: torch.Tensor) -> torch.Tensor:
        out = nl.ndarray(a.shape, a.dtype, nl.shared_hbm)
        nl.store(out, nl.multiply(nl.load(a), 2.0))  # type: ignore[arg-type]
        return out  # type: ignore[return-value]

    a = torch.randn(4, 4)
    assert torch.equal(double(a), a * 2)
    assert torch.equal(torch.ops.nki_tests.double(a), a * 2)


def test_launch_grids() -> None:
    @nki.jit
    def kernel(a: Any, bias: Any = None, *, rows: int) -> Any:
        assert bias is None
        out = nl.ndarray(a.shape, a.dtype, nl.shared_hbm)
        core = nl.program_id(0)
        mine = slice(core * rows, (core + 1) * rows)
        nl.store(out[mine], nl.multiply(nl.load(a[mine]), float(core + 1)))
        return out

    a = torch.randn(4, 4)
    expected = a * torch.tensor([1.0, 1.0, 2.0, 2.0])[:, None]
    for run in (kernel[2], compiled(lambda a, *, rows: kernel[2](a, None, rows=rows) + 0)):
        torch.testing.assert_close(run(a, rows=2), expected)


def test_loops_of_the_device() -> None:
    @nki.jit
    def kernel(x: Any, count: Any) -> Any:
        out = nl.zeros(x.shape, x.dtype, nl.shared_hbm)
        number, tile = nl.ndarray((1, 1), nl.int32), nl.ndarray((1, 4), x.dtype)
        nisa.dma_copy(dst=number, src=count)
        upper = nisa.register_alloc()
        nisa.register_load(upper, number)
        for i in nl.dynamic_range(0, upper):
            places: dict[str, Any] = {
                "pattern": [[4, 1], [1, 4]],
                "scalar_offset": i,
                "indirect_dim": 1,
            }
            nisa.dma_copy(dst=tile, src=x.ap(**places))
            nisa.dma_copy(dst=out.ap(**places), src=tile)
        return out

    x = torch.arange(1.0, 17.0).reshape(1, 16)
    run = compiled(lambda x, n: kernel(x * 2, n) / 2)
    for count in (3, 9):
        n = torch.tensor([[count]], dtype=torch.int32)
        expected = torch.where(torch.arange(16) < count + 3, x, 0.0)
        torch.testing.assert_close(kernel(x, n), expected)
        torch.testing.assert_close(run(x, n), expected)


def test_symbolic_sizes_are_fixed() -> None:
    run = torch.compile(lambda a: sine_op(a) * 2, backend="neuron", dynamic=True)
    for rows in (3, 5):
        a = torch.randn(rows, 4)
        torch.testing.assert_close(run(a), a.sin() * 2)


def test_refusals_are_told_while_tracing(recwarn: pytest.WarningsRecorder) -> None:
    a = torch.ones(4, 4)
    text = r"dma_copy dst of shape .* and src of shape .*NKI106"

    def f(a: torch.Tensor) -> Any:
        return increment_into(a * 2, a[:2])

    with pytest.raises(torch._dynamo.exc.Unsupported, match=text):
        compiled(f)(a)
    torch._dynamo.reset()
    with pytest.raises(NkiError, match=text):
        torch.compile(f, backend="neuron")(a)
    # Dynamo did not try to read how kernels are recorded, of which it would have warned.
    assert not [w for w in recwarn if "Dynamo" in str(w.message)]


def test_graph_breaks_leave_kernels_whole() -> None:
    def f(a: torch.Tensor) -> Any:
        b = combine(a, a)
        torch._dynamo.graph_break()
        return combine(b * 2, a)

    a = torch.randn(4, 4)
    torch.testing.assert_close(torch.compile(f, backend="neuron")(a), a * 5)


def test_other_backends_trace_kernels_too() -> None:
    a = torch.randn(4, 4)
    run = torch.compile(lambda a: combine(a * 2, a), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(run(a), a * 3)
