"""Sparse gradients of compiled functions: the program computes their indices and values."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from torch_neuronx.dynamo.errors import CaptureError
from torch_neuronx.dynamo.sparse import split

from .dynamo_tools import watched

TOKENS = torch.tensor([[1, 2, 1], [4, 0, 3]])


class Twice(nn.Module):
    """A sparse gradient of two parts, beside dense ones."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 4, sparse=True)
        self.dense = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows: Tensor = self.table(x) + self.table(x.flip(0)) * 2
        return functional.relu(self.dense(rows))


MODULES: dict[str, Callable[[], nn.Module]] = {
    "embedding": lambda: nn.Embedding(6, 4, sparse=True),
    "embedding in bfloat16": lambda: nn.Embedding(6, 4, sparse=True, dtype=torch.bfloat16),
    "sum of bags": lambda: nn.EmbeddingBag(6, 4, sparse=True, mode="sum"),
    "mean of bags": lambda: nn.EmbeddingBag(6, 4, sparse=True, mode="mean"),
    "twice": Twice,
}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
}


# PyTorch says so once, in Adagrad's own code.
@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_is_that_of_the_cpu(name: str, optimizer: str) -> None:
    torch.manual_seed(0)
    module = MODULES[name]()

    def trained(mine: nn.Module, function: Callable[[Tensor], Tensor], device: str) -> Any:
        step = OPTIMIZERS[optimizer](mine.parameters())
        for _ in range(3):
            step.zero_grad()
            function(TOKENS.to(device)).square().sum().backward()
            step.step()
        return [(p.grad, p.detach()) for p in mine.parameters()]

    theirs, mine = copy.deepcopy(module), copy.deepcopy(module).to("neuron")
    expected = trained(theirs, theirs, "cpu")
    torch.compiler.reset()
    with watched() as graphs:
        got = trained(mine, torch.compile(mine, backend="neuron", fullgraph=True), "neuron")
    assert [graph.kind for graph in graphs] == ["forward", "backward"]
    for (grad, weight), (their_grad, their_weight) in zip(got, expected, strict=True):
        assert grad.layout == their_grad.layout
        assert grad.device.type == "neuron"
        # A few roundings in each of three steps.
        eps = 64 * torch.finfo(weight.dtype).eps
        for a, b in ((grad.to_dense(), their_grad.to_dense()), (weight, their_weight)):
            torch.testing.assert_close(a.cpu(), b, rtol=eps, atol=eps * float(b.abs().max()))


def test_a_padding_index_breaks_the_graph_and_is_right() -> None:
    # How many indices are left depends on data: PyTorch traces no gradient of it.
    torch.manual_seed(0)
    module = nn.Embedding(6, 4, padding_idx=1, sparse=True)
    mine = copy.deepcopy(module).to("neuron")
    torch.compiler.reset()
    torch.compile(mine, backend="neuron")(TOKENS.to("neuron")).square().sum().backward()
    module(TOKENS).square().sum().backward()
    assert mine.weight.grad is not None
    assert module.weight.grad is not None
    torch.testing.assert_close(mine.weight.grad.to_dense().cpu(), module.weight.grad.to_dense())


def graph_with(follow: Callable[[torch.fx.Graph, torch.fx.Node, Tensor], torch.fx.Node]) -> Any:
    """A graph that makes a sparse tensor of its arguments, returns it, and what follows it."""
    graph = torch.fx.Graph()
    with FakeTensorMode(allow_non_fake_inputs=True):
        indices, values = torch.zeros(1, 2, dtype=torch.int64), torch.zeros(2, 3)
        nodes = [graph.placeholder("indices"), graph.placeholder("values")]
        for node, value in zip(nodes, (indices, values), strict=True):
            node.meta["val"] = value
        doubled = graph.call_function(torch.ops.aten.mul.Tensor, (nodes[1], 2))
        doubled.meta["val"] = values
        made = graph.call_function(
            torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors.default,
            (1, 1, [4, 3], nodes[0], doubled),
            {"dtype": torch.float32, "layout": torch.sparse_coo, "device": torch.device("cpu")},
        )
        made.meta["val"] = torch.sparse_coo_tensor(indices, values, (4, 3), check_invariants=False)
        last = follow(graph, made, torch.zeros(4, 3))
    graph.output((doubled, made, None, last))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def test_what_follows_a_sparse_tensor_runs_after_the_program() -> None:
    def dense(graph: torch.fx.Graph, made: torch.fx.Node, value: Tensor) -> torch.fx.Node:
        node = graph.call_function(torch.ops.aten._to_dense.default, (made,))
        node.meta["val"] = value
        return node

    gm = graph_with(dense)
    early, complete = split(gm)
    assert complete is not None
    targets = [node.target for node in early.graph.nodes if node.op == "call_function"]
    assert targets == [torch.ops.aten.mul.Tensor]
    indices, values = torch.tensor([[3, 1]]), torch.arange(6.0).reshape(2, 3)
    got = complete(lambda args: list(early(*args)))([indices, values])
    torch.testing.assert_close(got, list(gm(indices, values)))
    assert got[1].layout == torch.sparse_coo


def test_a_draw_after_a_sparse_tensor_is_refused() -> None:
    def drawn(graph: torch.fx.Graph, made: torch.fx.Node, value: Tensor) -> torch.fx.Node:
        node = graph.call_function(torch.ops.aten.bernoulli.default, (made,))
        node.meta["val"] = value
        return node

    with pytest.raises(CaptureError, match=r"aten\.bernoulli\.default of what was computed from"):
        split(graph_with(drawn))


def test_a_graph_without_sparse_tensors_stays_as_it_is() -> None:
    gm = torch.fx.symbolic_trace(lambda x: x + 1)
    assert split(gm) == (gm, None)
