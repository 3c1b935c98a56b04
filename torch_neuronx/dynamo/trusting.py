"""Calls of PyTorch's own kernels that may trust their caller, with arguments that nobody has seen.

Some kernels read or write outside of their memory where arguments contradict each other. The device
compares these in front of them (`csrc/dispatch/trusting.cpp`); who calls them on the CPU does so
here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from torch_neuronx import _C


def call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function of PyTorch's with tensors of the CPU.

    Raises:
        RuntimeError: An operator that it calls would not stay within its memory; or what it raises
            itself, which may be another error, too.
    """
    # An operator that is made of others and trusts its caller doesn't come to the mode.
    composite = getattr(torch.ops.aten, getattr(function, "__name__", ""), None)
    if composite is not None and not isinstance(function, OpOverload):
        for overload in composite.overloads():
            _C.meet_demands(composite._qualified_op_name, overload, args, kwargs)
    with _Comparing():  # type: ignore[no-untyped-call]
        return function(*args, **kwargs)


class _Comparing(TorchDispatchMode):
    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        del types
        kwargs = dict(kwargs or {})
        if _C.meet_demands(func._schema.name, func._schema.overload_name, args, kwargs):
            args, kwargs = pytree.tree_map(_in_order, (args, kwargs))
        return func(*args, **kwargs)


def _in_order(value: Any) -> Any:
    """Such a kernel may not look at strides."""
    return value.contiguous() if isinstance(value, torch.Tensor) else value
