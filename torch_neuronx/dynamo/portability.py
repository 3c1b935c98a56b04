"""The portability of graphs: operators are warned about or refused, as in eager mode."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from neuronxcc.ir.graph import Graph, Loc
from neuronxcc.ir.limits import limits, lines
from neuronxcc.options import Options
from torch_neuronx.dynamo.errors import UnsupportedOperatorError, place
from torch_neuronx.dynamo.locations import location
from torch_neuronx.dynamo.registry import HostCall, flat
from torch_neuronx.ops import PortabilityError, PortabilityWarning, get_portability
from torch_neuronx.ops.diagnosis import describe
from torch_neuronx.ops.entry import base_name
from torch_neuronx.ops.lookup import Status, verdict
from torch_neuronx.ops.table import Policy
from torch_neuronx.program.dtypes import TO_TORCH
from torch_neuronx.users_line import SourceLine

#: What has been told about a graph: code, file, line.
Told = set[tuple[str, str, int]]


def check_graph(gm: torch.fx.GraphModule, options: Callable[[], Options]) -> Told:
    """Warn about operators that a NeuronCore would not run, or refuse the first of them.

    This goes by operators and types. What only their arguments show is `check_limits`.

    Args:
        gm: ATen operators.
        options: Reads what the graph is compiled with; not called in permissive mode.

    Returns:
        What it has warned about.

    Raises:
        OptionError: The options are not possible.
        UnsupportedOperatorError: strict mode, no NeuronCore has the operator.
        PortabilityError: strict mode, it has it but not with this type.
    """
    mode = get_portability()
    told: Told = set()
    if mode == "permissive":
        return told
    policy = Policy.of(options())
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
        code = found.gap.code if found.gap is not None else ""
        if mode == "strict":
            raise PortabilityError(text, name, dtype, policy.target, code)
        told.add((code, where.filename, where.line))
        _warn(text, loc)
    return told


def check_limits(graph: Graph, options: Callable[[], Options], told: Told) -> None:
    """Hold the graph itself against the limits that the command holds models against.

    Args:
        graph: As imported, before any pass.
        options: As for `check_graph`.
        told: What that has returned: nothing is told twice.

    Raises:
        PortabilityError: strict mode, an operator with such arguments has no form there, or it has
            one with a loss that nobody has accepted.
    """
    mode = get_portability()
    if mode == "permissive":
        return
    settings = options()
    places = lines(graph)
    told = set(told)
    for node, gap in limits(graph, settings.target_spec, unsafe_fp8=settings.unsafe_fp8):
        if gap.typed or gap.accept in settings.accepted_downcasts:
            continue
        loc = places.get(node)
        code = gap.code.removeprefix("NCC_")
        key = (code, loc.file if loc else "", loc.line if loc else 0)
        if key in told:
            continue
        told.add(key)
        op = (loc.op if loc else "") or node.op.value
        text = (
            f"{op} does not run on a NeuronCore ({settings.target}) with these arguments "
            f"[{gap.code}]\n{place(loc)}\n  reason: {gap.text}\n  remedy: {gap.remedy}"
        )
        if mode == "strict":
            dtype = str(TO_TORCH[node.types[0].dtype]).removeprefix("torch.")
            raise PortabilityError(text, op, dtype, settings.target, code)
        _warn(text, loc)


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
        _warn(str(error), call.loc)


def _warn(text: str, loc: Loc | None) -> None:
    file, line = (loc.file, loc.line) if loc else ("", 0)
    warnings.warn_explicit(
        PortabilityWarning(text), PortabilityWarning, file or "<graph>", line or 1
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
