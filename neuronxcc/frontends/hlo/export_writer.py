"""Builds the messages of a module: computations, instructions, shapes, literals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from neuronxcc.frontends.hlo.literals import literal_of
from neuronxcc.frontends.hlo.schema import message
from neuronxcc.frontends.hlo.types import ELEMENT_TYPES, TUPLE
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import Graph, Loc
from neuronxcc.ir.node import TensorType

_NUMBERS = {dtype: number for number, dtype in ELEMENT_TYPES.items()}

#: Writes the nodes of a graph into a computation, on these parameters; its results.
Body = Callable[["Computation", Graph, Sequence[int]], list[int]]
ShapeOf = TensorType | Sequence[TensorType]


def shape_of(type_: ShapeOf) -> Any:
    """The Shape message of a tensor or, of several, of a tuple; dense, the last dimension minor."""
    if not isinstance(type_, TensorType):
        return message("Shape")(element_type=TUPLE, tuple_shapes=map(shape_of, type_))
    return message("Shape")(
        element_type=_NUMBERS[type_.dtype],
        dimensions=type_.shape,
        layout=message("Layout")(minor_to_major=range(type_.rank - 1, -1, -1)),
        is_dynamic_dimension=[False] * type_.rank,
    )


class ModuleWriter:
    """A module that is being written.

    Attributes:
        proto: The message.
    """

    def __init__(self, name: str, body: Body) -> None:
        self.proto = message("Module")(name=name)
        self._body = body
        self._instructions = 0
        self._computations = 0
        self._scalars: dict[tuple[str, tuple[DType, ...]], int] = {}

    def number(self) -> int:
        """A number that no instruction has yet."""
        self._instructions += 1
        return self._instructions

    def computation(self, name: str) -> Computation:
        """Begin one. It is not in the module before `finish`, so that those it calls come first."""
        self._computations += 1
        number = self._computations
        return Computation(self, message("Computation")(name=f"{name}.{number}", id=number))

    def finish(self, computation: Computation) -> int:
        """Put a computation into the module; the last one is the entry. Returns its number."""
        proto = computation.proto
        proto.program_shape.CopyFrom(computation.program_shape())
        self.proto.computations.append(proto)
        self.proto.entry_computation_name, self.proto.entry_computation_id = proto.name, proto.id
        self.proto.host_program_shape.CopyFrom(proto.program_shape)
        return int(proto.id)

    def scalar(
        self, name: str, dtypes: tuple[DType, ...], write: Callable[[Computation, list[int]], int]
    ) -> int:
        """The computation of that name on scalars of these types, written once."""
        key = (name, dtypes)
        if key not in self._scalars:
            made = self.computation(name)
            made.proto.root_id = write(made, [made.parameter(TensorType(d)) for d in dtypes])
            self._scalars[key] = self.finish(made)
        return self._scalars[key]

    def graph(self, graph: Graph, *, one_tuple: bool) -> int:
        """A computation of a graph; returns a tuple.

        Args:
            graph: What to write.
            one_tuple: It takes one tuple, as loops and branches do; False: one value per parameter.
        """
        made = self.computation("region")
        types = [param.type for param in graph.params]
        if one_tuple:
            whole = made.parameter(types)
            params = made.parts(whole, types)
        else:
            params = [made.parameter(type_) for type_ in types]
        made.tuple_(self._body(made, graph, params))
        return self.finish(made)

    def predicate(self, graph: Graph) -> int:
        """A computation of a graph of one result that takes a tuple, and returns that result."""
        made = self.computation("region")
        types = [param.type for param in graph.params]
        made.proto.root_id = self._body(made, graph, made.parts(made.parameter(types), types))[0]
        return self.finish(made)


class Computation:
    """A computation that is being written. What is added last is its root.

    Attributes:
        module: Where it belongs.
        proto: The message.
        loc: Where the user wrote what is added next.
    """

    def __init__(self, module: ModuleWriter, proto: Any) -> None:
        self.module = module
        self.proto = proto
        self.loc: Loc | None = None
        self._types: dict[int, ShapeOf] = {}
        self._params: list[tuple[ShapeOf, str]] = []
        self._names: set[str] = set()

    def add(self, opcode: str, type_: ShapeOf, operands: Sequence[int] = (), **fields: Any) -> int:
        """Add an instruction; returns its number."""
        number = self.module.number()
        made = message("Instruction")(
            name=fields.pop("name", f"{opcode}.{number}"),
            opcode=opcode,
            id=number,
            shape=shape_of(type_),
            operand_ids=operands,
            **fields,
        )
        if self.loc is not None:
            made.metadata.source_file, made.metadata.source_line = self.loc.file, self.loc.line
            made.metadata.op_name = self.loc.op
        self.proto.instructions.append(made)
        self.proto.root_id = number
        self._types[number] = type_
        return number

    def several(
        self, opcode: str, types: Sequence[TensorType], operands: Sequence[int], **fields: Any
    ) -> tuple[int, ...]:
        """Add an instruction of one or more results; the instructions that are these."""
        if len(types) == 1:
            return (self.add(opcode, types[0], operands, **fields),)
        return tuple(self.parts(self.add(opcode, types, operands, **fields), types))

    def parameter(self, type_: ShapeOf, name: str = "") -> int:
        """Add the next parameter."""
        index = len(self._params)
        # Names are unique in a module: of two the second goes by its number.
        given: dict[str, Any] = {} if not name or name in self._names else {"name": name}
        number = self.add("parameter", type_, parameter_number=index, **given)
        self._params.append((type_, name or f"p{index}"))
        self._names.add(self._params[-1][1])
        return number

    def parts(self, whole: int, types: Sequence[TensorType]) -> list[int]:
        """The elements of a tuple."""
        return [
            self.add("get-tuple-element", type_, [whole], tuple_index=index)
            for index, type_ in enumerate(types)
        ]

    def tuple_(self, parts: Sequence[int]) -> int:
        """A tuple of tensors."""
        types = [self._types[part] for part in parts]
        return self.add("tuple", [t for t in types if isinstance(t, TensorType)], parts)

    def constant(self, array: np.ndarray, type_: TensorType) -> int:
        """A constant of an array."""
        return self.add("constant", type_, literal=literal_of(array, type_, shape_of(type_)))

    def full(self, value: Any, type_: TensorType) -> int:
        """A tensor of one value."""
        scalar = TensorType(type_.dtype)
        made = self.constant(np.array(value).astype(type_.dtype.numpy), scalar)
        return self.add("broadcast", type_, [made]) if type_.rank else made

    def program_shape(self) -> Any:
        """Types and names of the parameters, type of the root."""
        return message("ProgramShape")(
            parameters=[shape_of(type_) for type_, _ in self._params],
            parameter_names=[name for _, name in self._params],
            result=shape_of(self._types[self.proto.root_id]),
        )
