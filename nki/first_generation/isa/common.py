"""Functions that the instructions of the first generation share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nki.arguments import as_integer
from nki.dtypes import info
from nki.errors import NkiTypeError
from nki.first_generation.compute import LANES, Operand, as_tensor
from nki.first_generation.dtypes import dtype_name
from nki.first_generation.state import new_tile
from nki.first_generation.tensors import Tensor
from nki.first_generation.writes import copy
from nki.isa.alu import ALU, op_name
from nki.tensor import NkiTensor

__all__ = ["kind_of", "lanes", "lanes_float32", "no_more", "reduced", "reduction_axes", "unsigned"]


def kind_of(dtype: Any, default: str) -> str:
    """Return the type of a result: the one asked for, or the default."""
    return default if dtype is None else dtype_name(dtype)


def no_more(name: str, extra: dict[str, Any]) -> None:
    """Refuse arguments that an instruction of the first generation does not have.

    Raises:
        NkiTypeError: there are some (NKI268).
    """
    unknown = sorted(set(extra) - {"name"})
    if unknown:
        raise NkiTypeError(
            "NKI268",
            f"nisa.{name} of the first generation was given {', '.join(unknown)}",
            "leave it out: docs/nki_first_generation.md lists what is accepted",
        )


def lanes(value: Any) -> Operand:
    """Return an operand that is a number or has one value for each partition."""
    return Operand(value, LANES)


def lanes_float32(value: Any, op: Any) -> Operand:
    """Return such an operand, converted to float32, as arithmetic on engines takes it today."""
    if isinstance(value, Tensor) and value.kind != "float32":
        tensor = value.tile()
        arithmetic = not ALU[op_name(op)].bitvec if op is not None else True
        if arithmetic:
            wide = new_tile(tensor.shape, "float32")
            copy(wide, tensor)
            tensor = wide
        return Operand(tensor, LANES)
    return Operand(value, LANES)


_UNSIGNED = {1: "uint8", 2: "uint16", 4: "uint32"}


def unsigned(value: Tensor) -> NkiTensor:
    """Return a predicate read as unsigned integers, which is how engines take it."""
    tensor = as_tensor(value, "a predicate").tile()
    row = info(tensor.dtype)
    whole = row.is_int or tensor.dtype == "bool_"
    return tensor.view(_UNSIGNED[row.itemsize]) if whole else tensor


def reduction_axes(axis: Any, rank: int) -> tuple[int, ...]:
    """Return axes as sorted dimensions, counted from 0."""
    axes: Sequence[int] = axis if isinstance(axis, (list, tuple)) else (axis,)
    numbers = [as_integer(a, "axis") for a in axes]
    return tuple(sorted(a % rank if -rank <= a < rank else a for a in numbers))


def reduced(shape: tuple[int, ...], axes: tuple[int, ...], *, keepdims: bool) -> tuple[int, ...]:
    """Return the shape of a reduction; a tile has at least two dimensions."""
    if keepdims:
        return tuple(1 if k in axes else n for k, n in enumerate(shape))
    left = tuple(n for k, n in enumerate(shape) if k not in axes)
    return left if len(left) > 1 else (*left, 1)
