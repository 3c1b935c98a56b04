"""Gaps: operators that the real compiler refuses or rounds, by target, with their documented codes.

The limits of one operator stand in its block, those of element types here. Source: the error pages
of the AWS Neuron documentation (compiler/error-codes, SDK 2.32). This says nothing about how a
graph runs here; portability reports and modes are made from it.
"""

from __future__ import annotations

from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node
from neuronxcc.ir.operators.definition import Gap
from neuronxcc.ir.table import TABLE, info
from neuronxcc.targets import Target


def _uses(node: Node, *dtypes: DType) -> bool:
    return any(t.dtype in dtypes for t in (*node.types, *(src.types[0] for src in node.srcs)))


_OF_TYPES = (
    Gap(
        "NCC_ESPP004",
        lambda node: _uses(node, DType.F64, DType.C128),
        typed=True,
        says="data type not supported for code generation: 64-bit floats",
    ),
    Gap(
        "NCC_EVRF004",
        lambda node: not info(node).complex and _uses(node, DType.C64, DType.C128),
        typed=True,
        says="Complex data types are not supported on the Neuron device by this operator",
    ),
    Gap(
        "NCC_EVRF051",
        lambda node: _uses(node, DType.F8E4M3FN),
        typed=True,
        on=lambda target: "float8_e4m3fn" not in target.dtypes,
    ),
    Gap(
        "NCC_EVRF052",
        lambda node: _uses(node, DType.F8E4M3),
        typed=True,
        on=lambda target: "float8_e4m3" not in target.dtypes,
    ),
)

GAPS: tuple[Gap, ...] = (*_OF_TYPES, *(gap for block in TABLE.values() for gap in block.gaps))


def gaps(node: Node, target: Target) -> list[Gap]:
    """The limits that a node meets on a target."""
    return [gap for gap in (*_OF_TYPES, *info(node).gaps) if gap.on(target) and gap.applies(node)]
