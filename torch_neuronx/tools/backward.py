"""Running the backward pass of results without touching anybody's `.grad`."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree


def run_backward(outputs: Any) -> None:
    """Compute the gradients of all tensors in `outputs` that need them, and drop them."""
    roots = [x for x in pytree.tree_leaves(outputs) if isinstance(x, torch.Tensor)]
    roots = [x for x in roots if x.requires_grad]
    leaves = _leaves(roots)
    if leaves:
        torch.autograd.grad(roots, leaves, list(map(torch.ones_like, roots)), allow_unused=True)


def _leaves(roots: list[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors that autograd would give a `.grad`."""
    found: dict[int, torch.Tensor] = {}
    seen: set[Any] = set()
    stack: list[Any] = [root.grad_fn for root in roots]
    while stack:
        function = stack.pop()
        if function is None or function in seen:
            continue
        seen.add(function)
        variable = getattr(function, "variable", None)  # of AccumulateGrad
        if isinstance(variable, torch.Tensor):
            found[id(variable)] = variable
        stack += [inner for inner, _ in function.next_functions]
    return list(found.values())
