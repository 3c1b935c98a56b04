"""The argument of an instruction's importer, and the values that it works on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from neuronxcc.frontends.hlo.errors import RefusedError, invalid
from neuronxcc.frontends.hlo.notes import Note
from neuronxcc.frontends.hlo.types import Type
from neuronxcc.ir.node import Node, TensorType

#: The value of an instruction: a tensor, a tuple of values, or None for a token.
Value = Node | tuple["Value", ...] | None


@dataclass(slots=True)
class Scope:
    """A graph that is being made: the main one, or that of a loop or a branch.

    Attributes:
        rank: Its parameter that holds the number of the device.
        used: Something has asked for it.
    """

    rank: Node
    used: bool = False


@dataclass(frozen=True, slots=True)
class Site:
    """One instruction about to be imported.

    Attributes:
        proto: The message.
        type: The declared type of the result.
        operands: Their values.
        called: Positions of the computations it calls.
        run: Imports a computation on values.
        counter: Gives a new number at every call, in the order of the program.
        rank: Gives the scalar that holds the number of the device that runs the program.
        within: Makes a scope current as long as the graph of a loop or a branch is made.
        devices: Numbers of replicas and of partitions, (0, 0) if the module doesn't say.
        note: Keeps what is to be told about the instruction.
    """

    proto: Any
    type: Type
    operands: tuple[Value, ...]
    called: tuple[int, ...]
    run: Callable[[int, Sequence[Value]], Value]
    counter: Callable[[], int]
    rank: Callable[[], Node]
    within: Callable[[Scope], AbstractContextManager[None]]
    devices: tuple[int, int]
    note: Callable[[Note], None]

    @property
    def opcode(self) -> str:
        """As XLA prints it."""
        return str(self.proto.opcode)

    @property
    def tensors(self) -> tuple[Node, ...]:
        """The operands, which must all be tensors.

        Raises:
            RefusedError: One is a tuple or a token.
        """
        nodes = tuple(value for value in self.operands if isinstance(value, Node))
        if len(nodes) != len(self.operands):
            raise invalid(f"{self.opcode} takes tensors")
        return nodes

    def take(self, count: int) -> tuple[Node, ...]:
        """The operands, which must be `count` tensors.

        Raises:
            RefusedError: They are not.
        """
        if len(self.operands) != count:
            raise invalid(f"{self.opcode} takes {count} operand(s), got {len(self.operands)}")
        return self.tensors

    @property
    def one(self) -> Node:
        """The only operand."""
        return self.take(1)[0]

    @property
    def tensor_type(self) -> TensorType:
        """The declared type, which must be a tensor's.

        Raises:
            RefusedError: It is a tuple's or a token's.
        """
        if not isinstance(self.type, TensorType):
            raise invalid(f"the result of {self.opcode} is a tensor")
        return self.type

    def callee(self, number: int = 0) -> int:
        """Position of a computation that the instruction calls.

        Raises:
            RefusedError: It calls none of that number.
        """
        if number >= len(self.called):
            raise invalid(f"{self.opcode} names {len(self.called)} computation(s)")
        return self.called[number]


#: Imports one instruction.
Handler = Callable[[Site], Value]


def flatten(value: Value) -> list[Node]:
    """The tensors of a value in order; tokens are none."""
    if value is None:
        return []
    if isinstance(value, Node):
        return [value]
    return [node for part in value for node in flatten(part)]


def unflatten(type_: Type, nodes: Sequence[Node]) -> Value:
    """The value of a type that has these tensors."""
    rest = iter(nodes)

    def build(part: Type) -> Value:
        if part is None:
            return None
        if isinstance(part, TensorType):
            return next(rest)
        return tuple(map(build, part))

    return build(type_)


def type_of_value(value: Value) -> Type:
    """The type of a value."""
    if value is None:
        return None
    if isinstance(value, Node):
        return value.type
    return tuple(map(type_of_value, value))


__all__ = [
    "Handler",
    "RefusedError",
    "Scope",
    "Site",
    "Value",
    "flatten",
    "type_of_value",
    "unflatten",
]
