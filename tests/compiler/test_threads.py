"""Compiling at the call from several threads, for sizes that change, beside everything else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import nki
import nki.isa as nisa
import nki.language as nl
import torch_neuronx
from neuronxcc.environment.compilation import TORCH_NEURONX_MAX_SHAPES
from torch_neuronx.dynamo.shapes import ShapeLimitWarning

THREADS, SHAPES = 8, 40
Function = Callable[..., Any]


def in_threads(works: Sequence[Callable[[], None]]) -> None:
    """Run all at once; the first error of any is raised."""
    errors: list[BaseException] = []
    start = threading.Barrier(len(works))

    def run(work: Callable[[], None]) -> None:
        start.wait()
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised below, in the test's thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def rows(x: Tensor) -> Tensor:
    return (x * 2 + 1).relu().sum(-1)


def attention(x: Tensor) -> Tensor:
    return torch.softmax(x @ x.t(), -1) @ x


def shapes_of(thread: int) -> list[int]:
    """All sizes, from another one on: threads meet at the same size and at different ones."""
    return [3 + (7 * i + 5 * thread) % SHAPES for i in range(SHAPES)]


def compiled_for_all(compiled: Sequence[tuple[Function, Function]], thread: int) -> None:
    for size in shapes_of(thread):
        x = torch.linspace(-1, 1, 5 * size).reshape(size, 5)
        for function, plain in compiled:
            torch.testing.assert_close(function(x.to("neuron")).cpu(), plain(x))


@pytest.mark.slow
@pytest.mark.parametrize("limit", [64, 8])
def test_new_sizes_in_all_threads(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TORCH_NEURONX_MAX_SHAPES.name, str(limit))
    torch.compiler.reset()
    compiled = [(torch.compile(f, backend="neuron", dynamic=True), f) for f in (rows, attention)]

    def run(thread: int) -> None:
        compiled_for_all(compiled, thread)

    works = [lambda thread=thread: run(thread) for thread in range(THREADS)]
    if limit < SHAPES:
        with pytest.warns(ShapeLimitWarning):
            in_threads(works)
    else:
        in_threads(works)


@pytest.mark.slow
def test_training_with_new_sizes_in_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backward graph is compiled too, some of it in autograd's threads."""
    monkeypatch.setenv(TORCH_NEURONX_MAX_SHAPES.name, "64")
    torch.compiler.reset()
    compiled = torch.compile(attention, backend="neuron", dynamic=True)

    def train(thread: int) -> None:
        for size in shapes_of(thread)[:6]:
            x = torch.linspace(-1, 1, 5 * size).reshape(size, 5)
            mine, plain = x.to("neuron").requires_grad_(), x.requires_grad_()
            compiled(mine).square().sum().backward()
            attention(plain).square().sum().backward()
            assert mine.grad is not None
            torch.testing.assert_close(mine.grad.cpu(), plain.grad, rtol=1e-4, atol=1e-5)

    in_threads([lambda thread=thread: train(thread) for thread in range(4)])  # type: ignore[misc]


@nki.jit
def doubled(a: Any) -> Any:
    tile = nl.ndarray(a.shape, a.dtype)
    nisa.dma_copy(dst=tile, src=a)
    nisa.tensor_tensor(dst=tile, data1=tile, data2=tile, op=nl.add)
    out = nl.ndarray(a.shape, a.dtype, nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out


def _eager(thread: int) -> None:
    for size in shapes_of(thread):
        x = torch.linspace(-1, 1, 5 * size).reshape(size, 5)
        torch.testing.assert_close(attention(x.to("neuron")).cpu(), attention(x))


def _traced(thread: int) -> None:
    for size in shapes_of(thread)[:4]:
        x = torch.linspace(-1, 1, 5 * size).reshape(size, 5)
        torch.testing.assert_close(torch_neuronx.trace(rows, x)(x), rows(x))


def _kernels(thread: int) -> None:
    for size in shapes_of(thread)[:10]:
        x = torch.linspace(-1, 1, 5 * size).reshape(size, 5)
        torch.testing.assert_close(doubled(x.to("neuron")).cpu(), x + x)


def _optimizers(thread: int) -> None:
    plain, mine = (
        torch.nn.Parameter(torch.linspace(-1, 1, 8 + thread, device=device))
        for device in ("cpu", "neuron")
    )
    # Not Adam: its steps ask PyTorch whether anything compiles, of which there is one answer for
    # all threads, and raise a TypeError when another one compiles, on cpu too.
    optimizers = [torch.optim.SGD([p], lr=0.1, momentum=0.9, foreach=True) for p in (plain, mine)]
    for _ in range(20):
        for parameter, optimizer in zip((plain, mine), optimizers, strict=True):
            optimizer.zero_grad()
            (parameter**2).sum().backward()
            optimizer.step()
    torch.testing.assert_close(mine.detach().cpu(), plain.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_beside_everything_else() -> None:
    torch.compiler.reset()
    compiled = [(torch.compile(f, backend="neuron", dynamic=True), f) for f in (rows, attention)]
    beside = (_eager, _traced, _kernels, _optimizers)
    works = [lambda thread=thread: compiled_for_all(compiled, thread) for thread in range(4)]
    works += [lambda work=work, i=i: work(i) for i, work in enumerate(beside)]  # type: ignore[misc]
    with pytest.warns(ShapeLimitWarning):
        in_threads(works)
