"""`torch.compile` with a warm cache: nothing is compiled, and every bit of a result is the same."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import interpreter
from torch_neuronx.dynamo import backend

ROOT = Path(__file__).parents[2]

# Trains a small model for two steps and prints what became of its graphs, and its weights.
SCRIPT = """
import json, sys
import torch
from torch_neuronx.dynamo import backend

hits = []
backend.OBSERVERS.append(lambda graph: hits.append(graph.executable.report.hit))
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)
).to("neuron")
x = torch.linspace(-1, 1, 40).reshape(5, 8).to("neuron")
if "-O1" in sys.argv:
    compiled = torch.compile(model, backend="neuron", options={"optlevel": 1})
else:
    compiled = torch.compile(model, backend="neuron")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    compiled(x).square().mean().backward()
    optimizer.step()
weights = [parameter.detach().cpu().flatten().tolist() for parameter in model.parameters()]
print(json.dumps([hits, weights]))
"""


def run(cache: Path, *arguments: str, **environ: str) -> tuple[list[bool], Any, str]:
    done = interpreter.run(
        ["-c", SCRIPT, *arguments],
        env={**os.environ, "TORCH_NEURONX_NEFF_CACHE_DIR": str(cache), **environ},
    )
    assert done.returncode == 0, done.stderr
    hits, weights = json.loads(done.stdout.splitlines()[-1])
    return hits, weights, done.stderr


@pytest.mark.slow
def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    first, weights, _ = run(tmp_path)
    second, again, _ = run(tmp_path)
    assert (first, second) == ([False, False], [True, True])
    assert again == weights
    hits, _, explanation = run(tmp_path, "-O1", NEURON_CACHE_EXPLAIN="1")
    assert hits == [False, False]
    assert explanation.count("  option.optlevel: '2' there, '1' here") == 2


@pytest.mark.slow
def test_damage_on_the_way(tmp_path: Path) -> None:
    _, weights, _ = run(tmp_path)
    for path in tmp_path.rglob("model.neff"):
        path.write_bytes(path.read_bytes()[:-10])
    hits, again, messages = run(tmp_path)
    assert hits == [False, False]
    assert again == weights
    assert messages.count("cannot be used, so the program is compiled again") == 2


def test_in_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_NEURONX_NEFF_CACHE_DIR", str(tmp_path))
    graphs: list[Any] = []
    monkeypatch.setattr(backend, "OBSERVERS", [graphs.append])

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = (x @ y).softmax(-1)
        return z, z.sort(-1).values, torch.where(z > 0.1, z, torch.full_like(z, 7.0)).sum(0)

    x, y = torch.linspace(-1, 1, 35).reshape(5, 7), torch.linspace(2, -2, 42).reshape(7, 6)
    results = []
    for _ in range(2):
        torch._dynamo.reset()
        compiled = torch.compile(function, backend="neuron")
        results.append([r.cpu() for r in compiled(x.to("neuron"), y.to("neuron"))])
    assert [graph.executable.report.hit for graph in graphs] == [False, True]
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
