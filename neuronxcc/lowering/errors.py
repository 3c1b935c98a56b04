"""Errors of lowering."""

from __future__ import annotations

from collections.abc import Iterable

from neuronxcc.ir.node import Node, TensorType


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


class StepOrderError(RuntimeError):
    """A step of a program reads memory that no step before it has written: a defect of ours.

    Attributes:
        code: Stable code for users.
    """

    code = "NCC_ISCH001"

    def __init__(self, program: str, step: int, read: Iterable[TensorType]) -> None:
        super().__init__(
            f"[{self.code}] step {step} of {program} reads {', '.join(map(str, read))} before any "
            "step has written it. This is a defect of the compiler, not of your program. remedy: "
            "exclude the function with torch.compiler.disable, and report this message"
        )
