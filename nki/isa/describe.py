"""From tensors and registers to the :class:`~nki.isa.spec.Tile` that rules look at.

:func:`prepare` is what a recorder calls for each instruction: every check is behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nki.access_rules import check_access
from nki.dtypes import info
from nki.isa.bind import make_call
from nki.isa.objects import VirtualRegister
from nki.isa.spec import Call, Instruction, Tile
from nki.tensor import NkiTensor

__all__ = ["describe", "prepare"]


def describe(value: Any) -> Tile | None:
    """Return the description of a tensor or a register, None of anything else."""
    if isinstance(value, VirtualRegister):
        return Tile((1, 1), "int32", "register")
    if not isinstance(value, NkiTensor):
        return None
    indirect = value.pattern.indirect
    kind = indirect.kind if indirect is not None else None
    index = indirect.index if indirect is not None else None
    return Tile(
        shape=value.shape,
        dtype=value.dtype,
        region=value.buffer.name,
        partition=_partition(value),
        indirect=kind in ("vector", "tensor"),
        index=describe(index) if kind in ("vector", "tensor") else None,
        dynamic=kind == "scalar",
    )


def _partition(tensor: NkiTensor) -> int | None:
    storage = tensor.storage
    if storage.address is None:
        return None
    row = tensor.offset * info(tensor.dtype).itemsize // storage.row_bytes
    return storage.address[0] + row


def prepare(
    instruction: Instruction,
    operands: Mapping[str, Any],
    attributes: Mapping[str, Any],
    generation: int,
) -> Call:
    """Check a call that :func:`nki.isa.bind.bind` has bound, and choose its engine.

    Raises:
        NkiTypeError: an operand of the wrong kind (NKI102).
        NkiValidationError: a rule of the instruction is broken, or a compute engine cannot address
            an operand (NKI023, NKI030 to NKI033).
    """
    call = make_call(instruction, operands, attributes, generation, describe)
    if call.engine not in ("dma", "sync"):
        for operand in instruction.operands:
            tensor = operands[operand.name]
            if isinstance(tensor, NkiTensor) and tensor.buffer.on_chip and not operand.any_start:
                check_access(tensor.storage, tensor.pattern, f"{instruction.name} {operand.name}")
    return call
