"""Shapes of HLO values: tensors, tuples of them, tokens."""

from __future__ import annotations

from typing import Any, Final

from neuronxcc.frontends.hlo.errors import RefusedError, invalid
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import TensorType

#: A type of an HLO value: a tensor, a tuple, or None for a token.
Type = TensorType | tuple["Type", ...] | None

TUPLE, TOKEN = 13, 17
MAX_BYTES: Final = 1 << 40  # of one tensor: more than any emulated core has
MAX_RANK: Final = 64
MAX_DEPTH: Final = 32  # of nested tuples

#: XLA's numbers of the element types.
ELEMENT_TYPES: dict[int, DType] = {
    1: DType.PRED, 2: DType.S8, 3: DType.S16, 4: DType.S32, 5: DType.S64, 6: DType.U8,
    7: DType.U16, 8: DType.U32, 9: DType.U64, 10: DType.F16, 11: DType.F32, 12: DType.F64,
    15: DType.C64, 16: DType.BF16, 18: DType.C128, 19: DType.F8E5M2, 20: DType.F8E4M3FN,
    28: DType.F8E4M3, 33: DType.F8E8M0,
}  # fmt: skip

_FNUZ = (
    "NCC_EVRF005", "F8E4M3FNUZ, F8E4M3B11FNUZ or F8E5M2FNUZ used: {name}",
    "cast to a float8 type with infinities, or to bfloat16",
)  # fmt: skip
_NO_CODE = (
    "NCC_ESPP004", "data type not supported for code generation: {name}",
    "cast to a supported type before this instruction",
)  # fmt: skip
_NO_FLOAT8 = (
    "NCC_ESPP047", "unsupported 8-bit floating-point data type: {name}", "cast to float16",
)  # fmt: skip
#: Element types that are valid HLO and that no target computes in: name and why.
_REFUSED: dict[int, tuple[str, tuple[str, str, str]]] = {
    23: ("f8e4m3b11fnuz", _FNUZ), 24: ("f8e5m2fnuz", _FNUZ), 25: ("f8e4m3fnuz", _FNUZ),
    29: ("f8e3m4", _NO_FLOAT8), 32: ("f4e2m1fn", _NO_CODE), 21: ("s4", _NO_CODE),
    22: ("u4", _NO_CODE), 26: ("s2", _NO_CODE), 27: ("u2", _NO_CODE), 30: ("s1", _NO_CODE),
    31: ("u1", _NO_CODE), 14: ("opaque", _NO_CODE), 34: ("buffer", _NO_CODE),
}  # fmt: skip


def type_of(shape: Any, instruction: str, depth: int = 0) -> Type:
    """Return the type that a Shape message describes.

    Args:
        shape: The message.
        instruction: Name of the instruction, for errors about dynamic shapes.
        depth: Of the tuples around it.

    Raises:
        RefusedError: It is no valid shape, not static, or of a type that no target has.
    """
    element = shape.element_type
    if element == TUPLE:
        if depth >= MAX_DEPTH:
            raise invalid(f"tuples are nested deeper than {MAX_DEPTH}")
        return tuple(type_of(part, instruction, depth + 1) for part in shape.tuple_shapes)
    if element == TOKEN:
        return None
    if element in _REFUSED:
        name, (code, text, remedy) = _REFUSED[element]
        raise RefusedError(code, text.format(name=name), remedy)
    if element not in ELEMENT_TYPES:
        raise invalid(f"element type {element} is none of XLA's")
    extents = tuple(shape.dimensions)
    if any(shape.is_dynamic_dimension):
        dynamic = dict(enumerate(shape.is_dynamic_dimension))
        listed = ",".join(
            "?" if n < 0 else f"<={n}" if dynamic.get(d) else str(n) for d, n in enumerate(extents)
        )
        dtype = ELEMENT_TYPES[element].value
        raise RefusedError(
            "NCC_EMOD025",
            f"Dynamic shape is not supported: instruction '{instruction}' has shape "
            f"'{dtype}[{listed}]'. The Neuron compiler requires all tensor dimensions to be "
            "statically sized",
            "pad inputs to a few fixed sizes and compile each",
        )
    type_ = TensorType(ELEMENT_TYPES[element], extents)
    if len(extents) > MAX_RANK or any(n < 0 for n in extents) or type_.nbytes > MAX_BYTES:
        raise invalid(f"{type_} is no possible tensor")
    return type_


def text_of(type_: Type) -> str:
    """As XLA prints it."""
    if type_ is None:
        return "token[]"
    if isinstance(type_, TensorType):
        return str(type_)
    return f"({', '.join(map(text_of, type_))})"


def leaves(type_: Type) -> list[TensorType]:
    """The tensors of a type in order; tokens are none."""
    if type_ is None:
        return []
    if isinstance(type_, TensorType):
        return [type_]
    return [leaf for part in type_ for leaf in leaves(part)]
