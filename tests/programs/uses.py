"""What a user does with a function, its results and its gradients, besides calling it once.

A use is a generator: it calls the function and yields the results, and does the backward pass when
it is asked for more. What it yields then is compared too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

Function = Callable[..., list[Tensor]]
Later = Iterator[Sequence[Tensor]]


def total(results: Sequence[Tensor]) -> Tensor:
    """A number that every element of every differentiable result changes in its own way."""
    parts = []
    for result in results:
        if not result.requires_grad:
            continue
        real = torch.view_as_real(result.resolve_conj()) if result.is_complex() else result
        weights = torch.linspace(0.5, 1.5, real.numel(), dtype=torch.float64).reshape(real.shape)
        parts.append((real.double() * weights.to(real.device)).sum() / max(real.numel(), 1))
    return sum(parts[1:], start=parts[0])


def _trained(leaves: Sequence[Tensor]) -> list[Tensor]:
    return [x for x in leaves if x.requires_grad]


def _gradients(
    results: Sequence[Tensor], leaves: Sequence[Tensor], *, create_graph: bool = False
) -> list[Tensor]:
    found: Sequence[Tensor | None] = torch.autograd.grad(
        total(results), leaves, allow_unused=True, retain_graph=True, create_graph=create_graph
    )
    return [g for g in found if g is not None]


def plain(function: Function, leaves: Sequence[Tensor]) -> Later:
    """One call, one backward pass."""
    results = function(*leaves)
    yield results
    total(results).backward()


def retained(function: Function, leaves: Sequence[Tensor]) -> Later:
    """Two backward passes through one graph."""
    results = function(*leaves)
    yield results
    total(results).backward(retain_graph=True)
    total(results).backward()


def each(function: Function, leaves: Sequence[Tensor]) -> Later:
    """A backward pass for each result, the last one first."""
    results = function(*leaves)
    yield results
    for result in results[::-1]:
        if result.requires_grad:
            total([result]).backward(retain_graph=True)


def partial(function: Function, leaves: Sequence[Tensor]) -> Later:
    """Gradients of one result for half of the leaves, then of all results for all leaves."""
    results = function(*leaves)
    yield results
    trained = _trained(leaves)
    first = next(r for r in results if r.requires_grad)
    if half := trained[: (len(trained) + 1) // 2]:
        yield _gradients([first], half)
    total(results).backward()


def twice(function: Function, leaves: Sequence[Tensor]) -> Later:
    """Two calls before the backward passes, the first one's first."""
    first, second = function(*leaves), function(*leaves)
    yield first
    total(first).backward()
    yield second
    total(second).backward()


def stepped(function: Function, leaves: Sequence[Tensor]) -> Later:
    """A step of training, and the next one's gradients."""
    results = function(*leaves)
    yield results
    total(results).backward()
    with torch.no_grad():
        for x in leaves:
            if x.grad is not None:
                x.sub_(0.125 * x.grad / (1 + x.grad.abs()))
                x.grad = None
    results = function(*leaves)
    yield results
    total(results).backward()


def written(function: Function, leaves: Sequence[Tensor]) -> Later:
    """A result is written to before the backward pass."""
    results = function(*leaves)
    if results[0].is_floating_point() or results[0].is_complex():
        results[0].mul_(0.5)
    yield results
    total(results).backward()


def hooked(function: Function, leaves: Sequence[Tensor]) -> Later:
    """Hooks change gradients of leaves and of a result."""
    for x in _trained(leaves):
        x.register_hook(lambda g: g * 0.5)
    results = function(*leaves)
    yield results
    if results[0].requires_grad:
        results[0].register_hook(lambda g: g + 1)
    total(results).backward()


def inner(function: Function, leaves: Sequence[Tensor]) -> Later:
    """The arguments are results themselves, so the function may write to those that are trained."""
    arguments = inner_arguments(leaves)
    results = function(*arguments)
    yield results
    total([*results, *arguments]).backward()
    yield arguments


def inner_arguments(leaves: Sequence[Tensor]) -> list[Tensor]:
    """Copies that require gradients, and are no leaves, where leaves require them."""
    return [x.clone() for x in leaves]


def packed(function: Function, leaves: Sequence[Tensor]) -> Later:
    """What is saved for the backward pass is kept in copies."""
    with saved_tensors_hooks(lambda x: x.detach().clone(), lambda x: x):
        results = function(*leaves)
    yield results
    total(results).backward()


def recomputed(function: Function, leaves: Sequence[Tensor]) -> Later:
    """What is saved is computed again (activation checkpointing)."""
    results = checkpoint(function, *leaves, use_reentrant=False)
    yield results
    total(results).backward()


def untracked(function: Function, leaves: Sequence[Tensor]) -> Later:
    """A call without gradients, and one with them."""
    with torch.no_grad():
        first = function(*leaves)
    results = function(*leaves)
    yield results
    yield first
    total(results).backward()


def inference(function: Function, leaves: Sequence[Tensor]) -> Later:
    """In inference mode."""
    with torch.inference_mode():
        results = function(*leaves)
    yield results


def double(function: Function, leaves: Sequence[Tensor]) -> Later:
    """Gradients of gradients, which graphs refuse."""
    results = function(*leaves)
    yield results
    if not (trained := _trained(leaves)):
        return
    gradients = _gradients(results, trained, create_graph=True)
    yield gradients
    if any(g.requires_grad for g in gradients):
        total(gradients).backward()


USES = {
    use.__name__: use
    for use in (
        plain, retained, each, partial, twice, stepped, written, hooked, inner, packed, recomputed,
        untracked, inference, double,
    )
}  # fmt: skip
