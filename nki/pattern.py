"""Access patterns: which elements of a storage a view shows, and pure functions that derive them.

The element at index ``(i0, i1, ...)`` is number ``offset + sum(strides[k] * i[k])`` of the storage,
counted in elements of the pattern's own data type. In SBUF and PSUM (``partition``) dimension 0 is
the partition, its stride is the number of elements that the storage has in one partition, and it
stays in front: such a view has at least two dimensions.

The functions trust their arguments to be integers where they say so, and refuse whatever has no
meaning. What the engines cannot address, though it has a meaning, is refused by `nki.access_rules`.
"""

import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from nki.errors import NkiError, NkiIndexError

__all__ = [
    "AccessPattern",
    "Indirect",
    "broadcast",
    "contiguous",
    "expand_dim",
    "flatten_dims",
    "is_contiguous",
    "permute",
    "reshape",
    "reshape_dim",
    "row_major",
    "select",
    "slice_dim",
    "squeeze_dim",
]


class Indirect(NamedTuple):
    """How a value that is known only at run time moves a pattern.

    Attributes:
        kind: "scalar": ``index * stride`` is added to the offset. "vector": index ``i`` of
            dimension 0 reads at ``index[i] * stride`` instead of ``i * strides[0]``; an index of
            several columns is read one column after the other. "tensor": a
            view of shape (P, n) whose element ``(p, i)`` is, among those of partition ``p``, the
            one ``index[i % G, i // G]`` further, for groups of G partitions.
        index: a tensor in SBUF or, for a scalar, a register.
        stride: elements of the pattern's data type for one step of the index.
        axis: the view's dimension that takes part and cannot be divided further; -1 if none does.
        bound: indices from 0 to below this are within the dimension they stand for.
    """

    kind: str
    index: Any
    stride: int
    axis: int
    bound: int


class AccessPattern(NamedTuple):
    """Which elements of a storage a view shows; all counts are elements of ``dtype``.

    Attributes:
        dtype: NKI's name of the type that the bytes are read as.
        offset: number of the first element.
        shape: sizes, all at least 1.
        strides: distances between neighbours, as long as ``shape``.
        partition: dimension 0 is the partition of an on-chip memory.
        indirect: what moves the pattern at run time, None if nothing does.
    """

    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    partition: bool
    indirect: Indirect | None = None

    @property
    def dims(self) -> tuple[tuple[int, int], ...]:
        """(stride, count) of each dimension."""
        return tuple(zip(self.strides, self.shape, strict=True))

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def pinned(self) -> bool:
        """Return whether dimension 0 has to stay what it is: a partition, or chosen by a vector."""
        return self.partition or (self.indirect is not None and self.indirect.kind != "scalar")


def make(
    dtype: str,
    offset: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    partition: bool,
    indirect: Indirect | None,
) -> AccessPattern:
    # A view is made for almost every operand; the generated __new__ takes three times as long.
    return tuple.__new__(AccessPattern, (dtype, offset, shape, strides, partition, indirect))


def _reshaped(
    p: AccessPattern,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    indirect: Indirect | None,
) -> AccessPattern:
    return make(p.dtype, p.offset, shape, strides, p.partition, indirect)


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a dense array of this shape."""
    strides = []
    step = 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def contiguous(dtype: str, shape: tuple[int, ...], *, partition: bool) -> AccessPattern:
    """Return the pattern of a whole storage of this shape."""
    return make(dtype, 0, shape, row_major(shape), partition, None)


# --- helpers -----------------------------------------------------------------------------------


def axis_of(p: AccessPattern, dim: Any, *, extra: int = 0) -> int:
    """Return a dimension's number, counted from the end if negative."""
    n = len(p.shape) + extra
    if type(dim) is int and 0 <= dim < n:
        return dim
    if not isinstance(dim, (int, np.integer)) or not -n <= dim < n:
        raise NkiIndexError(
            "NKI010",
            f"there is no dimension {dim!r} in a view of shape {p.shape}",
            f"use a dimension from 0 to {n - 1}",
        )
    return int(dim) % n


def refuse_pinned(p: AccessPattern, verb: str) -> NoReturn:
    kind = "the partition of an on-chip tensor" if p.partition else "chosen by an index vector"
    raise NkiError(
        "NKI015",
        f"cannot {verb} dimension 0 of a view of shape {p.shape}: it is {kind}",
        "keep dimension 0 in front; to move data between partitions, copy or transpose it",
    )


def _refuse_indirect(p: AccessPattern, dim: int, verb: str) -> None:
    """Refuse to divide the dimension that takes part in an indirection."""
    if p.indirect is not None and p.indirect.axis == dim:
        raise NkiError(
            "NKI024",
            f"cannot {verb} dimension {dim} of an indirect view of shape {p.shape}",
            "do it before the dynamic index is applied (is_indirect() tells)",
        )


