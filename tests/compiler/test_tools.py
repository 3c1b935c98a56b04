"""explain, compare and dumps: what users see of the compiler."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

import torch_neuronx
from neuronxcc.frontends.hlo import import_hlo
from neuronxcc.ir import build
from neuronxcc.ir.reference import evaluate
from neuronxcc.neff import read_neff
from torch_neuronx.dynamo.lowerings import TABLE

DEVICE = torch.device("neuron")

# Dynamo warns about its own deprecated calls.
pytestmark = pytest.mark.filterwarnings("ignore")


def model() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 4)
    ).to(DEVICE)


def test_explain_tells_graphs_steps_and_memory() -> None:
    found = torch_neuronx.explain(model(), torch.randn(8, 16, device=DEVICE))
    forward, backward = found.graphs
    assert (forward.name.split(".")[1], backward.name.split(".")[1]) == ("forward", "backward")
    assert forward.steps == {"Gemm": 2, "Loop": 1}
    assert forward.host == ()
    assert forward.memory["inputs"] == 4 * (8 * 16 + 16 * 32 + 32 + 3 * 32 + 32 * 4 + 4 - 32)
    assert "product 1x8x16x32, then" in str(found)
    assert "1 graphs, 0 graph breaks" in str(found)


def test_explain_leaves_gradients_alone() -> None:
    module = model()
    torch_neuronx.explain(module, torch.randn(8, 16, device=DEVICE))
    assert all(p.grad is None for p in module.parameters())


def test_explain_names_breaks_and_host_operators() -> None:
    def function(x: Tensor) -> Tensor:
        y = x @ x.T
        torch._dynamo.graph_break()
        values: Tensor = torch.linalg.svdvals(y)
        return values

    found = torch_neuronx.explain(function, torch.randn(4, 4, device=DEVICE))
    (stop,) = found.breaks
    assert stop.where.startswith(__file__)
    (call,) = found.graphs[-1].host
    assert call.startswith("aten::_linalg_svd (")
    assert __file__ in call


def test_compare_finds_nothing_where_nothing_is_wrong() -> None:
    found = torch_neuronx.compare(model(), torch.randn(8, 16, device=DEVICE))
    assert found.equal
    assert len(found.graphs) == 2
    assert str(found).endswith("operators compared with the CPU: equal")


def test_compare_names_the_first_operator_that_diverges(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(_cx: Any, x: Any) -> Any:
        return build.cos(x)

    monkeypatch.setitem(TABLE, torch.ops.aten.sin.default, wrong)

    def function(x: Tensor) -> Tensor:
        y = functional.relu(x) + 1
        return (y.sin() * 2).exp()

    found = torch_neuronx.compare(function, torch.randn(8, 16, device=DEVICE))
    (first,) = found.first
    assert first.op == "aten.sin.default"
    assert first.where.startswith(__file__)
    assert not found.equal
    assert "aten.sin.default (sin) at" in str(found)


def test_dropout_is_compared_with_the_mask_that_was_drawn() -> None:
    def function(x: Tensor) -> Tensor:
        return functional.dropout(x, 0.5).exp() + torch.rand_like(x)

    assert torch_neuronx.compare(function, torch.randn(8, 16, device=DEVICE)).equal


def test_dump_writes_every_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_DUMP", str(tmp_path))
    torch.compiler.reset()
    x = torch.randn(4, 8, device=DEVICE)
    torch.compile(lambda x: (x * 2).sum(), backend="neuron")(x)
    (folder,) = tmp_path.iterdir()
    stages = sorted(path.name.split(".")[1] for path in folder.iterdir())
    assert {"fx", "input", "program"} <= set(stages)
    program = next(folder.glob("*.program.txt")).read_text()
    assert "program graph" in program
    assert "reduce" in program


def test_framework_debug_leaves_what_other_compilers_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_FRAMEWORK_DEBUG", "1")
    monkeypatch.chdir(tmp_path)
    torch.compiler.reset()
    x = torch.randn(4, 8, device=DEVICE)
    expected = torch.compile(lambda x: (x * 2).sum(1), backend="neuron")(x)
    hlo, neff, flags = (next(tmp_path.glob(f"*{e}")) for e in (".hlo.pb", ".neff", "_flags.txt"))
    assert len({path.name.split("+")[0] for path in (hlo, neff, flags)}) == 1
    assert "--target" in flags.read_text()
    assert read_neff(neff.read_bytes()).program.steps
    (again,) = evaluate(import_hlo(hlo.read_bytes()).graph, [x.cpu().numpy()])
    np.testing.assert_allclose(again, expected.cpu().numpy(), rtol=1e-6)
