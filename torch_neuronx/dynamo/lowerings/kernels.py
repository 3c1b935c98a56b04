"""Calls of NKI's kernels: each is one step of the program, the kernel's own program its body."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

from neuronxcc.ir import build
from neuronxcc.ir.node import Node, Operand
from neuronxcc.lowering.kernel_calls import TARGET, Callee, keep
from nki.frontends import EXECUTOR_VARIABLE
from torch_neuronx.dynamo.dtypes import tensor_type
from torch_neuronx.dynamo.registry import Context, flat, lowers_name
from torch_neuronx.nki.launches import OPERATOR, enter, launch_of

assert OPERATOR == TARGET


@lowers_name(OPERATOR)
def run(cx: Context, given: Sequence[Node], key: str) -> Any:
    """A kernel. Its name in the graph is a hash of its program, so that it means the same anywhere.

    With the reference executor the operator itself is the step.
    """
    if os.environ.get(EXECUTOR_VARIABLE) != "reference":
        launch = launch_of(key)
        key = keep(Callee(launch.program, tuple(sorted(launch.written))))
        enter(key, launch)
    types = [tensor_type(v) for v in flat(cx.value) if isinstance(v, torch.Tensor)]
    node = build.custom_call(
        TARGET,
        types,
        given,
        args=(tuple(Operand(i) for i in range(len(given))), key),
        device=cx.on_device,
    )
    return build.results(node)