def _moved(indirect: Indirect | None, axis: int) -> Indirect | None:
    return None if indirect is None else indirect._replace(axis=axis)


def _axis_after_removal(indirect: Indirect | None, dim: int) -> Indirect | None:
    if indirect is None or indirect.axis < dim:
        return indirect
    return _moved(indirect, indirect.axis - 1)


def _axis_after_insertion(indirect: Indirect | None, dim: int, count: int = 1) -> Indirect | None:
    if indirect is None or indirect.axis < dim:
        return indirect
    return _moved(indirect, indirect.axis + count)


def _out_of_bounds(what: str, n: int, dim: int, p: AccessPattern) -> NkiIndexError:
    return NkiIndexError(
        "NKI010",
        f"{what} is out of bounds for dimension {dim} of size {n} of a view of shape {p.shape}",
        "stay within the dimension; for the last tile write min(end, size)",
    )


def _refuse_low_rank(p: AccessPattern, ndim: int) -> NoReturn:
    raise NkiError(
        "NKI029",
        f"a view of shape {p.shape} cannot become one of {ndim} dimensions",
        "keep at least two dimensions in SBUF and PSUM, and one in HBM; a last one may have size 1",
    )


def lowest_rank(p: AccessPattern) -> int:
    """Return how many dimensions a view of this memory has at least."""
    return 2 if p.partition else 1


# --- single dimensions -------------------------------------------------------------------------


