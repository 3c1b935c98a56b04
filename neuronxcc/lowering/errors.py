"""Errors of lowering."""

from __future__ import annotations

from neuronxcc.ir.node import Node


class LoweringUnsupportedError(NotImplementedError):
    """An operator, valid in the tensor IR, that no step of a program can execute.

    Attributes:
        code: Stable code for users.
        node: The operation.
    """

    code = "NCC_EUOC002"

    def __init__(self, node: Node, why: str, remedy: str) -> None:
        self.node = node
        types = ", ".join(str(src.type) for src in node.srcs)
        super().__init__(
            f"[{self.code}] {node.op.value}({types}) cannot be lowered: {why}. {remedy}"
        )
