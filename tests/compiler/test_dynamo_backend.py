"""torch.compile(backend="neuron") against eager mode: what graphs return, change and draw."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from neuronxcc.environment.compilation import TORCH_NEURONX_EXECUTOR
from torch_neuronx.dynamo.backend import own_options

from .dynamo_tools import assert_equal, check, host_operators, run, watched


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch.compiler.reset()


def operands(device: str, *, grad: bool = True) -> list[Tensor]:
    x = torch.linspace(-1, 2, 12).sin().reshape(4, 3)
    y = torch.linspace(1, 3, 12).cos().reshape(4, 3)
    return [t.to(device).requires_grad_(grad) for t in (x, y)]


def views(x: Tensor, _y: Tensor) -> Any:
    return x.view(-1), x.t(), x[1:], (x * 2).t(), (x * 3)[:, 0], x


def in_place(x: Tensor, y: Tensor) -> Tensor:
    z = x * 1
    z[1:].mul_(2)
    z.t().add_(1)
    z[:, 0] = y[:, 0]
    return z


def duplicates(x: Tensor, y: Tensor) -> Any:
    first, second = x + y, x + y
    return first, second, first


def copies(x: Tensor, _y: Tensor) -> Any:
    return x.clone(), x.clone(memory_format=torch.contiguous_format), x.detach()


def complex_numbers(x: Tensor, y: Tensor) -> Any:
    z = torch.view_as_complex(torch.stack([x, y], -1))
    return torch.view_as_real(z * z.conj() + torch.polar(x.abs(), y)), (z @ z.t()).abs()


def integers(x: Tensor, _y: Tensor) -> Any:
    i = (x * 10).long()
    return i // 3, i % 3, i >> 1, i.float().mean(), (i > 0).sum(), torch.where(i > 0, i, -i)


def order(x: Tensor, _y: Tensor) -> Any:
    values, places = x.sort(dim=1)
    return values, places, x.topk(2)[0], x.cumsum(0), x.argmax(1), x.median()


def joins(x: Tensor, y: Tensor) -> Any:
    return torch.cat([x, y]), torch.stack([x, y]), torch.einsum("ij,kj->ik", x, y)


def numbers(x: Tensor, _y: Tensor) -> Tensor:
    # Tensors without dimensions on the CPU, beside tensors on the device.
    return x * torch.tensor(2.0) + torch.tensor(3)


def random(x: Tensor, y: Tensor) -> Any:
    here = x.device
    return (
        x * torch.rand_like(x),
        torch.randn(3, device=here) + torch.randint(5, (3,), device=here),
        torch.bernoulli(x.detach().sigmoid()),
        torch.empty(4, device=here).normal_(),
        torch.multinomial(y.detach().abs(), 2),
        functional.dropout(x, 0.4),
    )


def checkpointed(x: Tensor, y: Tensor) -> Tensor:
    def block(a: Tensor) -> Tensor:
        return functional.dropout(torch.tanh(a @ y.T), 0.5) @ y

    return checkpoint(block, x, use_reentrant=False)  # type: ignore[no-any-return]


def autocast(x: Tensor, y: Tensor) -> Any:
    with torch.autocast(x.device.type, torch.bfloat16):
        z = x @ y.T
        return z, torch.softmax(z, -1)


def nothing(x: Tensor, _y: Tensor) -> Tensor:
    return x


def unused(_x: Tensor, y: Tensor) -> Tensor:
    return y * 2


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        x: Tensor = ctx.saved_tensors[0]
        grad: Tensor = grads[0]
        return grad * 3 * x


def own_gradient(x: Tensor, y: Tensor) -> Tensor:
    squared: Tensor = Square.apply(x)  # type: ignore[no-untyped-call]
    return squared + y


CASES: list[Callable[..., Any]] = [
    views, in_place, duplicates, copies, complex_numbers, integers, order, joins, numbers, random,
    checkpointed, autocast, nothing, unused, own_gradient,
]  # fmt: skip


# PyTorch's tracing of autograd.Function uses something that it deprecates itself.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("grad", [True, False], ids=["grad", "plain"])
def test_equals_eager(function: Callable[..., Any], place: str, grad: bool) -> None:
    graphs = check(function, operands(place, grad=grad))
    assert not host_operators(graphs)


def test_aliases_are_those_of_eager_mode(device: str) -> None:
    x, y = operands(device, grad=False)
    for function in (views, duplicates, copies):
        torch.compiler.reset()
        outputs = torch.compile(function, backend="neuron")(x, y)
        expected = function(x, y)
        for a, e in zip(outputs, expected, strict=True):
            same = [
                o.untyped_storage().data_ptr() == a.untyped_storage().data_ptr() for o in outputs
            ]
            theirs = [
                o.untyped_storage().data_ptr() == e.untyped_storage().data_ptr() for o in expected
            ]
            assert same == theirs, function.__name__


def test_a_result_can_be_changed_without_changing_another(device: str) -> None:
    x, y = operands(device, grad=False)
    first, second, _ = torch.compile(duplicates, backend="neuron")(x, y)
    first.zero_()
    assert second.abs().sum() > 0
    copy, _, _ = torch.compile(copies, backend="neuron")(x, y)
    copy.zero_()
    assert x.abs().sum() > 0


def test_buffers_and_parameters_are_updated_in_place(device: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 5, bias=False), torch.nn.BatchNorm1d(5)).to(
        device
    )
    compiled = torch.compile(model, backend="neuron")
    other = torch.nn.Sequential(torch.nn.Linear(3, 5, bias=False), torch.nn.BatchNorm1d(5)).to(
        device
    )
    other.load_state_dict(model.state_dict())
    x = operands(device)[0]
    weights = torch.linspace(-1, 2, 20, device=device).reshape(4, 5)
    for _ in range(2):
        (compiled(x) * weights).sum().backward()
        (other(x) * weights).sum().backward()
    for mine, theirs in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        assert_equal(mine, theirs)
    for a, e in zip(model.parameters(), other.parameters(), strict=True):
        assert_equal(a.grad, e.grad)


def test_an_updated_argument_counts_as_changed(device: str) -> None:
    def update(x: Tensor) -> Tensor:
        x.add_(1)
        return x * 2

    x = torch.zeros(3, device=device)
    before = x._version
    torch.compile(update, backend="neuron")(x)
    assert x.tolist() == [1, 1, 1]
    assert x._version > before


def test_overlapping_views_of_an_argument(device: str) -> None:
    def update(a: Tensor, b: Tensor) -> Tensor:
        a.mul_(2)
        b.add_(1)
        return a + b

    memory = torch.arange(6.0, device=device)
    expected = memory.clone()
    update(expected[:4], expected[2:])
    result = torch.compile(update, backend="neuron")(memory[:4], memory[2:])
    assert memory.tolist() == expected.tolist()
    assert result.tolist() == (expected[:4] + expected[2:]).tolist()


def test_tied_weights(device: str) -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Embedding(7, 4)
            self.outer = torch.nn.Linear(4, 7, bias=False)
            self.outer.weight = self.inner.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.outer(self.inner(x))  # type: ignore[no-any-return]

    torch.manual_seed(0)
    model = Tied().to(device)
    x = torch.tensor([1, 5, 3], device=device)
    model(x).square().sum().backward()
    assert model.inner.weight.grad is not None
    expected = model.inner.weight.grad.clone()
    model.zero_grad()
    torch.compile(model, backend="neuron")(x).square().sum().backward()
    torch.testing.assert_close(model.inner.weight.grad, expected)


@pytest.mark.parametrize("layout", ["transposed", "channels_last", "sliced", "expanded"])
def test_strides_of_arguments(layout: str, device: str) -> None:
    base = torch.arange(120.0, device=device).reshape(2, 3, 4, 5) / 60
    x = {
        "transposed": base.transpose(1, 3),
        "channels_last": base.contiguous(memory_format=torch.channels_last),
        "sliced": base[:, 1:, ::2],
        "expanded": base[:1].expand(2, 3, 4, 5),
    }[layout]

    def function(x: Tensor) -> Any:
        return x.relu() * 2, x.sum((1, 2)), x.flatten(1).mm(x.flatten(1).t())

    expected = function(x)
    got = torch.compile(function, backend="neuron", fullgraph=True)(x)
    for a, e in zip(got, expected, strict=True):
        torch.testing.assert_close(a, e)
        assert a.stride() == e.stride()


def test_results_on_the_cpu() -> None:
    def function(x: Tensor) -> Any:
        return (x * 2).cpu() + 1, x + 1

    check(function, operands("neuron")[:1])


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_graph_breaks(device: str) -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        z = x * 2
        torch._dynamo.graph_break()
        return z * y

    assert len(check(function, operands(device), fullgraph=False)) == 4


def test_seeded_sequences_continue_as_in_eager_mode() -> None:
    def draw(x: Tensor) -> Tensor:
        return x + torch.rand(3, device="neuron")

    x = torch.zeros(3, device="neuron")
    compiled = torch.compile(draw, backend="neuron")
    torch.manual_seed(5)
    got = [compiled(x), draw(x), compiled(x)]
    torch.manual_seed(5)
    assert [g.tolist() for g in got] == [draw(x).tolist() for _ in range(3)]


def test_an_unused_draw_advances_the_generator() -> None:
    def draw(x: Tensor) -> Tensor:
        torch.rand(3, device=x.device)
        return x + torch.rand(3, device=x.device)

    assert_same_numbers(draw)


def test_draws_keep_their_order_whatever_is_returned_first() -> None:
    def draw(x: Tensor) -> Any:
        first, second = torch.rand(3, device=x.device), torch.randn(3, device=x.device)
        third = torch.rand_like(x)
        return third * 2, second + first, first

    assert_same_numbers(draw)


def assert_same_numbers(draw: Callable[[Tensor], Any]) -> None:
    x = torch.zeros(3, device="neuron")
    torch.manual_seed(5)
    expected = draw(x)
    torch.manual_seed(5)
    got = torch.compile(draw, backend="neuron")(x)
    for mine, theirs in zip(tree_leaves(got), tree_leaves(expected), strict=True):
        assert mine.tolist() == theirs.tolist()


def test_locations_name_the_users_line() -> None:
    def function(x: Tensor) -> Tensor:
        values: Tensor = torch.linalg.svdvals(x)  # the line
        return values

    with watched() as graphs:
        torch.compile(function, backend="neuron")(operands("neuron", grad=False)[0])
    (call,) = graphs[0].imported.host_calls
    assert call.op == "aten::_linalg_svd"
    assert call.loc is not None
    assert call.loc.file == __file__
    assert call.loc.text == "values: Tensor = torch.linalg.svdvals(x)  # the line"
    node = next(iter(graphs[0].imported.graph.locs.values()))
    assert node.op == "aten._linalg_svd.default"


def test_executor_of_an_unknown_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TORCH_NEURONX_EXECUTOR.name, "gpu")
    with pytest.raises(
        ValueError,
        match="_EXECUTOR='gpu' is not valid; allowed: native, program, reference, device",
    ):
        TORCH_NEURONX_EXECUTOR.get()


@pytest.mark.slow
def test_backend_names_need_no_import() -> None:
    code = (
        "import torch, sys\n"
        "assert 'torch_neuronx.dynamo.backend' not in sys.modules\n"
        "for name in ('neuron', 'neuronx'):\n"
        "    assert name in torch._dynamo.list_backends()\n"
        "    x = torch.ones(3, device='neuron')\n"
        "    print(torch.compile(lambda x: x + 1, backend=name)(x).tolist())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[2.0, 2.0, 2.0]\n" * 2


def test_run_returns_fresh_arguments() -> None:
    x = torch.ones(2)
    assert run(lambda a: a.add_(1), [x])[-1].tolist() == [2, 2]
    assert x.tolist() == [1, 1]


def test_options_of_inductor_are_ignored_aloud() -> None:
    # What libraries pass to tune the default backend reaches this one where it is the default.
    def double(x: Tensor) -> Tensor:
        return x * 2

    torch.compiler.set_default_backend("neuron")
    try:
        tuned = torch.compile(double, options={"max_autotune": True, "triton.cudagraphs": False})
        plain = torch.compile(double)
    finally:
        torch.compiler.set_default_backend(None)
    x = torch.arange(4.0, device="neuron")
    with pytest.warns(UserWarning, match="options of Inductor: max_autotune, tri"):
        assert tuned(x).tolist() == [0, 2, 4, 6]
    torch._dynamo.reset()
    assert plain(x).tolist() == [0, 2, 4, 6]
    # Which others there are the compiler says; what only looks like Inductor's reaches it.
    assert own_options({"max_autotone": True}) == {"max_autotone": True}


def test_unknown_modes_are_refused() -> None:
    def double(x: Tensor) -> Tensor:
        return x * 2

    for mode in ("default", "reduce-overhead", "max-autotune"):
        torch.compiler.reset()
        assert torch.compile(double, backend="neuron", mode=mode)(torch.ones(2)).tolist() == [2, 2]
    torch.compiler.reset()
    with pytest.raises(
        Exception, match=r"mode='bogus'.* there is no such mode. Known are 'default'"
    ):
        torch.compile(double, backend="neuron", mode="bogus")(torch.ones(2))


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # Inductor's own
def test_inductor_names_the_backend_to_use() -> None:
    """`torch.compile(model)`, the first thing that users of other devices type."""
    model = torch.nn.Linear(3, 3).to("neuron")
    with pytest.raises(Exception, match=r'torch\.compile\(model, backend="neuron"\)'):
        torch.compile(model, backend="inductor")(torch.ones(2, 3, device="neuron"))
    # What Inductor compiles for the host is its own business as before.
    host = torch.compile(torch.nn.Linear(3, 3), backend="aot_eager")
    assert host(torch.ones(2, 3)).shape == (2, 3)
