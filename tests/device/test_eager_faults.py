"""A fault in call k of n: where it is told, in which words, and what the device does afterwards."""

import re
import time
from collections.abc import Callable, Iterator

import pytest
import torch

import torch_neuronx
from tests import interpreter
from tests.device.enqueued import everything_enqueued

N = torch_neuronx.neuron
CALLS = 7
SIZE = 200  # so that fused mode joins what is between


@pytest.fixture(autouse=True, params=["strict", "fused"])
def _everything_is_enqueued(request: pytest.FixtureRequest) -> Iterator[None]:
    with everything_enqueued(request.param):
        yield


def _chain(faulty: int | None, rows: torch.Tensor, wrong: torch.Tensor) -> torch.Tensor:
    """Run calls of which one looks up rows that there are not."""
    x = torch.ones(SIZE, SIZE, device="neuron")
    for k in range(CALLS):
        x = x.index_select(0, wrong if k == faulty else rows) * 1.0 + 1
    return x


def _event(record: Callable[[], object] = lambda: None) -> torch.Event:
    record()
    event = torch.Event("neuron")
    event.record()
    return event


SYNCS: dict[str, Callable[[torch.Tensor], object]] = {
    "item": lambda x: x[0, 0].item(),
    "bool": lambda x: bool(x[0, 0]),
    "print": str,
    "cpu": lambda x: x.cpu(),
    "tolist": lambda x: x[0].tolist(),
    "numpy": lambda x: x.numpy(force=True),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "synchronize": lambda _: N.synchronize(),
    "accelerator": lambda _: torch.accelerator.synchronize(),
    "stream": lambda _: N.current_stream().synchronize(),
    "event": lambda _: _event().synchronize(),
    "mode": lambda _: N.set_eager_mode("debug"),
    "new kind": lambda x: x[: SIZE // 2].erfinv(),
    "copy": lambda x: torch.empty(SIZE, SIZE).copy_(x),
}


@pytest.mark.parametrize("k", [0, 3, CALLS - 1])
@pytest.mark.parametrize("sync", SYNCS)
def test_a_fault_is_told_with_one_text_and_type(sync: str, k: int) -> None:
    rows = torch.arange(SIZE, device="neuron")
    wrong = torch.full((SIZE,), SIZE, device="neuron")
    expected = _chain(None, rows, rows).cpu()
    N.synchronize()
    x = _chain(k, rows, wrong)
    with pytest.raises(IndexError) as told:
        SYNCS[sync](x)
    assert re.fullmatch(
        r"index out of range in self\n"
        r"This is an error of aten::index_select\(float32\[200, 200\], int64\[200\]\), which ran "
        r"after its call had returned; calls behind it did not run\. "
        r"TORCH_NEURONX_ENABLE_STACK_TRACE=1 tells the line of the call, "
        r"NEURON_LAUNCH_BLOCKING=1 runs each operator at its call\.",
        str(told.value).split("\nException raised")[0],
    )
    N.synchronize()  # told once
    assert torch.equal(_chain(None, rows, rows).cpu(), expected)


@pytest.mark.parametrize("first", [0, 1])
def test_a_core_that_waits_for_a_failed_one_leaves_its_error_to_be_told(first: int) -> None:
    """Both cores' users are told; the thread of the other core, which learns first, is nobody."""
    rows = torch.arange(SIZE, device="neuron")
    wrong = torch.full((SIZE,), SIZE, device="neuron")
    other = torch.ones(SIZE, SIZE, device="neuron:1")
    _chain(None, rows, rows)
    N.synchronize()
    _chain(2, rows, wrong)
    event = _event()
    N.current_stream("neuron:1").wait_event(event)
    torch.add(other, 1)
    time.sleep(0.2)
    for core in (first, 1 - first):
        with pytest.raises(IndexError, match="index out of range in self"):
            N.synchronize(core)
    for core in (0, 1):
        N.synchronize(core)  # told once


def test_transforms_work_while_an_error_of_printing_is_kept() -> None:
    """PyTorch's printing turns torch.func off for as long as its frame lives."""
    rows = torch.arange(SIZE, device="neuron")
    wrong = rows + SIZE
    _chain(None, rows, rows).cpu()
    kept = []
    for _ in range(3):
        with pytest.raises(IndexError) as told:
            str(_chain(0, rows, wrong))
        assert str(told.traceback[-1].path).endswith("_tensor_str.py")
        kept.append(told)
        gradient = torch.func.grad(lambda x: (x * x).sum())(torch.ones(3))
        assert gradient.tolist() == [2.0, 2.0, 2.0]
        N.synchronize()
    while kept:
        kept.pop(0)
        gradient = torch.func.grad(lambda x: (x * x).sum())(torch.ones(3))
        assert gradient.tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("k", [0, CALLS - 1])
def test_a_fault_in_a_backward_pass(k: int) -> None:
    rows = torch.arange(SIZE, device="neuron")

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(_: object, x: torch.Tensor, __: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
            return grad.index_select(0, ctx.rows), None  # type: ignore[attr-defined]

    class Faulty(Scaled):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
            ctx.rows = rows  # type: ignore[attr-defined]
            return x * 2

    def step(faulty: int | None) -> torch.Tensor:
        x = torch.ones(SIZE, SIZE, device="neuron", requires_grad=True)
        y = x
        for each in range(CALLS):
            y = Faulty.apply(y, rows + SIZE if each == faulty else rows)  # type: ignore[no-untyped-call]
        y.sum().backward()
        assert x.grad is not None
        return x.grad

    expected = step(None).cpu()
    assert torch.equal(step(None).cpu(), expected)
    with pytest.raises(IndexError, match="an error of aten::index_select"):
        step(k).cpu()
    N.synchronize()
    assert torch.equal(step(None).cpu(), expected)


@pytest.mark.slow
@pytest.mark.parametrize("k", [0, CALLS - 1])
def test_a_fault_that_nobody_waited_for_is_told_at_exit(k: int) -> None:
    program = f"""
import torch
from torch_neuronx import _C
_C.set_direct_elements(0)
torch.neuron.set_eager_mode({N.get_eager_mode()!r})
rows = torch.arange({SIZE}, device="neuron")
wrong = rows + {SIZE}
for faulty in (None, {k}):
    x = torch.ones({SIZE}, {SIZE}, device="neuron")
    torch.neuron.synchronize()
    for k in range({CALLS}):
        x = x.index_select(0, wrong if k == faulty else rows) * 1.0 + 1
print("issued")
"""
    done = interpreter.run(["-c", program], new=True)
    assert done.stdout == "issued\n"
    assert "index out of range in self\nThis is an error of aten::index_select(" in done.stderr
