"""A module to a graph of tensor IR: one table entry per instruction of XLA."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from neuronxcc.frontends.hlo import (
    asynchronous,
    collectives,
    contraction,
    control,
    custom,
    elementwise,
    movement,
    random,
    reduction,
    sorting,
)
from neuronxcc.frontends.hlo.errors import (
    TOO_LARGE,
    HloError,
    RefusedError,
    Where,
    invalid,
    unsupported,
)
from neuronxcc.frontends.hlo.module import Instruction, Module, decode
from neuronxcc.frontends.hlo.notes import Note
from neuronxcc.frontends.hlo.refused import REFUSED
from neuronxcc.frontends.hlo.site import (
    Handler,
    Scope,
    Site,
    Value,
    flatten,
    type_of_value,
    unflatten,
)
from neuronxcc.frontends.hlo.types import Type, leaves, text_of
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import Graph, Loc, parameter
from neuronxcc.ir.node import Node, TensorType
from neuronxcc.ir.op import Op
from neuronxcc.ir.operators.checks import ShapeError

_SYNCHRONOUS: Final[dict[str, Handler]] = {
    **elementwise.TABLE,
    **movement.TABLE,
    **reduction.TABLE,
    **sorting.TABLE,
    **contraction.TABLE,
    **control.TABLE,
    **collectives.TABLE,
    **custom.TABLE,
    **random.TABLE,
}
HANDLERS: Final[dict[str, Handler]] = {**_SYNCHRONOUS, **asynchronous.table(_SYNCHRONOUS)}

#: Instructions, those of a called computation counted at every call. A module of a few lines can
#: call itself up to any number; the vendor's compiler gives up at five million of its own.
MAX_INSTRUCTIONS: Final = 1_000_000
MAX_CALLS: Final = 100  # computations that call each other, one inside the other


@dataclass(frozen=True)
class Imported:
    """A module as tensor IR.

    Attributes:
        graph: Its parameters are the tensors of the entry computation's parameters, in order.
        params: Types of the entry computation's parameters; tuples are flattened in the graph.
        result: Type of its result.
        names: Name of every parameter of the graph.
        where: The instruction that a node stands for.
        by_rank: The graph has one parameter more, the number of the device, as s32[].
        notes: What is to be told about instructions.
    """

    graph: Graph
    params: tuple[Type, ...]
    result: Type
    names: tuple[str, ...]
    where: dict[Node, Where]
    by_rank: bool
    notes: tuple[tuple[Note, Where], ...] = ()


def import_hlo(content: bytes, most_instructions: int | None = None) -> Imported:
    """Import a serialised module.

    Args:
        content: An `HloModuleProto` in protobuf's wire format, or the `HloProto` around it.
        most_instructions: Refuse a module of more, those of a called computation counted at every
            call; None or a larger number: MAX_INSTRUCTIONS.

    Raises:
        HloError: It is damaged, breaks XLA's rules, or has what the compiler does not support. The
            error names the instruction and the user's line.
    """
    most = min(most_instructions or MAX_INSTRUCTIONS, MAX_INSTRUCTIONS)
    return _Importer(decode(content), most).result()


@dataclass
class _Importer:
    module: Module
    most: int
    where: dict[Node, Where] = field(default_factory=dict)
    locs: dict[Node, Loc] = field(default_factory=dict)
    notes: dict[tuple[Note, Where], None] = field(default_factory=dict)  # each once, in order
    _known: dict[tuple[int, tuple[Value, ...]], Value] = field(default_factory=dict)
    _scopes: list[Scope] = field(default_factory=list)
    _imported: int = 0
    _depth: int = 0

    def __post_init__(self) -> None:
        self._numbers = itertools.count()

    def result(self) -> Imported:
        entry = self.module.computations[self.module.entry]
        types = tuple(entry.instructions[p].type for p in entry.params)
        params: list[Node] = []
        names: list[str] = []
        values: list[Value] = []
        for place, type_ in zip(entry.params, types, strict=True):
            name, parts = entry.instructions[place].name, leaves(type_)
            nodes = []
            for i, part in enumerate(parts):
                names.append(name if len(parts) == 1 else f"{name}.{i}")
                nodes.append(parameter(len(params), part, names[-1]))
                params.append(nodes[-1])
                self.where[nodes[-1]] = self.module.where(entry.instructions[place])
            values.append(unflatten(type_, nodes))
        scope = Scope(parameter(len(params), TensorType(DType.S32), "rank"))
        self._scopes.append(scope)
        value = self.run(self.module.entry, values)
        if scope.used:
            params.append(scope.rank)
        graph = Graph(
            self.module.name, tuple(params), tuple(flatten(value)), self._aliases(types), self.locs
        )
        return Imported(
            graph, types, type_of_value(value), tuple(names), self.where, scope.used,
            tuple(self.notes),
        )  # fmt: skip

    def _number(self) -> int:
        return next(self._numbers)

    def _rank(self) -> Node:
        """The number of the device: a parameter of the graph that is being made."""
        next(self._numbers)  # what asks for it belongs to one graph and isn't kept for others
        scope = self._scopes[-1]
        scope.used = True
        return scope.rank

    @contextmanager
    def _within(self, scope: Scope) -> Iterator[None]:
        self._scopes.append(scope)
        try:
            yield
        finally:
            self._scopes.pop()

    def run(self, number: int, args: Sequence[Value]) -> Value:
        """Import a computation on values; on the same values again, the same result."""
        key = (number, tuple(args))
        if key in self._known:
            return self._known[key]
        computation = self.module.computations[number]
        if len(args) != len(computation.params):
            raise invalid(f"'{computation.name}' takes {len(computation.params)} parameters")
        if self._depth >= MAX_CALLS:
            raise RefusedError(
                TOO_LARGE, f"computations call each other more than {MAX_CALLS} deep",
                "flatten the module before it is compiled",
            )  # fmt: skip
        self._depth += 1
        given = dict(zip(computation.params, args, strict=True))
        values: list[Value] = []
        before = next(self._numbers)
        for place, instruction in enumerate(computation.instructions):
            values.append(self._instruction(instruction, values, given.get(place), place in given))
        self._depth -= 1
        result = values[computation.root]
        if next(self._numbers) == before + 1:  # without effects
            self._known[key] = result
        return result

    def _instruction(
        self, instruction: Instruction, values: list[Value], given: Value, is_param: bool
    ) -> Value:
        try:
            value = self._checked(instruction, values, given, is_param)
        except RefusedError as refusal:
            where = self.module.where(instruction)
            raise HloError(refusal.code, str(refusal), refusal.remedy, where) from refusal
        except ShapeError as error:
            broken = invalid(str(error))
            where = self.module.where(instruction)
            raise HloError(broken.code, str(broken), broken.remedy, where) from error
        if not is_param:
            self._note(instruction, value)
        return value

    def _checked(
        self, instruction: Instruction, values: list[Value], given: Value, is_param: bool
    ) -> Value:
        """The value of an instruction, which has the type that the module declares."""
        self._imported += 1
        if self._imported > self.most:
            raise RefusedError(
                TOO_LARGE,
                f"number of instructions generated exceeds the limit of {self.most}",
                "split the model: pipeline or tensor parallelism, or several smaller graphs",
            )
        value = given if is_param else self._handle(instruction, values)
        if type_of_value(value) != instruction.type:
            raise invalid(
                f"the result is {text_of(type_of_value(value))}, the module says "
                f"{text_of(instruction.type)}"
            )
        return value

    def _handle(self, instruction: Instruction, values: list[Value]) -> Value:
        handler = HANDLERS.get(instruction.opcode)
        if handler is None:
            refusal = REFUSED.get(instruction.opcode)
            raise refusal.error(instruction.opcode) if refusal else unsupported(instruction.opcode)
        operands = tuple(values[n] for n in instruction.operands)
        return handler(
            Site(
                instruction.proto,
                instruction.type,
                operands,
                instruction.called,
                self.run,
                self._number,
                self._rank,
                self._within,
                self.module.devices,
                lambda note: self.notes.update({(note, self.module.where(instruction)): None}),
            )
        )

    def _note(self, instruction: Instruction, value: Value) -> None:
        """Remember where new nodes come from: the results, and what was made on the way."""
        stack = [node for node in flatten(value) if node not in self.where]
        if not stack:
            return
        where = self.module.where(instruction)
        loc = Loc(where.file, where.line, op=where.instruction) if where.file else None
        while stack:
            node = stack.pop()
            if node in self.where or node.op is Op.PARAMETER:
                continue
            self.where[node] = where
            if loc is not None:
                # The file isn't read for the text of the line: its name comes from outside.
                self.locs[node] = loc
            stack.extend(node.srcs)

    def _aliases(self, types: Sequence[Type]) -> dict[int, int]:
        """Results that take the place of parameters: number of the tensor -> of the parameter."""
        entry = self.module.computations[self.module.entry]
        result = entry.instructions[entry.root].type
        aliases = {}
        for alias in self.module.proto.input_output_alias.entries:
            out = _number(result, alias.output_shape_index)
            into = _number(tuple(types), [alias.parameter_number, *alias.parameter_shape_index])
            if out is None or into is None:
                refusal = invalid("an alias of a result or parameter that isn't there")
                raise HloError(refusal.code, str(refusal), refusal.remedy)
            aliases[out] = into
        return aliases


def _number(type_: Type, index: Sequence[int]) -> int | None:
    """The number of a tensor among the leaves of a type; None if there is none at that index."""
    before = 0
    for step in index:
        if not isinstance(type_, tuple) or not 0 <= step < len(type_):
            return None
        before += sum(len(leaves(part)) for part in type_[:step])
        type_ = type_[step]
    return before if type_ is not None and not isinstance(type_, tuple) else None
