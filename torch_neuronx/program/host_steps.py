"""The check that the operators of PyTorch that a program calls take what it gives them.

A program may come from a file that anyone wrote, and some of PyTorch's kernels read outside of
tensors that do not fit together. So every call is made once without memory, on fake tensors of the
sizes, strides and dtypes that the program states: what the operator's own rules refuse is refused
when the program is loaded, and so is a result of other sizes than the program has room for. Where
these rules are not enough, the native core has more (`csrc/dispatch/trusting.h`), which also look
at elements when the program runs.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import _disable_current_modes

from neuronxcc.ir.dtypes import DType
from neuronxcc.program.errors import NeffError
from neuronxcc.program.footprint import programs
from neuronxcc.program.memory import View
from neuronxcc.program.program import Program, all_steps
from neuronxcc.program.steps.operator import AtenStep
from torch_neuronx.program.allowed import NAMESPACES, operator
from torch_neuronx.program.dtypes import HELD, TO_TORCH

# PyTorch's rules are those of CUDA's kernels (bfloat16 alone, certain strides of scales, logsumexps
# of a multiple of 32 queries) and refuse what the device's kernels take and return, which compare
# their arguments themselves.
_OWN_RULES = frozenset(
    {
        "aten::_grouped_mm.default",
        "aten::_scaled_dot_product_efficient_attention.default",
        "aten::_scaled_mm.default",
        "aten::_scaled_mm_v2.default",
    }
)

# Kinds of arguments that a program names and PyTorch numbers.
_NAMED = frozenset({"ScalarTypeType", "LayoutType", "MemoryFormatType"})

# The sizes of their results depend on elements, or nobody has written down what they are. The
# executor compares them when the operator has run.
_UNKNOWN = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
    NotImplementedError,
)


def check_host_steps(program: Program) -> None:
    """Call every operator of PyTorch that a program names on fake tensors.

    Args:
        program: The program; bodies are looked at too.

    Raises:
        NeffError: An operator refuses its arguments, or its results are not those that the program
            states; status 2 (NRT_INVALID).
    """
    seen: set[str] = set()
    mode: FakeTensorMode | None = None
    for part in programs(program):
        for number, step in enumerate(all_steps(part.steps)):
            if not isinstance(step, AtenStep) or step.target.partition("::")[0] not in NAMESPACES:
                continue
            if step.target in _OWN_RULES:
                continue
            key = repr((step.target, step.args, step.kwargs, step.outs))
            if key in seen:  # layers repeat themselves
                continue
            seen.add(key)
            mode = mode or FakeTensorMode()
            problem = _problem(step, mode)
            if problem:
                raise NeffError(
                    f"NRT_INVALID (status 2): program {part.name!r}, step {number}: "
                    f"{step.target} {problem}. The file is damaged, or not made by this compiler: "
                    "compile the model anew"
                )


def _problem(step: AtenStep, mode: FakeTensorMode) -> str:
    """The fault of a call; "" if none is known."""
    target = operator(step.target)
    arguments = target._schema.arguments  # type: ignore[attr-defined]
    named = {argument.name: argument for argument in arguments}
    try:
        with _disable_current_modes(), mode, torch.no_grad(), _quiet():
            where = torch.device("neuron" if step.device else "cpu")
            given = [_argument(v, a, where) for v, a in zip(step.args, arguments, strict=False)]
            kwargs = {k: _argument(v, named.get(k), where) for k, v in step.kwargs.items()}
            device = named.get("device")
            if device is not None and len(given) <= arguments.index(device):
                kwargs["device"] = where
            results = pytree.tree_leaves(target(*given, *step.args[len(given) :], **kwargs))
    except _UNKNOWN:
        return ""
    except Exception as error:  # noqa: BLE001 - whatever an operator raises is its refusal
        return f"refuses its arguments: {str(error).splitlines()[0] if str(error) else error!r}"
    return _mismatch(results, step.outs)


def _mismatch(results: Sequence[Any], outs: Sequence[View | None]) -> str:
    """How results differ from what the program has room for."""
    if len(results) != len(outs):
        return f"has {len(results)} results, the program expects {len(outs)}"
    for number, (result, out) in enumerate(zip(results, outs, strict=True)):
        if isinstance(result, torch.Tensor) and result.layout != torch.strided:
            return f"has a result {number} of layout {result.layout}"
        if out is None:
            continue
        if not isinstance(result, torch.Tensor):
            return f"has no tensor as result {number}"
        if tuple(result.shape) != tuple(out.shape):
            return (
                f"has a result {number} of shape {list(result.shape)}, "
                f"the program expects {list(out.shape)}"
            )
    return ""


def _argument(value: Any, argument: Any, where: torch.device) -> Any:
    """An argument of a step as the fake operator takes it, of tensors on that device."""
    if isinstance(value, View):
        return torch.empty_strided(
            value.shape, value.strides, dtype=HELD[value.dtype], device=where
        )
    if isinstance(value, DType):
        return TO_TORCH[value]
    if isinstance(value, tuple | list):
        return [_argument(v, None, where) for v in value]
    kind = "" if argument is None else _kind(argument.real_type)
    if kind == "DeviceObjType":  # the executor says where
        return where
    if kind in _NAMED and isinstance(value, int):  # which kernels use as an index without a look
        raise TypeError(f"argument {argument.name!r} is the number {value}")
    if kind in {"LayoutType", "MemoryFormatType"} and isinstance(value, str):
        return getattr(torch, value)
    return value


def _kind(type_: Any) -> str:
    """The kind of a type of a schema, or of what is optional."""
    kind: str = type_.kind()
    return _kind(type_.getElementType()) if kind == "OptionalType" else kind


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Fake tensors log what they refuse; here that is an error with a text of its own."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)
