"""Calls of NKI's kernels: each is one step of the program, the kernel's own program its body."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from neuronxcc.environment.compilation import TORCH_NEURONX_EXECUTOR
from neuronxcc.environment.kernels import TORCH_NEURONX_NKI_EXECUTOR
from neuronxcc.ir import build
from neuronxcc.ir.node import Node, Operand, TensorType
from neuronxcc.lowering.emission.kernel_calls import TARGET, Callee, keep
from nki.kernel import Kernel
from nki.launch import Launch
from torch_neuronx.dynamo.dtypes import tensor_type, to_ir
from torch_neuronx.dynamo.registry import Context, flat, lowers_name
from torch_neuronx.nki.launches import OPERATOR, enter, key_of, launch_of
from torch_neuronx.nki.types import TO_TORCH
from torch_neuronx.program.dtypes import TO_TORCH as FROM_IR

assert OPERATOR == TARGET

aten = torch.ops.aten
# What makes tensors whose content nobody may read before it is written.
_UNDEFINED = frozenset(
    {
        aten.empty.memory_format,
        aten.empty_like.default,
        aten.empty_permuted.default,
        aten.empty_strided.default,
    }
)


@lowers_name(OPERATOR)
def run(cx: Context, given: Sequence[Node], key: str) -> Any:
    """A kernel that the graph calls."""
    types = [tensor_type(v) for v in flat(cx.value) if isinstance(v, torch.Tensor)]
    launch = launch_of(key)
    sources: Any = cx.fx.args[0]
    undefined = frozenset(i for i in launch.written if sources[i].target in _UNDEFINED)
    return _launched(cx, launch, given, types, undefined)


def call(
    cx: Context, kernel: Kernel, operands: Sequence[Node], args: Sequence[Any]
) -> tuple[Node, ...]:
    """Call a kernel that writes no argument in place of another operator.

    Args:
        cx: of the call.
        kernel: the kernel.
        operands: its array arguments.
        args: all its arguments, with `stand_in` of the operands.
    """
    launch = kernel.prepared([(tuple(args), {})])[0]
    types = [TensorType(to_ir(TO_TORCH[dtype]), shape) for shape, dtype in launch.outputs]
    return _launched(cx, launch, operands, types)


def stand_in(x: Node) -> torch.Tensor:
    """A tensor without data of the neuron device, of a node's shape and type."""
    with FakeTensorMode():
        return torch.empty(x.shape, dtype=FROM_IR[x.dtype], device="neuron")


def _launched(
    cx: Context,
    launch: Launch,
    given: Sequence[Node],
    types: Sequence[TensorType],
    undefined: frozenset[int] = frozenset(),
) -> tuple[Node, ...]:
    """The call in the graph, named by a hash of its program, so that it means the same anywhere.

    Nothing is passed for arguments that are `undefined` before the kernel writes them. With a
    reference executor the operator itself is the step, and it takes all arguments.
    """
    by_operator = TORCH_NEURONX_NKI_EXECUTOR.get() == "reference"
    if by_operator:
        key = key_of(launch)
    else:
        key = keep(Callee(launch.program, tuple(sorted(launch.written))))
        enter(key, launch)
    if by_operator or TORCH_NEURONX_EXECUTOR.get() in ("reference", "device"):
        undefined = frozenset()
    operands = [x for i, x in enumerate(given) if i not in undefined]
    numbers = itertools.count()
    places = tuple(None if i in undefined else Operand(next(numbers)) for i in range(len(given)))
    node = build.custom_call(TARGET, types, operands, args=(places, key), device=cx.on_device)
    return build.results(node)
