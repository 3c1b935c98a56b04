"""Operators that write their arguments, as functions: defined for a graph when it is imported.

A step of a program has operands and results. AOTAutograd has already said what a mutating custom
operator amounts to: new values of the tensors that it writes. Such a step calls an operator of the
library `torch_neuronx_functional`, which copies, calls the user's operator, and returns the copies.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload

from torch_neuronx.dynamo.registry import flat

NAMESPACE = "torch_neuronx_functional"


class _Library:
    """The operators defined so far, by name. They stay: programs in the process may call them."""

    def __init__(self) -> None:
        self.library = torch.library.Library(NAMESPACE, "FRAGMENT")
        self.defined: set[str] = set()
        self.lock = threading.Lock()

    def define(
        self, name: str, function: Callable[[list[torch.Tensor]], list[torch.Tensor]]
    ) -> None:
        with self.lock:
            if name in self.defined:
                return
            self.library.define(f"{name}(Tensor[] tensors) -> Tensor[]")
            self.library.impl(name, function, "CompositeExplicitAutograd")
            self.defined.add(name)


_LIBRARY = _Library()


class _Hole:
    """Where a tensor goes in the arguments of the operator."""

    def __init__(self, index: int) -> None:
        self.index = index

    def __repr__(self) -> str:
        return f"tensor {self.index}"


def functional_operator(
    wrapper: HigherOrderOperator,
    operator: OpOverload,
    kwargs: dict[str, Any],
    tensors: Sequence[torch.Tensor],
    is_tensor: Callable[[Any], bool],
) -> OpOverload:
    """Define (once) the function that `wrapper(operator, **kwargs)` is.

    Args:
        wrapper: auto_functionalized or auto_functionalized_v2.
        operator: The user's operator.
        kwargs: Arguments of the wrapper; those that `is_tensor` are the operands, in this order.
        tensors: Fake tensors of the operands: the user's operator gets their strides.
        is_tensor: Tells operands from other arguments.

    Returns:
        An operator from a list of the operands to a list of all tensors that the wrapper returns.
    """
    holes = 0

    def dig(value: Any) -> Any:
        nonlocal holes
        if is_tensor(value):
            holes += 1
            return _Hole(holes - 1)
        if isinstance(value, list | tuple):
            return [dig(v) for v in value]
        return value

    template = {name: dig(value) for name, value in kwargs.items()}
    layouts = [(tuple(map(int, t.shape)), tuple(map(int, t.stride()))) for t in tensors]

    def run(given: list[torch.Tensor]) -> list[torch.Tensor]:
        laid_out = [_restrided(t, *layout) for t, layout in zip(given, layouts, strict=True)]

        def fill(value: Any) -> Any:
            if isinstance(value, _Hole):
                return laid_out[value.index]
            return [fill(v) for v in value] if isinstance(value, list) else value

        returned = wrapper(operator, **{name: fill(value) for name, value in template.items()})
        return [t for t in flat(returned) if isinstance(t, torch.Tensor)]

    identity = f"{wrapper} {operator._name} {template!r} {layouts}"
    digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
    name = f"{operator._name.replace('::', '_').replace('.', '_')}_{digest}"
    _LIBRARY.define(name, run)
    found: OpOverload = getattr(getattr(torch.ops, NAMESPACE), name).default
    return found


def _restrided(t: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    """The tensor with these strides; a copy if it has others."""
    if t.stride() == stride:
        return t
    result = torch.empty_strided(size, stride, dtype=t.dtype, device=t.device)
    return result.copy_(t)
