"""Operators with arguments that do not fit together: nothing outside of these is touched."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import rnn

from tests.fuzz.operators import Call, run

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("calls") / "recorded"


@pytest.mark.slow
@pytest.mark.parametrize("each", ["1", pytest.param("2", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(("way", "guards"), [("eager", "after"), ("file", "before")])
def test_no_operator_leaves_its_tensors(recorded: Path, way: str, guards: str, each: str) -> None:
    """Changed calls of each of more than 1,600 operators, in children, between guard pages."""
    found = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.operators_run", way, "20261122", each,
         "--recorded", str(recorded)],
        cwd=ROOT,
        env={**os.environ, "TORCH_NEURONX_GUARD_PAGES": guards, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.splitlines()[-1].endswith("0 findings")


def test_a_read_outside_would_be_a_finding() -> None:
    calls = [Call(name, (), ()) for name in ("fine", "refused", "outside", "fine")]

    def make(call: Call) -> None:
        if call.target == "outside":
            ctypes.string_at(8, 1)
        if call.target == "refused":
            raise ValueError(call.target)

    counts: dict[str, int] = {}
    findings = list(run(calls, make, counts))
    assert [(f.call.target, f.how) for f in findings] == [("outside", "SIGSEGV")]
    assert counts == {"ran": 2, "refused": 1, "ended": 1}


def _fused_step(make: Any, **options: Any) -> Any:
    def step(device: str) -> torch.Tensor:
        torch.manual_seed(0)
        p = nn.Parameter(torch.randn(5, 3).to(device))
        optimizer = make([p], lr=0.1, fused=True, **options)
        for _ in range(2):
            p.grad = torch.ones_like(p)
            optimizer.step()
        return p.detach()

    return step


def _module(make: Any, *shape: int, train: bool = True) -> Any:
    def step(device: str) -> torch.Tensor:
        torch.manual_seed(0)
        module = make().train(train).to(device)
        x = torch.randn(shape).to(device).requires_grad_()
        module(x).square().sum().backward()
        assert x.grad is not None
        return x.grad

    return step


def _ctc(device: str) -> torch.Tensor:
    torch.manual_seed(0)
    x = torch.randn(7, 2, 4).to(device).requires_grad_()
    # What follows a label's length is padding, of any value.
    labels = torch.tensor([[1, 2, -1], [3, -1, 99]]).to(device)
    lengths = torch.tensor([7, 6]), torch.tensor([2, 1])
    functional.ctc_loss(x.log_softmax(2), labels, *lengths).backward()
    assert x.grad is not None
    return x.grad


def _bag(mode: str) -> Any:
    def step(device: str) -> torch.Tensor:
        torch.manual_seed(0)
        bag = nn.EmbeddingBag(6, 3, mode=mode).to(device)
        bag(torch.tensor([1, 5, 2, 0]).to(device), torch.tensor([0, 2]).to(device)).sum().backward()
        assert bag.weight.grad is not None
        return bag.weight.grad

    return step


def _packed(device: str) -> torch.Tensor:
    packed = rnn.pack_padded_sequence(torch.arange(12.0).reshape(4, 3).to(device), [4, 2, 1])
    return rnn.pad_packed_sequence(packed)[0]


RIGHT = {
    "fused Adam": _fused_step(torch.optim.Adam),
    "fused AdamW, amsgrad": _fused_step(torch.optim.AdamW, amsgrad=True),
    "fused SGD": _fused_step(torch.optim.SGD),
    "fused SGD, momentum": _fused_step(torch.optim.SGD, momentum=0.9),
    "fused Adagrad": _fused_step(torch.optim.Adagrad),
    "weight norm": _module(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), 2, 4),
    "batch norm": _module(lambda: nn.BatchNorm2d(3), 2, 3, 4, 5),
    "batch norm in eval": _module(lambda: nn.BatchNorm2d(3), 2, 3, 4, 5, train=False),
    "batch norm without parameters": _module(
        lambda: nn.BatchNorm1d(3, affine=False, track_running_stats=False), 4, 3
    ),
    "instance norm": _module(lambda: nn.InstanceNorm1d(3), 2, 3, 4),
    "group norm": _module(lambda: nn.GroupNorm(3, 6), 2, 6, 4),
    "reflection": _module(lambda: nn.ReflectionPad2d((1, 2, 0, 1)), 2, 3, 4, 5),
    "reflection of volumes": _module(lambda: nn.ReflectionPad3d(1), 2, 3, 4, 5, 6),
    "replication": _module(lambda: nn.ReplicationPad3d((0, 1, 2, 0, 1, 1)), 3, 4, 5, 6),
    "cropped replication": _module(lambda: nn.ReplicationPad2d((-1, 0, 2, -1)), 2, 3, 4, 5),
    "pooling": _module(lambda: nn.AdaptiveMaxPool2d(2), 3, 4, 5),
    "LSTM": _module(lambda: _First(nn.LSTMCell(4, 3)), 2, 4),
    "CTC": _ctc,
    "bags, sum": _bag("sum"),
    "bags, mean": _bag("mean"),
    "bags, max": _bag("max"),
    "packed sequences": _packed,
}


class _First(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first: torch.Tensor = self.inner(x)[0]
        return first


@pytest.mark.parametrize("name", RIGHT)
def test_what_fits_together_is_taken(name: str) -> None:
    torch.testing.assert_close(RIGHT[name]("neuron").cpu(), RIGHT[name]("cpu"))
