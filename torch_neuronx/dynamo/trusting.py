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


class UnmetDemandError(RuntimeError):
    """What the device demands of the arguments of an operator that trusts its caller is not met.

    That is no answer of PyTorch's: a call may be taken for which the device has its own kernel.
    """


def call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function of PyTorch's with tensors of the CPU.

    Raises:
        UnmetDemandError: An operator that it calls might not stay within its memory.
        Exception: What it raises itself.
    """
    # An operator that is made of others and trusts its caller doesn't come to the mode.
    composite = getattr(torch.ops.aten, getattr(function, "__name__", ""), None)
    if composite is not None and not isinstance(function, OpOverload):
        for overload in composite.overloads():
            _meets(composite._qualified_op_name, overload, args, kwargs)
    with _Comparing():  # type: ignore[no-untyped-call]
        return function(*args, **kwargs)


def _meets(name: str, overload: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    try:
        return _C.meet_demands(name, overload, args, kwargs)
    except (RuntimeError, IndexError) as error:
        raise UnmetDemandError(str(error)) from None


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
        if _meets(func._schema.name, func._schema.overload_name, args, kwargs):
            args, kwargs = pytree.tree_map(_in_order, (args, kwargs))
        return func(*args, **kwargs)


def _in_order(value: Any) -> Any:
    """Such a kernel may not look at strides."""
    return value.contiguous() if isinstance(value, torch.Tensor) else value
