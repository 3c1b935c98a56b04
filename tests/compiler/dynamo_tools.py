"""Comparing a compiled function with itself in eager mode: values, gradients, strides, devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils._pytree as pytree

from torch_neuronx.dynamo import backend
from torch_neuronx.dynamo.backend import CompiledGraph

Function = Callable[..., Any]
# Twice the roundings of the longest chain in these tests.
ROUNDINGS = 256


@contextmanager
def watched() -> Iterator[list[CompiledGraph]]:
    """The graphs that are compiled inside."""
    graphs: list[CompiledGraph] = []
    backend.OBSERVERS.append(graphs.append)
    try:
        yield graphs
    finally:
        backend.OBSERVERS.remove(graphs.append)


def host_operators(graphs: Sequence[CompiledGraph]) -> list[str]:
    """Names of operators without a lowering, in order."""
    return [call.op for graph in graphs for call in graph.imported.host_calls]


def weighted_sum(output: Any) -> torch.Tensor | None:
    """A number that every element of every differentiable output changes in its own way."""
    total = None
    for leaf in pytree.tree_leaves(output):
        if not isinstance(leaf, torch.Tensor) or leaf.grad_fn is None:
            continue
        real = torch.view_as_real(leaf) if leaf.is_complex() else leaf
        weights = torch.arange(1, real.numel() + 1, dtype=torch.float32).reshape(real.shape)
        part = (real.float().cpu() * weights / real.numel()).sum()
        total = part if total is None else total + part
    return total


def run(function: Function, args: Sequence[torch.Tensor], *, seed: int = 0) -> list[Any]:
    """Outputs, then gradients of the arguments, then the arguments themselves; seeded."""
    mine = [a.detach().clone().requires_grad_(a.requires_grad) for a in args]
    torch.manual_seed(seed)
    output = function(*mine)
    total = weighted_sum(output)
    if total is not None:
        total.backward()
    return [*pytree.tree_leaves(output), *(a.grad for a in mine), *(a.detach() for a in mine)]


def assert_equal(got: Any, expected: Any, name: str = "") -> None:
    """One value equal to another, within the rounding of its type; tensors with equal layout."""
    if not isinstance(expected, torch.Tensor):
        assert got == expected, name
        return
    eps = torch.finfo(expected.dtype).eps if not _is_exact(expected) else 0.0
    scale = float(expected.detach().abs().max()) if eps and expected.numel() else 1.0
    bound = ROUNDINGS * eps
    torch.testing.assert_close(
        got.detach(), expected.detach(), rtol=bound, atol=bound * scale, equal_nan=True,
        msg=lambda text: f"{name}: {text}",
    )  # fmt: skip
    assert _strides(got) == _strides(expected), name


def _strides(x: torch.Tensor) -> list[int]:
    """Those that say something: an extent of 1 may have any."""
    return [step for step, extent in zip(x.stride(), x.shape, strict=True) if extent > 1]


def _is_exact(x: torch.Tensor) -> bool:
    return not (x.dtype.is_floating_point or x.dtype.is_complex)


def check(
    function: Function, args: Sequence[torch.Tensor], *, fullgraph: bool = True
) -> list[CompiledGraph]:
    """Assert that the compiled function does what it does in eager mode; returns its graphs."""
    torch.compiler.reset()
    expected = run(function, args)
    with watched() as graphs:
        got = run(torch.compile(function, backend="neuron", fullgraph=fullgraph), args)
    assert len(got) == len(expected)
    for number, (mine, theirs) in enumerate(zip(got, expected, strict=True)):
        assert (mine is None) == (theirs is None), f"value {number}"
        if mine is not None:
            assert_equal(mine, theirs, f"value {number}")
    return graphs
