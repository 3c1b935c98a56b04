"""More access patterns: other types, explicit and dynamic ones, and what the elements are."""

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nki.dtypes import canonical, info
from nki.errors import NkiError, NkiIndexError
from nki.pattern import (
    AccessPattern,
    Indirect,
    axis_of,
    make,
    refuse_layout,
    refuse_pinned,
    select,
    slice_dim,
)

__all__ = [
    "canonical_dims",
    "explicit",
    "indices",
    "leaves",
    "refuse_outside",
    "reinterpret",
    "resolve",
    "select_dynamic",
    "select_vector",
    "slice_dynamic",
]


# --- types and explicit patterns ---------------------------------------------------------------


def _scaled(value: int, old: int, new: int) -> int:
    """Return a number of items of ``old`` bytes as one of items of ``new`` bytes, -1 if broken."""
    value *= old
    return value // new if value % new == 0 else -1


def reinterpret(p: AccessPattern, dtype: Any) -> AccessPattern:
    """Read the same bytes as another type; the last dimension grows or shrinks.

    Packed types count items: a ``float8_e4m3fn_x4`` is four bytes, a ``float4_e2m1fn_x4`` two.

    Raises:
        NkiTypeError: NKI has no such type (NKI001).
        NkiError: the last dimension is not contiguous (NKI018), or bytes are left over or straddle
            the new items (NKI020), or the view is indirect (NKI026).
    """
    kind = canonical(dtype)
    if kind == p.dtype:
        return p
    if p.indirect is not None:
        raise NkiError(
            "NKI026",
            f"an indirect view of shape {p.shape} cannot be read as {kind}",
            "reinterpret first and apply the dynamic index then",
        )
    old, new = info(p.dtype).itemsize, info(kind).itemsize
    if old == new:
        return p._replace(dtype=kind)
    count, stride = p.shape[-1], p.strides[-1]
    if stride != 1 and count != 1:
        refuse_layout(p, f"be read as {kind}: its last dimension is not contiguous and")
    offset, count = _scaled(p.offset, old, new), _scaled(count, old, new)
    outer = [
        _scaled(s, old, new) if n > 1 else max(s * old // new, 1)
        for n, s in zip(p.shape[:-1], p.strides[:-1], strict=True)
    ]
    if offset < 0 or count < 0 or any(s == -1 for s in outer):
        raise NkiError(
            "NKI020",
            f"a view of shape {p.shape}, strides {p.strides} and offset {p.offset} of {p.dtype} "
            f"has no whole items of {kind} ({new} bytes)",
            f"make the last dimension, the strides and the offset multiples of {new // old}",
        )
    return make(kind, offset, (*p.shape[:-1], count), (*outer, 1), p.partition, None)


def explicit(
    p: AccessPattern,
    pairs: Sequence[Sequence[int]],
    offset: int | None,
    dtype: str,
    row_bytes: int,
) -> AccessPattern:
    """Return the pattern ``[[stride, count], ...]`` on the storage of ``p``.

    Args:
        p: the view whose offset is the beginning.
        pairs: strides and counts in elements of ``dtype``; in SBUF and PSUM first the partition's,
            whose stride must be a whole partition, of the storage or of a view that shows a part
            of neighbouring partitions.
        offset: elements of ``dtype`` to add to the offset of ``p``, None for none.
        dtype: type to read the storage as.
        row_bytes: the storage's bytes in one partition, of HBM all of them.

    Raises:
        NkiError: malformed (NKI021), or with a step over partitions (NKI023).
    """
    try:
        strides = tuple([operator.index(s) for s, _ in pairs])
        shape = tuple([operator.index(n) for _, n in pairs])
    except (TypeError, ValueError):
        strides, shape = (), ()
    partition = p.partition
    if not shape or min(shape) < 1 or (partition and len(shape) < 2):
        raise NkiError(
            "NKI021",
            f"{pairs!r} is no access pattern",
            "write [[stride, count], ...] with counts of at least 1, "
            "at least two pairs in SBUF and PSUM",
        )
    itemsize = info(dtype).itemsize
    begin = p.offset if dtype == p.dtype else _scaled(p.offset, info(p.dtype).itemsize, itemsize)
    row = row_bytes // itemsize
    if begin < 0 or row * itemsize != row_bytes:
        raise NkiError(
            "NKI020",
            f"the offset {p.offset} of {p.dtype}, or a row of {row_bytes} bytes, is no whole "
            f"number of items of {dtype}",
            "call ap() on the whole tensor, or use a type whose size divides",
        )
    if offset is not None:
        begin += operator.index(offset)
    if partition:
        if shape[0] > 1 and strides[0] not in _rows(p, itemsize, row):
            raise NkiError(
                "NKI023",
                f"the access pattern {[list(pair) for pair in pairs]} steps {strides[0]} elements "
                f"from partition to partition, and a partition of the tensor has {row}",
                f"write {row} as the first stride: engines read neighbouring partitions",
            )
        strides = (row, *strides[1:])
    return make(dtype, begin, shape, strides, partition, None)


def _rows(p: AccessPattern, itemsize: int, row: int) -> tuple[int, int]:
    """Return the steps that mean one partition, in items of ``itemsize`` bytes, ``row`` in each.

    They are the storage's row, and the view's own if it shows a part of neighbouring partitions.
    A view that repeats elements may show as many as one or two partitions have, and a view that
    skips partitions steps over them: there the same number says something else.
    """
    item = info(p.dtype).itemsize
    own = _scaled(math.prod(p.shape[1:]), item, itemsize)
    skips = p.shape[0] > 1 and p.strides[0] * item != row * itemsize
    return row, own if 0 < own < row and not skips else row


def leaves(p: AccessPattern, storage_bytes: int, row_bytes: int) -> bool:
    """Return whether a pattern leaves its storage; a dynamic index counts as 0."""
    row = row_bytes // info(p.dtype).itemsize
    shape, strides = p.shape, p.strides
    if p.indirect is not None and p.indirect.kind != "scalar":
        # What an index replaces says nothing.
        axis = 0 if p.indirect.kind == "vector" else 1
        strides = (*strides[:axis], 0, *strides[axis + 1 :])
    if not p.partition:
        low, high = _span(p.offset, shape, strides)
        return low < 0 or high >= row
    lane, low = divmod(p.offset, row)
    low, high = _span(low, shape[1:], strides[1:])
    fits = lane >= 0 <= low and high < row and lane + shape[0] <= storage_bytes // row_bytes
    return not fits


def refuse_outside(p: AccessPattern, storage_bytes: int, row_bytes: int) -> None:
    """Refuse a pattern that leaves its storage.

    Raises:
        NkiIndexError: it does (NKI022).
    """
    if leaves(p, storage_bytes, row_bytes):
        itemsize = info(p.dtype).itemsize
        raise NkiIndexError(
            "NKI022",
            f"the access pattern {[list(pair) for pair in p.dims]} at offset {p.offset} leaves its "
            f"tensor of {storage_bytes // itemsize} elements of {p.dtype}"
            + (f", {row_bytes // itemsize} in each partition" if p.partition else ""),
            "shorten the counts or lower the offset",
        )


def _span(offset: int, shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    """Return the lowest and highest element of a pattern."""
    low = high = offset
    for n, s in zip(shape, strides, strict=True):
        if s >= 0:
            high += s * (n - 1)
        else:
            low += s * (n - 1)
    return low, high


# --- indirection -------------------------------------------------------------------------------


def refuse_second(p: AccessPattern) -> None:
    if p.indirect is not None:
        raise NkiError(
            "NKI024",
            f"a view of shape {p.shape} has a dynamic index already",
            "use one per view: compute a combined index first (is_indirect() tells)",
        )


def _refuse_dynamic_partition(p: AccessPattern, dim: int) -> None:
    if dim == 0 and p.partition:
        refuse_pinned(p, "apply a dynamic index to")


def select_dynamic(p: AccessPattern, dim: int, index: Any) -> AccessPattern:
    """Take the index of a dimension that a scalar holds at run time; the dimension is removed.

    Raises:
        NkiError: there is a dynamic index already (NKI024), or it is the partition (NKI015).
    """
    dim = axis_of(p, dim)
    refuse_second(p)
    _refuse_dynamic_partition(p, dim)
    at_zero = select(p, dim, 0)
    return at_zero._replace(
        indirect=Indirect("scalar", index, p.strides[dim], -1, p.shape[dim]),
    )


def slice_dynamic(p: AccessPattern, dim: int, start: Any, size: int) -> AccessPattern:
    """Take ``size`` neighbours of a dimension from where a scalar says at run time.

    Raises:
        NkiError: there is a dynamic index already (NKI024).
        NkiIndexError: ``size`` is not within the dimension (NKI010, NKI012).
    """
    dim = axis_of(p, dim)
    refuse_second(p)
    at_zero = slice_dim(p, dim, 0, size)
    return at_zero._replace(
        indirect=Indirect("scalar", start, p.strides[dim], dim, p.shape[dim] - size + 1),
    )


def select_vector(p: AccessPattern, dim: int, index: Any, count: int) -> AccessPattern:
    """Let ``count`` values of a vector choose the indices of dimension 0.

    Raises:
        NkiError: there is a dynamic index already (NKI024), or ``dim`` is not 0 or the memory on a
            chip (NKI026).
    """
    dim = axis_of(p, dim)
    refuse_second(p)
    if dim != 0 or p.partition:
        raise NkiError(
            "NKI026",
            "an index vector applies to dimension 0 of a tensor in HBM, not to dimension "
            f"{dim} of a view of shape {p.shape}" + (" on a chip" if p.partition else ""),
            "gather while copying from HBM, or use nisa.local_gather or indirect() on a chip",
        )
    return p._replace(
        shape=(count, *p.shape[1:]),
        indirect=Indirect("vector", index, p.strides[0], 0, p.shape[0]),
    )


def resolve(p: AccessPattern, value: int) -> AccessPattern:
    """Return the direct pattern that one with a scalar index becomes at ``value``.

    The result may lie outside of the storage: compare ``value`` with ``indirect.bound``.
    """
    assert p.indirect is not None
    assert p.indirect.kind == "scalar"
    return p._replace(offset=p.offset + value * p.indirect.stride, indirect=None)


# --- what the elements are ---------------------------------------------------------------------


def indices(
    p: AccessPattern, values: npt.NDArray[Any] | int | None = None, group: int = 16
) -> npt.NDArray[np.int64]:
    """Return the number in the storage of every element of the view: the slow, obvious meaning.

    Args:
        p: the pattern.
        values: the contents of the index of an indirect pattern: an integer; a vector of shape (P,)
            or (P, 1), or (128, N) to be read column by column; or the (P, K) offsets of tensor
            indirection.
        group: the partitions that share offsets in tensor indirection: 16, or 32 for the tensor
            engine. Each group has offsets of its own (the documentation shows one group only).

    Raises:
        NkiIndexError: tensor indirection needs more offsets than there are (NKI025).
    """
    grids = np.ogrid[tuple(slice(n) for n in p.shape)]
    steps = [g * s for g, s in zip(grids, p.strides, strict=True)]
    if p.indirect is None:
        start = p.offset
    elif p.indirect.kind == "scalar":
        start = p.offset + int(np.asarray(values).item()) * p.indirect.stride
    elif p.indirect.kind == "vector":
        start = p.offset
        table = np.asarray(values, dtype=np.int64)
        chosen = table.reshape(len(table), -1).T.reshape(-1)[: p.shape[0]]
        steps[0] = (chosen * p.indirect.stride).reshape(-1, *[1] * (len(p.shape) - 1))
    else:
        start = p.offset
        table = np.asarray(values, dtype=np.int64)
        lane, i = grids
        if (p.shape[1] - 1) // group >= table.shape[1]:
            raise NkiIndexError(
                "NKI025",
                f"{p.shape[1]} offsets in groups of {group} partitions need "
                f"{-(-p.shape[1] // group)} columns, and the index has {table.shape[1]}",
                "give num_elem, or an index with more columns",
            )
        steps[1] = table[np.minimum(lane // group * group + i % group, len(table) - 1), i // group]
    total = sum(steps, np.int64(start))
    return np.broadcast_to(total, p.shape).astype(np.int64)


def canonical_dims(p: AccessPattern, *, longest: int | None = None) -> tuple[tuple[int, int], ...]:
    """Return (stride, count) pairs of the fewest dimensions that show the same elements in order.

    Dimensions of size 1 go, and neighbours merge where the outer stride continues the inner one, up
    to ``longest`` elements. The partition stays in front as it is.
    """
    keep = 1 if p.pinned else 0
    merged: list[tuple[int, int]] = []
    for n, s in zip(p.shape[keep:], p.strides[keep:], strict=True):
        if n == 1:
            continue
        if merged:
            outer, m = merged[-1]
            if outer == n * s and (longest is None or n * m <= longest):
                merged[-1] = (s, n * m)
                continue
        merged.append((s, n))
    if keep:
        merged.insert(0, (p.strides[0], p.shape[0]))
    return tuple(merged) or ((1, 1),)
