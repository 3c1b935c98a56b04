"""From tensors and registers to the :class:`~nki.isa.spec.Tile` that rules look at."""

from __future__ import annotations

from typing import Any

from nki.dtypes import info
from nki.isa.objects import VirtualRegister
from nki.isa.spec import Tile
from nki.tensor import NkiTensor

__all__ = ["describe"]


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
