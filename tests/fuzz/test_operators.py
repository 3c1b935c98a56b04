"""Operators with arguments that do not fit together: nothing outside of these is touched."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import rnn

from tests.fuzz import operator_values
from tests.fuzz.operators import Call, Spec, run

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("calls") / "recorded"


@pytest.mark.slow
@pytest.mark.parametrize("each", ["1", pytest.param("2", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(("way", "guards"), [("eager", "after"), ("file", "before")])
def test_no_operator_leaves_its_tensors(recorded: Path, way: str, guards: str, each: str) -> None:
    """Changed calls of each operator, in children, between guard pages.

    They are more than 3,000 in eager mode, and 1,600 that a file may name.
    """
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


@pytest.mark.slow
def test_right_calls_give_what_the_cpu_gives() -> None:
    """Invented calls of each operator, 20 or so of a hundred of which the CPU takes."""
    found = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.operator_values", "20261129", "8"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    compared, *_, last = found.stdout.splitlines()[-1].split(" calls compared, ")
    assert int(compared) > 5000
    assert last == "0 findings"


def test_what_the_device_gives_otherwise_is_a_finding() -> None:
    x = Spec((3, 2), (2, 1), torch.float32)
    right, wrong = (Call(f"aten::{name}.Tensor", (x, x), ()) for name in ("add", "sub"))
    made = [operator_values._call(call, "cpu") for call in (right, right, wrong)]
    assert operator_values.difference(right, made[0], made[1]) == ""
    assert operator_values.difference(right, made[0], made[2]) != ""


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


ATEN, NO, YES = torch.ops.aten, False, True
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
    "fractional pooling": _module(
        lambda: nn.FractionalMaxPool2d(2, 3, _random_samples=torch.full((2, 3, 2), 0.3)), 2, 3, 7, 8
    ),
    "a step of range that is an integer": lambda device: ATEN.range.out(
        1, 9, 2.0, out=torch.empty(5, dtype=torch.int64, device=device)
    ),
    "a window of Kaiser's": lambda device: torch.kaiser_window(
        9, YES, 3.0, device=device
    ),
    "batch norm that updates nothing": lambda device: torch.ops.aten._batch_norm_no_update(
        torch.arange(12.0).reshape(4, 3).to(device), *(torch.ones(3, device=device),) * 4, 0.1, 1e-5
    )[0],
    "conjugation in place": lambda device: torch.full((6,), 1 + 2j, device=device).conj_physical_(),
    "parts that are put together": lambda device: torch._chunk_cat(
        [torch.arange(6.0).reshape(3, 2).to(device), torch.ones(5, 1, device=device)], 0, 2
    ),
    "a part of a factorisation": lambda device: torch.lu_unpack(
        torch.arange(9.0).view(3, 3).to(device), torch.zeros(3, device=device), unpack_pivots=False
    )[2],
    "convolution by its columns": lambda device: torch.ops.aten._slow_conv2d_forward(
        torch.arange(50.0).reshape(1, 2, 5, 5).to(device), torch.ones(3, 2, 2, 3, device=device),
        [2, 3], torch.ones(3, device=device), [1, 2], [0, 1],
    ),
}  # fmt: skip


class _First(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first: torch.Tensor = self.inner(x)[0]
        return first


#: Calls that ended the process, or read and wrote outside of their tensors, by what is said now.
REFUSED: dict[str, Any] = {
    "adaptive_avg_pool3d_backward: 'self' is [1, 1, 4, 6], which does not go with": (
        lambda x: ATEN.adaptive_avg_pool3d_backward.grad_input(
            x.new_ones(2, 1, 2, 2), x[None, None], grad_input=x[None, None].clone()
        )
    ),
    "avg_pool2d_backward: 'self' is [1, 4, 6], which does not go with": (
        lambda x: ATEN.avg_pool2d_backward(
            x.new_ones(5, 2, 3), x[None], [2, 2], [2, 2], [0, 0], NO, YES, None
        )
    ),
    "smooth_l1_loss_backward: the operands must be floats": (
        lambda x: ATEN.smooth_l1_loss_backward(*(x.long(),) * 3, 1, 0.5)
    ),
    "_chunk_cat: a tensor of [] has no dimension 0": lambda x: torch._chunk_cat([x.sum()], 0, 1),
    "_cummax_helper: 'self' and 'indices' must be alike": (
        lambda x: ATEN._cummax_helper(x, x.clone(), x[0].long(), 0)
    ),
    "_cummin_helper: there is no dimension 2": (
        lambda x: ATEN._cummin_helper(x, x.clone(), x.long(), 2)
    ),
    "_fft_c2r: the last dimension must have last_dim_size / 2 + 1 elements": (
        lambda x: ATEN._fft_c2r(x.to(torch.complex64), [1], 0, 3)
    ),
    "_fft_r2c: dimensions of the input, each once": lambda x: ATEN._fft_r2c(x, [-1], 0, YES),
    "_foreach_copy: 'src' must be as long as 'self'": lambda x: ATEN._foreach_copy([x], [x, x]),
    "_slow_conv2d_forward: 'stride' must have 2 elements, got 0": (
        lambda x: ATEN._slow_conv2d_forward(x[None, None], x[None, None], [4, 6], None, [], [0, 0])
    ),
    "embedding_dense_backward: index 23 in 'indices' is out of range": (
        lambda x: ATEN.embedding_dense_backward(x, x[:, 5].long(), 23, -1, YES)
    ),
    "embedding_dense_backward: 'num_weights' must not be negative": (
        lambda x: ATEN.embedding_dense_backward(x, x[:, 5].long(), -1, -1, NO)
    ),
    "fractional_max_pool2d_backward: 'output_size' must have 2 elements, got 0": (
        lambda x: ATEN.fractional_max_pool2d_backward(x[None], x[None], [2, 2], [], x[None].long())
    ),
    "mkldnn_rnn_layer: 'input' is [4, 6], which does not go with": (
        lambda x: ATEN.mkldnn_rnn_layer(*(x,) * 7, NO, [], 2, 3, 1, NO, NO, YES, YES)
    ),
    "range: a step of integers must not be 0": (
        lambda x: ATEN.range.out(1, 2, 0.5, out=x.new_zeros(2, dtype=torch.int64))
    ),
    "range: the distance from start to end has no 64-bit integer": (
        lambda x: ATEN.range.out(0, -(2**63), -1, out=x.new_zeros(2, dtype=torch.int64))
    ),
    "rrelu_with_noise: 'out' must have the shape of 'self'": (
        lambda x: ATEN.rrelu_with_noise.out(x, x.clone(), 0.1, 0.3, YES, out=x[0].clone())
    ),
    "setStorage: sizes [9, 9], strides [9, 1]": lambda x: ATEN._reshape_alias(x, [9, 9], [9, 1]),
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_does_not_fit_together_is_refused(said: str) -> None:
    x = torch.arange(24.0).reshape(4, 6).to("neuron")
    with pytest.raises((RuntimeError, IndexError), match=re.escape(said)):
        REFUSED[said](x)


@pytest.mark.parametrize("name", RIGHT)
def test_what_fits_together_is_taken(name: str) -> None:
    torch.testing.assert_close(RIGHT[name]("neuron").cpu(), RIGHT[name]("cpu"))
