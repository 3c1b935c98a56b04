"""What a NeuronCore would not run of a graph: warned about or refused, as eager mode does."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch._ops import OpOverload

from neuronxcc.ir.graph import Loc
from torch_neuronx.dynamo.errors import UnsupportedOperatorError
from torch_neuronx.dynamo.locations import location
from torch_neuronx.dynamo.registry import HostCall, flat
from torch_neuronx.ops import PortabilityError, PortabilityWarning, get_portability
from torch_neuronx.ops.diagnosis import SourceLine, describe
from torch_neuronx.ops.entry import base_name
from torch_neuronx.ops.lookup import Status, verdict
from torch_neuronx.ops.modes import current_policy


def check_graph(gm: torch.fx.GraphModule) -> None:
    """Warn about operators that a NeuronCore would not run, or refuse the first of them.

    Raises:
        UnsupportedOperatorError: strict mode, no NeuronCore has the operator.
        PortabilityError: strict mode, it has it but not with this type.
    """
    mode = get_portability()
    if mode == "permissive":
        return
    policy = current_policy()
    for node in gm.graph.nodes:
        if not isinstance(node.target, OpOverload) or node.target.namespace not in {
            "aten",
            "prims",
        }:
            continue
        dtype = dtype_of(node)
        found = verdict(base_name(node.target._name), dtype, policy)
        if found.on_neuron_core or node.target.namespace == "prims":
            continue
        loc = location(node)
        name = node.target._name
        if found.status is Status.HOST and mode == "strict":
            assert found.gap is not None
            raise UnsupportedOperatorError(name, loc, found.gap.reason, found.gap.remedy)
        where = (
            SourceLine(loc.file, loc.line, backward=False)
            if loc
            else SourceLine("", 0, backward=False)
        )
        text = describe(name, dtype, policy, found, where)
        if mode == "strict":
            code = found.gap.code if found.gap is not None else ""
            raise PortabilityError(text, name, dtype, policy.target, code)
        warnings.warn_explicit(
            PortabilityWarning(text),
            PortabilityWarning,
            where.filename or "<graph>",
            where.line or 1,
        )


def check_host_calls(calls: tuple[HostCall, ...]) -> None:
    """Refuse operators without a lowering in strict mode, name them in warn mode.

    Raises:
        UnsupportedOperatorError: strict mode.
    """
    mode = get_portability()
    if mode == "permissive":
        return
    for call in calls:
        reason = call.reason or "the compiler has no lowering for it: it would run on the host"
        remedy = "write it with other operators, or keep it out with torch.compiler.disable"
        error = UnsupportedOperatorError(call.op, call.loc, reason, remedy)
        if mode == "strict":
            raise error
        loc = call.loc or Loc("<graph>", 1)
        warnings.warn_explicit(
            PortabilityWarning(str(error)), PortabilityWarning, loc.file, loc.line
        )


def dtype_of(node: torch.fx.Node) -> str:
    """The type that counts: that of the first tensor argument, or of the result."""
    values: list[Any] = [
        a.meta.get("val") for a in flat(list(node.args)) if isinstance(a, torch.fx.Node)
    ]
    for value in (*values, *flat(node.meta.get("val"))):
        if isinstance(value, torch.Tensor):
            return str(value.dtype).removeprefix("torch.")
    return ""
