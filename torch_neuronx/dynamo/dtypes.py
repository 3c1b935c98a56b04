"""PyTorch's rules for mixing element types, on those of the tensor IR."""

from __future__ import annotations

import functools
from typing import Any

import torch

from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node, TensorType
from torch_neuronx.dynamo.errors import UnsupportedDTypeError
from torch_neuronx.program.dtypes import TO_IR, TO_TORCH

_NARROW = frozenset({DType.F16, DType.BF16, DType.F8E4M3FN, DType.F8E5M2, DType.F8E8M0})

Scalar = bool | int | float | complex


def to_ir(dtype: torch.dtype) -> DType:
    """The IR's type of a PyTorch type.

    Raises:
        UnsupportedDTypeError: the compiler has no such type.
    """
    found = TO_IR.get(dtype)
    if found is None:
        raise UnsupportedDTypeError(dtype)
    return found


def tensor_type(value: torch.Tensor) -> TensorType:
    """Type and static shape of a (fake) tensor."""
    return TensorType(to_ir(value.dtype), tuple(map(int, value.shape)))


def compute_dtype(dtype: DType) -> DType:
    """The type that arithmetic on values of `dtype` is done in: float32 for the narrow floats."""
    return DType.F32 if dtype in _NARROW else dtype


@functools.cache
def promote_types(a: DType, b: DType) -> DType:
    """PyTorch's `promote_types`."""
    return TO_IR[torch.promote_types(TO_TORCH[a], TO_TORCH[b])]


def float_of(dtype: DType) -> DType:
    """The type of results of an operator that computes with fractions: integers become float."""
    if dtype.is_float or dtype.is_complex:
        return dtype
    return to_ir(torch.get_default_dtype())


def result_dtype(*values: Node | Scalar) -> DType:
    """PyTorch's `result_type`: tensors with dimensions first, then those without, then numbers."""
    ranked: list[DType | None] = [None, None, None]
    for value in values:
        if isinstance(value, Node):
            place, dtype = (0 if value.type.rank else 1), value.dtype
        else:
            place, dtype = 2, _number_dtype(value)
        before = ranked[place]
        ranked[place] = dtype if before is None else promote_types(before, dtype)
    result = ranked[2]
    for higher in (ranked[1], ranked[0]):
        result = _combine(higher, result)
    assert result is not None
    return result


def _number_dtype(value: Any) -> DType:
    if isinstance(value, bool):
        return DType.PRED
    if isinstance(value, int):
        return DType.S64
    default = to_ir(torch.get_default_dtype())
    if isinstance(value, float):
        return default
    return DType.C128 if default is DType.F64 else DType.C64


def _combine(higher: DType | None, lower: DType | None) -> DType | None:
    """The type of a category of operands beside a weaker one, which counts only by its kind."""
    if higher is None or lower is None:
        return lower if higher is None else higher
    if higher.is_complex:
        return higher
    if higher.is_float:
        if lower.is_complex:
            return DType.C128 if higher is DType.F64 else DType.C64
        return higher
    if higher is DType.PRED or lower.is_float or lower.is_complex:
        return promote_types(higher, lower)
    return higher