def slice_dim(p: AccessPattern, dim: int, start: int, end: int, step: int = 1) -> AccessPattern:
    """Keep the elements ``start, start + step, ...`` below ``end`` of one dimension.

    Raises:
        NkiIndexError: not ``0 <= start < end <= size`` (NKI010, NKI012), or no such dimension.
        NkiError: ``step`` is below 1 (NKI012), or the dimension is indirect (NKI024).
    """
    dim = axis_of(p, dim)
    shape, strides = p.shape, p.strides
    n = shape[dim]
    _check_slice(p, dim, start, end, step)
    if start == 0 and end == n and step == 1:
        return p
    _refuse_indirect(p, dim, "slice")
    stride = strides[dim]
    return make(
        p.dtype,
        p.offset + start * stride,
        (*shape[:dim], (end - start + step - 1) // step, *shape[dim + 1 :]),
        (*strides[:dim], stride * step, *strides[dim + 1 :]),
        p.partition,
        p.indirect,
    )


def _check_slice(p: AccessPattern, dim: int, start: int, end: int, step: int) -> None:
    n = p.shape[dim]
    if step < 1:
        raise NkiError(
            "NKI012",
            f"a slice with step {step} runs backwards or nowhere",
            "use a step of at least 1",
        )
    if not 0 <= start <= end <= n:
        raise _out_of_bounds(f"the slice {start}:{end}", n, dim, p)
    if start == end:
        raise NkiIndexError(
            "NKI012",
            f"the slice {start}:{end} of dimension {dim} of a view of shape {p.shape} is empty",
            "a view has at least one element; skip the instruction instead",
        )


def select(p: AccessPattern, dim: int, index: int) -> AccessPattern:
    """Take one index of a dimension, which is removed.

    It stays with size 1 if it is the partition, or if too few dimensions would be left.

    Raises:
        NkiIndexError: not ``0 <= index < size`` (NKI010), or no such dimension.
        NkiError: the dimension is indirect (NKI024).
    """
    dim = axis_of(p, dim)
    shape, strides = p.shape, p.strides
    if not 0 <= index < shape[dim]:
        raise _out_of_bounds(f"index {index}", shape[dim], dim, p)
    _refuse_indirect(p, dim, "select from")
    offset = p.offset + index * strides[dim]
    if (dim == 0 and p.pinned) or len(shape) <= (2 if p.partition else 1):
        shape = (*shape[:dim], 1, *shape[dim + 1 :])
        return make(p.dtype, offset, shape, strides, p.partition, p.indirect)
    return make(
        p.dtype,
        offset,
        shape[:dim] + shape[dim + 1 :],
        strides[:dim] + strides[dim + 1 :],
        p.partition,
        _axis_after_removal(p.indirect, dim),
    )


def broadcast(p: AccessPattern, dim: int, size: int) -> AccessPattern:
    """Repeat a dimension of size 1.

    Raises:
        NkiError: it has another size (NKI016), or is the partition (NKI015).
    """
    dim = axis_of(p, dim)
    if dim == 0 and p.pinned:
        refuse_pinned(p, "broadcast")
    if p.shape[dim] != 1:
        raise NkiError(
            "NKI016",
            f"dimension {dim} of a view of shape {p.shape} has size {p.shape[dim]}, not 1",
            "broadcast a dimension of size 1; expand_dim() makes one",
        )
    if size < 1:
        raise _bad_shape((size,))
    return _reshaped(
        p,
        (*p.shape[:dim], operator.index(size), *p.shape[dim + 1 :]),
        (*p.strides[:dim], 0, *p.strides[dim + 1 :]),
        p.indirect,
    )


def expand_dim(p: AccessPattern, dim: int) -> AccessPattern:
    """Insert a dimension of size 1.

    Raises:
        NkiError: it would come before the partition (NKI015).
    """
    dim = axis_of(p, dim, extra=1)
    if dim == 0 and p.pinned:
        refuse_pinned(p, "insert a dimension before")
    stride = p.strides[dim] * p.shape[dim] if dim < len(p.shape) else 1
    return _reshaped(
        p,
        (*p.shape[:dim], 1, *p.shape[dim:]),
        (*p.strides[:dim], stride, *p.strides[dim:]),
        _axis_after_insertion(p.indirect, dim),
    )


def squeeze_dim(p: AccessPattern, dim: int) -> AccessPattern:
    """Remove a dimension of size 1.

    Raises:
        NkiError: it has another size (NKI016), is the partition (NKI015), or too few dimensions
            would be left (NKI029).
    """
    dim = axis_of(p, dim)
    if dim == 0 and p.pinned:
        refuse_pinned(p, "remove")
    if p.shape[dim] != 1:
        raise NkiError(
            "NKI016",
            f"dimension {dim} of a view of shape {p.shape} has size {p.shape[dim]}, not 1",
            "select one index of it instead",
        )
    if len(p.shape) <= lowest_rank(p):
        _refuse_low_rank(p, len(p.shape) - 1)
    _refuse_indirect(p, dim, "remove")
    return _reshaped(
        p,
        p.shape[:dim] + p.shape[dim + 1 :],
        p.strides[:dim] + p.strides[dim + 1 :],
        _axis_after_removal(p.indirect, dim),
    )


# --- several dimensions ------------------------------------------------------------------------


def permute(p: AccessPattern, dims: Sequence[int]) -> AccessPattern:
    """Reorder the dimensions.

    Raises:
        NkiError: ``dims`` is no permutation (NKI014) or moves the partition (NKI015).
    """
    given: Any = dims
    order: tuple[Any, ...] = tuple(given) if hasattr(given, "__iter__") else (given,)
    n = len(p.shape)
    integers = all(isinstance(dim, (int, np.integer)) for dim in order)
    if not integers or sorted(order) != list(range(n)):
        raise NkiError(
            "NKI014",
            f"{dims!r} is no permutation of the {n} dimensions of a view of shape {p.shape}",
            f"name each of 0 to {n - 1} once",
        )
    if p.pinned and order[0] != 0:
        refuse_pinned(p, "move")
    indirect = p.indirect
    if indirect is not None and indirect.axis >= 0:
        indirect = _moved(indirect, order.index(indirect.axis))
    return make(
        p.dtype,
        p.offset,
        tuple([p.shape[d] for d in order]),
        tuple([p.strides[d] for d in order]),
        p.partition,
        indirect,
    )


def _bad_shape(shape: Any) -> NkiError:
    return NkiError(
        "NKI003",
        f"{shape!r} is no shape",
        "a shape is a tuple of integers of at least 1",
    )


def fill_in(shape: Sequence[int], size: int, of: tuple[int, ...]) -> tuple[int, ...]:
    """Return ``shape`` with its -1, if any, replaced so that it has ``size`` elements.

    Raises:
        NkiError: it is no shape (NKI003) or has another number of elements (NKI017).
    """
    try:
        given = tuple(map(operator.index, shape))
    except TypeError:
        given = ()
    sizes = list(given)
    if not sizes or (lowest := min(sizes)) < -1 or 0 in sizes or sizes.count(-1) > 1:
        raise _bad_shape(shape)
    if lowest == -1:
        sizes[sizes.index(-1)] = max(size // -math.prod(sizes), 1)
        given = tuple(sizes)
    if math.prod(given) != size:
        raise NkiError(
            "NKI017",
            f"the shape {tuple(shape)} does not have the {size} elements of {of}",
            "keep the number of elements",
        )
    return given


def _restride(
    shape: Sequence[int], strides: Sequence[int], new: Sequence[int]
) -> tuple[int, ...] | None:
    """Return strides that show the same elements in the same order in another shape.

    None if there are none. Dimensions of size 1 never matter.
    """
    old = [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1]
    result = [0] * len(new)
    i = k = 0  # the next old and new dimension
    while k < len(new):
        if new[k] == 1:
            k += 1
            continue
        first, taken, wanted = k, old[i][0], new[k]
        start = i
        i += 1
        k += 1
        # The shortest runs of old and new dimensions with equally many elements.
        while taken != wanted:
            if taken < wanted:
                taken *= old[i][0]
                i += 1
            else:
                wanted *= new[k]
                k += 1
        for (_, outer), (n, inner) in zip(old[start : i - 1], old[start + 1 : i], strict=True):
            if outer != n * inner:
                return None
        step = old[i - 1][1]
        for d in range(k - 1, first - 1, -1):
            result[d] = step
            step *= new[d]
    # A dimension of size 1 gets the stride that it would have in a dense array.
    step = 1
    for d in range(len(new) - 1, -1, -1):
        if new[d] == 1:
            result[d] = step
        step = result[d] * new[d] or step
    return tuple(result)


def refuse_layout(p: AccessPattern, what: str) -> NoReturn:
    raise NkiError(
        "NKI018",
        f"a view of shape {p.shape} with strides {p.strides} cannot {what} without a copy",
        "copy it to a new tensor first, or slice and permute after reshaping",
    )


def reshape(p: AccessPattern, shape: Sequence[int]) -> AccessPattern:
    """Show the same elements in the same row-major order in another shape.

    Raises:
        NkiError: it is no shape (NKI003), has another size (NKI017) or too few dimensions
            (NKI029), changes the partition (NKI015), divides an indirect dimension (NKI024), or
            the layout doesn't allow it (NKI018).
    """
    new = fill_in(shape, p.size, p.shape)
    if p.pinned and new[0] != p.shape[0]:
        refuse_pinned(p, f"reshape to {new}, which changes")
    if len(new) < lowest_rank(p):
        _refuse_low_rank(p, len(new))
    keep = 1 if p.pinned else 0
    if p.indirect is not None and p.indirect.axis >= keep:
        _refuse_indirect(p, p.indirect.axis, "reshape")
    if p.indirect is None and is_contiguous(p):
        tail: tuple[int, ...] | None = row_major(new)[keep:]
    else:
        tail = _restride(p.shape[keep:], p.strides[keep:], new[keep:])
    if tail is None:
        refuse_layout(p, f"be reshaped to {new}")
    return _reshaped(p, new, p.strides[:keep] + tail, p.indirect)


def reshape_dim(p: AccessPattern, dim: int, shape: Sequence[int]) -> AccessPattern:
    """Split one dimension into several; one size may be -1.

    Raises:
        NkiError: the sizes don't multiply to the dimension's (NKI003, NKI017), or it is the
            partition (NKI015) or indirect (NKI024).
    """
    dim = axis_of(p, dim)
    new = fill_in(shape, p.shape[dim], (p.shape[dim],))
    if len(new) == 1:
        return p
    if dim == 0 and p.pinned:
        refuse_pinned(p, f"split into {new}")
    _refuse_indirect(p, dim, "split")
    strides = []
    step = p.strides[dim]
    for n in reversed(new):
        strides.append(step)
        step *= n
    return _reshaped(
        p,
        (*p.shape[:dim], *new, *p.shape[dim + 1 :]),
        (*p.strides[:dim], *reversed(strides), *p.strides[dim + 1 :]),
        _axis_after_insertion(p.indirect, dim, len(new) - 1),
    )


def flatten_dims(p: AccessPattern, start_dim: int, end_dim: int) -> AccessPattern:
    """Merge the dimensions from ``start_dim`` to ``end_dim``, both included.

    Raises:
        NkiError: they are not dense in memory (NKI018), begin with the partition (NKI015), are
            indirect (NKI024) or in the wrong order (NKI012).
    """
    start, end = axis_of(p, start_dim), axis_of(p, end_dim)
    if start > end:
        raise NkiIndexError(
            "NKI012",
            f"dimensions {start_dim} to {end_dim} are none",
            "name the first dimension first",
        )
    if start == end:
        return p
    if start == 0 and p.pinned:
        refuse_pinned(p, "merge others into")
    indirect = p.indirect
    if indirect is not None and indirect.axis >= start:
        if indirect.axis <= end:
            _refuse_indirect(p, indirect.axis, "merge")
        indirect = _moved(indirect, indirect.axis - (end - start))
    size = math.prod(p.shape[start : end + 1])
    merged = _restride(p.shape[start : end + 1], p.strides[start : end + 1], (size,))
    if merged is None:
        refuse_layout(p, f"merge dimensions {start} to {end}")
    return _reshaped(
        p,
        (*p.shape[:start], size, *p.shape[end + 1 :]),
        (*p.strides[:start], *merged, *p.strides[end + 1 :]),
        indirect,
    )


def is_contiguous(p: AccessPattern) -> bool:
    """Return whether the elements are dense in row-major order, per partition if any."""
    step = 1
    for n, s in zip(p.shape[: 0 if p.partition else None : -1], p.strides[::-1], strict=False):
        if n != 1:
            if s != step:
                return False
            step *= n
    return True
