"""Small HLO modules, written instruction by instruction, right or wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from neuronxcc.frontends.hlo.schema import message
from neuronxcc.frontends.hlo.types import ELEMENT_TYPES

NUMBERS = {dtype.value: number for number, dtype in ELEMENT_TYPES.items()}
#: Types that are valid and that nothing computes in.
OTHERS = {
    "f8e4m3fnuz": 25,
    "f8e5m2fnuz": 24,
    "f4e2m1fn": 32,
    "s4": 21,
    "u4": 22,
    "f8e4m3b11fnuz": 23,
    "f8e3m4": 29,
    "token": 17,
}


def shape(text: str, dynamic: Sequence[bool] = ()) -> Any:
    """A Shape message of "f32[2,3]"."""
    name, _, extents = text.rstrip("]").partition("[")
    made = message("Shape")(element_type={**NUMBERS, **OTHERS}[name])
    made.dimensions.extend(int(n) for n in extents.split(",") if n)
    made.is_dynamic_dimension.extend(dynamic)
    return made


def tuple_shape(*parts: Any) -> Any:
    """A Shape message of a tuple."""
    return message("Shape")(element_type=13, tuple_shapes=parts)


class Computation:
    """Adds instructions; the last one is the root.

    Attributes:
        proto: The message.
    """

    def __init__(self, name: str, number: int) -> None:
        self.proto = message("Computation")(name=name, id=number)

    def add(self, opcode: str, type_: Any, *operands: int, **fields: Any) -> int:
        """Add an instruction of a type, "f32[2]" or a Shape; returns its number."""
        number: int = 1000 * self.proto.id + len(self.proto.instructions)
        instruction = message("Instruction")(
            name=f"{opcode}.{number}",
            opcode=opcode,
            id=number,
            shape=shape(type_) if isinstance(type_, str) else type_,
            operand_ids=operands,
            **fields,
        )
        instruction.metadata.source_file, instruction.metadata.source_line = "model.py", number
        self.proto.instructions.append(instruction)
        self.proto.root_id = number
        return number

    def parameter(self, type_: Any) -> int:
        """Add the next parameter."""
        count = sum(i.opcode == "parameter" for i in self.proto.instructions)
        return self.add("parameter", type_, parameter_number=count)


def module(entry: Computation, *called: Computation) -> bytes:
    """The bytes of a module."""
    made = message("Module")(name="test", entry_computation_id=entry.proto.id)
    made.computations.extend([*(c.proto for c in called), entry.proto])
    content: bytes = made.SerializeToString()
    return content


def scalar(opcode: str, dtype: str = "f32", number: int = 2) -> Computation:
    """A computation of one binary instruction on scalars."""
    made = Computation(opcode, number)
    made.add(opcode, f"{dtype}[]", made.parameter(f"{dtype}[]"), made.parameter(f"{dtype}[]"))
    return made


def custom(
    target: str, operands: Sequence[Any], result: Any, config: bytes = b"", **fields: Any
) -> bytes:
    """A module of one custom call; operands and result are types."""
    main = Computation("main", 1)
    numbers = [main.parameter(type_) for type_ in operands]
    main.add(
        "custom-call", result, *numbers, custom_call_target=target, backend_config=config, **fields
    )
    return module(main)
