"""Reading and writing what a view shows, and whether two views touch the same bytes.

:func:`as_array` is the fast way, a strided NumPy view; :func:`byte_starts` is the slow, obvious one
and the only one where an index vector chooses the elements.
"""

from typing import Any, cast

import numpy as np
import numpy.typing as npt

from neuronxcc.addresses import Addresses, share_a_byte
from nki.addressing import indices
from nki.bounds import limit
from nki.core import OnChip
from nki.dtypes import info
from nki.memory import Storage
from nki.pattern import AccessPattern, contiguous, is_contiguous
from nki.tensor import NkiTensor, tensor_of

__all__ = [
    "as_array",
    "as_direct",
    "box",
    "byte_layout",
    "byte_starts",
    "mark_written",
    "may_overlap",
    "overlap",
    "read",
    "unwritten",
    "whole",
    "write",
    "written",
]

Array = npt.NDArray[Any]


def byte_layout(storage: Storage, p: AccessPattern) -> tuple[int, tuple[int, ...]]:
    """Return where in ``storage.bytes`` the first element is, and the strides in bytes."""
    itemsize = info(p.dtype).itemsize
    strides = p.strides
    if storage.address is None:
        return p.offset * itemsize, tuple([s * itemsize for s in strides])
    row, byte = divmod(p.offset * itemsize, storage.row_bytes)
    rows = strides[0] * itemsize // storage.row_bytes
    return (
        storage.base + row * storage.pitch + byte,
        (rows * storage.pitch, *[s * itemsize for s in strides[1:]]),
    )


def whole(storage: Storage) -> NkiTensor:
    """Return the view of all of a storage."""
    return tensor_of(
        storage, contiguous(storage.dtype, storage.shape, partition=storage.region.on_chip)
    )


def as_direct(tensor: NkiTensor, value: int) -> NkiTensor | None:
    """Return what a view that a scalar moves shows for a value; None if that leaves its storage."""
    p = tensor.pattern
    assert p.indirect is not None
    assert p.indirect.kind == "scalar"
    if not 0 <= value < limit(tensor.storage, p):
        return None
    offset = p.offset + value * p.indirect.stride
    return tensor_of(tensor.storage, p._replace(offset=offset, indirect=None))


def as_array(storage: Storage, p: AccessPattern) -> Array:
    """Return a NumPy view of what a direct pattern shows; writing to it writes to the storage.

    Items of packed types come as the unsigned integers they are stored in.
    """
    assert p.indirect is None
    offset, strides = byte_layout(storage, p)
    return np.ndarray(p.shape, info(p.dtype).numpy, storage.bytes, offset, strides)


def byte_starts(
    storage: Storage, p: AccessPattern, values: Any = None, group: int = 16
) -> npt.NDArray[np.int64]:
    """Return where in ``storage.bytes`` every element begins; see `nki.addressing.indices`."""
    starts = indices(p, values, group) * info(p.dtype).itemsize
    if storage.address is None:
        return starts
    row, byte = np.divmod(starts, storage.row_bytes)
    return cast("npt.NDArray[np.int64]", storage.base + row * storage.pitch + byte)


def read(tensor: NkiTensor, values: Any = None, group: int = 16) -> Array:
    """Return a copy of what a view shows.

    Args:
        tensor: the view.
        values: contents of the index of an indirect view.
        group: see `nki.addressing.indices`.
    """
    storage, p = tensor.storage, tensor.pattern
    if p.indirect is None:
        return as_array(storage, p).copy()
    kind = info(p.dtype)
    starts = byte_starts(storage, p, values, group)
    items = storage.bytes[starts[..., None] + np.arange(kind.itemsize)]
    return cast("Array", items.view(kind.numpy)[..., 0])


def write(
    tensor: NkiTensor,
    data: Array,
    values: Any = None,
    group: int = 16,
    mask: npt.NDArray[np.bool_] | None = None,
) -> None:
    """Write ``data``, of the view's shape and NumPy type, and remember that it is written.

    Where several elements of the view are the same one of the storage, the last one counts.

    Args:
        tensor: the view.
        data: what to write.
        values: contents of the index of an indirect view.
        group: see `nki.addressing.indices`.
        mask: which elements are written, None for all; an index may be out of bounds elsewhere.
    """
    storage, p = tensor.storage, tensor.pattern
    kind = info(p.dtype)
    assert data.dtype == kind.numpy, (data.dtype, p.dtype)
    assert data.shape == p.shape, (data.shape, p.shape)
    if p.indirect is None and mask is None:
        as_array(storage, p)[...] = data
        mark_written(tensor)
        return
    starts = byte_starts(storage, p, values, group)
    if mask is not None:
        starts, data = starts[mask], data[mask]
    items = np.ascontiguousarray(data)[..., None].view(np.uint8)
    storage.bytes[starts[..., None] + np.arange(kind.itemsize)] = items
    storage.shadow.mark_bytes(starts, kind.itemsize)


