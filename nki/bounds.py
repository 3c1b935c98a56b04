"""Which indices of an indirect view are in bounds, once they are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from nki.dtypes import info
from nki.errors import NkiIndexError
from nki.memory import Storage
from nki.pattern import AccessPattern

__all__ = ["bounded", "limit"]


def limit(storage: Storage, p: AccessPattern) -> int:
    """Return what the indices of an indirect view must stay below.

    An index stands for a place in a dimension of the tensor, and what the view shows from there on
    must lie within the storage; for tensor indirection, within the partition.
    """
    assert p.indirect is not None
    itemsize = info(p.dtype).itemsize
    if p.indirect.kind == "tensor":
        row = storage.row_bytes // itemsize
        return row - p.offset % row
    moved = 1 if p.indirect.kind == "vector" else 0  # dimension 0 is replaced by the index
    last = p.offset + sum(s * (n - 1) for s, n in p.dims[moved:] if s > 0)
    stride = p.indirect.stride
    if stride <= 0:
        return p.indirect.bound
    left = max((storage.nbytes // itemsize - 1 - last) // stride + 1, 0)
    # A scalar is an offset in units of a dimension, which may lead beyond that dimension.
    return left if p.indirect.kind == "scalar" else min(p.indirect.bound, left)


def bounded(
    storage: Storage, p: AccessPattern, values: npt.NDArray[Any], group: int, *, skip: bool
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
    """Return an index with 0 for what is out of bounds, and which elements of the view are in it.

    Args:
        storage: what the view shows.
        p: the view.
        values: contents of its index.
        group: see `nki.addressing.indices`.
        skip: go on where something is out of bounds.

    Returns:
        The index, and None if all elements are in bounds.

    Raises:
        NkiIndexError: something is out of bounds, and `skip` is false (NKI132).
    """
    assert p.indirect is not None
    below = limit(storage, p)
    table = values.reshape(len(values), -1)
    if p.indirect.kind == "tensor":
        table = table[:, : -(-p.shape[1] // group)]
        used = table.reshape(-1)
    else:
        used = table.T.reshape(-1)[: p.shape[0] if p.indirect.kind == "vector" else 1]
    good = (used >= 0) & (used < below)
    if good.all():
        return values, None
    if not skip:
        raise NkiIndexError(
            "NKI132",
            f"index {int(used[~good][0])} is out of bounds: it must be from 0 to below {below}",
            "keep it in bounds, or ask for oob_mode.skip where the instruction has it",
        )
    assert p.indirect.kind != "tensor", "no compute engine skips"
    rows = good.reshape(-1, *[1] * (len(p.shape) - 1))
    inside = (values >= 0) & (values < below)
    return np.where(inside, values, 0), np.broadcast_to(rows, p.shape)
