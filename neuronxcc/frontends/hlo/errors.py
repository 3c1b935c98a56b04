"""Errors of the front end: the documented code, the instruction, the user's line, a remedy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: Ours: bytes that are no module at all. The documentation has no code for them.
NOT_A_MODULE = "NCC_EHLO001"
#: Ours: a module of more instructions than the compiler takes on.
TOO_LARGE = "NCC_EVRF007"
INVALID = "NCC_EVRF064"
UNSUPPORTED = "NCC_EUOC002"


@dataclass(frozen=True, slots=True)
class Where:
    """The instruction that an error is about.

    Attributes:
        instruction: Its name in the module, "dot.7".
        opcode: Its operation, "dot".
        file: The source file of the user's line, "" if the module doesn't say.
        line: Its number.
        op: What the framework calls it, "jit(f)/dot_general".
    """

    instruction: str
    opcode: str
    file: str = ""
    line: int = 0
    op: str = ""

    def __str__(self) -> str:
        at = f" at {self.file}:{self.line}" if self.file else ""
        made_by = f" ({self.op})" if self.op else ""
        return f"instruction '{self.instruction}' ({self.opcode}){at}{made_by}"


class HloError(ValueError):
    """A module that can't be compiled.

    Attributes:
        code: The documented code without brackets, for example "NCC_EVRF010"; "" if there is none.
        where: The instruction; None if it is about the module.
        remedy: What to do.
    """

    def __init__(self, code: str, text: str, remedy: str, where: Where | None = None) -> None:
        self.code, self.text, self.remedy, self.where = code, text, remedy, where
        place = f"\n  at {where}" if where else ""
        shown = f"[{code}] " if code else ""
        super().__init__(f"{shown}{text}{place}\n  remedy: {remedy}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.code, self.text, self.remedy, self.where)


class RefusedError(Exception):
    """Raised by the importer of one instruction; the caller adds where it stands.

    Attributes:
        code: As in HloError.
        remedy: As in HloError.
    """

    def __init__(self, code: str, text: str, remedy: str) -> None:
        self.code, self.remedy = code, remedy
        super().__init__(text)


def invalid(text: str) -> RefusedError:
    """An instruction that breaks XLA's own rules."""
    return RefusedError(
        INVALID,
        f"HLO verification failed: {text}",
        "the module was written by a defective front end or damaged; write it again",
    )


def unsupported(text: str, remedy: str = "") -> RefusedError:
    """An operator, or a use of it, that the compiler does not have."""
    return RefusedError(
        UNSUPPORTED,
        f"An unsupported operator was used: {text}",
        remedy or "rewrite it with supported operators (neuronx-cc list-operators)",
    )