def mark_written(tensor: NkiTensor) -> None:
    """Remember that all elements of a direct view are written."""
    storage, p = tensor.storage, tensor.pattern
    shadow = storage.shadow
    if shadow.complete:
        return
    whole = storage.address is None and p.size * info(p.dtype).itemsize == storage.nbytes
    if whole and is_contiguous(p):
        storage.mark_all()
        return
    shadow.mark(*_shadow_args(storage, p))


def unwritten(tensor: NkiTensor, values: Any = None, group: int = 16) -> tuple[int, ...] | None:
    """Return the index in the view of the first element that was never written, None if all were.

    Half-written elements count as never written.
    """
    storage, p = tensor.storage, tensor.pattern
    if storage.shadow.complete:
        return None
    if p.indirect is None:
        return storage.shadow.missing(*_shadow_args(storage, p))
    starts = byte_starts(storage, p, values, group)
    return storage.shadow.missing_bytes(starts, info(p.dtype).itemsize)


def written(tensor: NkiTensor) -> npt.NDArray[np.bool_]:
    """Return for every element of a direct view whether it was written, wholly."""
    storage, p = tensor.storage, tensor.pattern
    if storage.shadow.complete:
        return np.ones(p.shape, np.bool_)
    return storage.shadow.written(*_shadow_args(storage, p))


def _shadow_args(
    storage: Storage, p: AccessPattern
) -> tuple[int, tuple[int, ...], tuple[int, ...], int]:
    offset, strides = byte_layout(storage, p)
    return offset, p.shape, strides, info(p.dtype).itemsize


# --- overlap -----------------------------------------------------------------------------------


def _owner(storage: Storage) -> Storage | OnChip:
    return storage if storage.address is None else storage.memory


def box(tensor: NkiTensor) -> tuple[int, int, int, int]:
    """Return first and last partition, and first and last byte in them, that a view may touch.

    HBM counts as one partition. An indirect view may touch all of its storage. Where there is an
    address, the numbers are those of the core's memory, else of the storage.
    """
    storage, p = tensor.storage, tensor.pattern
    itemsize = info(p.dtype).itemsize
    shape, strides = p.shape, p.strides
    first = rows = 0
    if p.indirect is not None:
        rows = storage.shape[0] - 1 if p.partition else 0
        low, high = 0, storage.row_bytes - 1
    else:
        low = p.offset * itemsize
        if p.partition:
            first, low = divmod(low, storage.row_bytes)
            rows = (shape[0] - 1) * (strides[0] * itemsize // storage.row_bytes)
            shape, strides = shape[1:], strides[1:]
        high = low + itemsize - 1
        for n, s in zip(shape, strides, strict=True):
            if s > 0:
                high += s * (n - 1) * itemsize
            else:
                low += s * (n - 1) * itemsize
    if storage.address is not None:
        first += storage.address[0]
        low += storage.address[1]
        high += storage.address[1]
    return first, first + rows, low, high


def may_overlap(a: NkiTensor, b: NkiTensor) -> bool:
    """Return whether the smallest boxes of partitions and bytes around two views meet.

    An indirect view counts as its whole storage.
    """
    if _owner(a.storage) is not _owner(b.storage):
        return False
    a0, a1, a2, a3 = box(a)
    b0, b1, b2, b3 = box(b)
    return a0 <= b1 and b0 <= a1 and a2 <= b3 and b2 <= a3


def overlap(a: NkiTensor, b: NkiTensor) -> bool:
    """Return whether two views share a byte.

    The answer is exact, except that an indirect view counts as its whole storage.
    """
    if not may_overlap(a, b):
        return False
    if a.pattern.indirect is not None or b.pattern.indirect is not None:
        return True
    found = share_a_byte(_addresses(a), _addresses(b))
    return _share_bytes(a, b) if found is None else found


def _addresses(tensor: NkiTensor) -> Addresses:
    """A view's addresses. Its bytes are lazily made, and this is no reason to make them."""
    storage, p = tensor.storage, tensor.pattern
    offset, strides = byte_layout(storage, p)
    return Addresses(p.shape, strides, info(p.dtype).itemsize, offset)


def _share_bytes(a: NkiTensor, b: NkiTensor) -> bool:
    """Return whether two direct views share a byte, by listing all bytes of both."""
    return bool(np.intersect1d(_all_bytes(a), _all_bytes(b)).size)


def _all_bytes(tensor: NkiTensor) -> npt.NDArray[np.int64]:
    starts = byte_starts(tensor.storage, tensor.pattern)
    span = np.arange(info(tensor.pattern.dtype).itemsize)
    return np.unique(starts[..., None] + span)
