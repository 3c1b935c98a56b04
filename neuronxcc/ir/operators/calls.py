"""Calls of ATen's operators.

`target` is "aten::name.overload", `args` and `kwargs` (pairs) are as in its schema with Operand(i)
for tensors, `device` is that of `program.steps.aten`, `sequence` tells effects apart, and `outs`
says for every result of the ATen operator its place among the node's results, or None. `dense` has
the operands that must not be broadcasts in memory: PyTorch's kernel looks at strides, and to it
these tensors have an element each.
"""

from __future__ import annotations

from typing import Any

from neuronxcc.ir.node import Node, Operand
from neuronxcc.ir.op import Op
from neuronxcc.ir.operators.definition import Cost, Gap, Kind, Operator, names
from neuronxcc.targets import Engine

_ATTRS = names("target args kwargs device")
_OPTIONAL = names("sequence outs dense")


def _operands(value: Any) -> list[int]:
    """The numbers of all operands in the arguments of a call."""
    if isinstance(value, Operand):
        return [value.index]
    if isinstance(value, tuple):
        return [number for item in value for number in _operands(item)]
    return []


def _call(node: Node) -> str | None:
    for number in _operands((node["args"], node["kwargs"])):
        if not 0 <= number < len(node.srcs):
            return f"names operand {number} of {len(node.srcs)}"
    return None


# A pooling whose indices somebody wants is a call, with the dilation as its fifth argument.
# A pooling whose indices somebody wants is a call, with the dilation as its fifth argument.
_POOLINGS = frozenset(
    {"aten::max_pool2d_with_indices.default", "aten::max_pool3d_with_indices.default"}
)


def _dilated_pooling(node: Node) -> bool:
    return node["target"] in _POOLINGS and any(n > 1 for n in node["args"][4])


OPERATORS = (
    # How we run something that a NeuronCore has.
    Operator(
        op=Op.CUSTOM_CALL,
        kind=Kind.CALL,
        engine=Engine.GPSIMD,
        cost=Cost.EXTERNAL,
        attrs=_ATTRS,
        optional=_OPTIONAL,
        check=_call,
        evaluate=lambda run, node, operands: run.external(node, operands),
        gaps=(Gap("NCC_EVRF018", _dilated_pooling),),
    ),
    # An operator without a lowering.
    Operator(
        op=Op.HOST_CALL,
        kind=Kind.CALL,
        engine=Engine.HOST,
        cost=Cost.EXTERNAL,
        attrs=_ATTRS,
        optional=_OPTIONAL,
        check=_call,
        evaluate=lambda run, node, operands: run.external(node, operands),
        gaps=(
            Gap(
                "NCC_EUOC002",
                lambda _: True,
                typed=True,
                says="An unsupported operator was used: one without a lowering, which would run "
                "on the host",
            ),
        ),
    ),
)
