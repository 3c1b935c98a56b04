"""The index expressions of tensors, and the indices that are known only at run time."""

import operator
from typing import Any

import numpy as np

from nki import addressing
from nki import pattern as views
from nki.dtypes import info
from nki.errors import NkiError, NkiIndexError, NkiTypeError
from nki.memory import MemoryRegion
from nki.objects import NKIObject, RuntimeScalar, TensorBase
from nki.pattern import AccessPattern

__all__ = [
    "DynamicSlice",
    "checked_index",
    "index_at_once",
    "index_by_parts",
    "integer",
    "is_dynamic",
    "scalar_index",
    "vector_index",
    "wrong_index",
]


class DynamicSlice(NKIObject):
    """`size` elements from `start` on: ``nl.ds(start, size)``, where `start` may be a register."""

    __slots__ = ("size", "start")

    def __init__(self, start: Any, size: int) -> None:
        self.start = start
        self.size = size

    def __repr__(self) -> str:
        return f"nl.ds({self.start!r}, {self.size!r})"


def is_dynamic(index: Any) -> bool:
    """Return whether an index is known only at run time: a register or a tensor."""
    return isinstance(index, (TensorBase, RuntimeScalar))


def integer(index: Any) -> int:
    """Return an index as an int.

    Raises:
        NkiTypeError: it is no integer (NKI011).
    """
    if isinstance(index, (bool, np.bool_)):
        raise unknown_index(index)
    try:
        return operator.index(index)
    except TypeError:
        raise unknown_index(index) from None


def wrong_index(index: Any, wanted: str) -> NkiError:
    """Return the error for an index tensor that is not what was wanted."""
    return NkiError(
        "NKI025",
        f"{index!r} is no index tensor of {wanted}",
        f"give integers of {wanted} in SBUF",
    )


def checked_index(index: Any) -> Any:
    """Return an index tensor after checking that it holds integers in SBUF.

    Raises:
        NkiTypeError: it is no tensor (NKI025).
        NkiError: it is elsewhere or holds something else (NKI025).
    """
    tensor: Any = index
    if not isinstance(index, TensorBase):
        raise NkiTypeError(
            "NKI025", f"{index!r} is no index tensor", "give a tensor of integers in SBUF"
        )
    if tensor.buffer is not MemoryRegion.sbuf or not info(tensor.dtype).is_int:
        raise wrong_index(index, f"shape {tensor.shape}")
    return tensor


def scalar_index(index: Any) -> Any:
    """Return a dynamic index after checking that it is one integer.

    Raises:
        NkiError: it is a tensor of another size, type or region (NKI025).
    """
    if isinstance(index, RuntimeScalar):
        return index
    if checked_index(index).size != 1:
        raise wrong_index(index, "shape (1, 1)")
    return index


def vector_index(index: Any, *, columns: bool = False) -> int:
    """Return the length of an index vector after checking that it is one.

    Args:
        index: the tensor.
        columns: also take shape (128, N), whose columns are read one after the other.

    Raises:
        NkiError: it is no (P, 1) tensor of integers in SBUF (NKI025).
    """
    tensor = checked_index(index)
    if tensor.size != tensor.shape[0]:
        if not columns:
            raise wrong_index(index, "shape (P, 1)")
        if tensor.ndim != 2 or tensor.shape[0] != 128:
            raise wrong_index(index, "shape (P, 1) or (128, N)")
    return int(tensor.size)


def unknown_index(key: Any) -> NkiTypeError:
    """Return the error for an index of a kind that tensors do not take."""
    return NkiTypeError(
        "NKI011",
        f"a tensor cannot be indexed with {key!r} of type {type(key).__name__}",
        "use integers, slices, ..., nl.ds(start, size), a register or a (1, 1) tensor in SBUF",
    )


# --- indexing ----------------------------------------------------------------------------------


# One function for its speed: it is called for most operands of most instructions.
def index_at_once(  # noqa: C901, PLR0911, PLR0912, PLR0915
    p: AccessPattern, key: tuple[Any, ...]
) -> AccessPattern | None:
    """Index with integers, slices and ``...`` in one go; None where anything else is found.

    What `index_by_parts` does step by step, in a quarter of the time, and without its errors: it is
    asked to repeat whatever is refused here.
    """
    shape, strides, offset = p.shape, p.strides, p.offset
    ndim = len(shape)
    sizes: list[int] = []
    steps: list[int] = []
    d = 0
    dots = False
    for k in key:
        kind = type(k)
        if kind is slice:
            if d == ndim:
                return None
            start, stop, step = k.start, k.stop, k.step
            n, stride = shape[d], strides[d]
            if start is None:
                start = 0
            elif type(start) is not int:
                return None
            elif start < 0:
                start += n
            if stop is None:
                stop = n
            elif type(stop) is not int:
                return None
            elif stop < 0:
                stop += n
            if not 0 <= start < stop <= n:
                return None
            if step is None or step == 1:
                sizes.append(stop - start)
                steps.append(stride)
            elif type(step) is int and step > 0:
                sizes.append((stop - start + step - 1) // step)
                steps.append(stride * step)
            else:
                return None
            offset += start * stride
            d += 1
        elif kind is int:
            if d == ndim:
                return None
            n = shape[d]
            if k < 0:
                k += n  # noqa: PLW2901 (the name says what it is either way)
            if not 0 <= k < n:
                return None
            offset += k * strides[d]
            if d == 0 and p.partition:
                sizes.append(1)
                steps.append(strides[0])
            d += 1
        elif k is ...:
            whole = ndim - len(key) + 1
            if whole < 0 or dots:
                return None
            dots = True
            sizes += shape[d : d + whole]
            steps += strides[d : d + whole]
            d += whole
        else:
            return None
    if d < ndim:
        sizes += shape[d:]
        steps += strides[d:]
    least = 2 if p.partition else 1
    if len(sizes) < least:
        # The dimension that stays, with size 1, is the first of those that an integer takes.
        sizes.append(1)
        steps.append(strides[least - 1])
    return tuple.__new__(
        AccessPattern, (p.dtype, offset, tuple(sizes), tuple(steps), p.partition, None)
    )


def index_by_parts(p: AccessPattern, key: Any) -> AccessPattern:
    """Apply an index dimension by dimension; the meaning of ``__getitem__``.

    Raises:
        what `NkiTensor.__getitem__` does.
    """
    parts = list(key) if isinstance(key, tuple) else [key]
    ndim = len(p.shape)
    dots = [i for i, part in enumerate(parts) if part is ...]
    if len(parts) - len(dots) > ndim or len(dots) > 1:
        raise NkiIndexError(
            "NKI013",
            f"{len(parts)} indices for a view of shape {p.shape}",
            f"give at most {ndim}, and ... once",
        )
    if dots:
        parts[dots[0] : dots[0] + 1] = [slice(None)] * (ndim - len(parts) + 1)
    # From the last dimension on, so that those that vanish don't renumber the others.
    for dim in range(len(parts) - 1, -1, -1):
        p = _index_dim(p, dim, parts[dim])
    return p


def _index_dim(p: AccessPattern, dim: int, part: Any) -> AccessPattern:
    n = p.shape[dim]
    if isinstance(part, slice):
        if part == slice(None):
            return p
        step = 1 if part.step is None else integer(part.step)
        start = 0 if part.start is None else _from_end(integer(part.start), n)
        stop = n if part.stop is None else _from_end(integer(part.stop), n)
        return views.slice_dim(p, dim, start, stop, step)
    if isinstance(part, DynamicSlice):
        if is_dynamic(part.start):
            return addressing.slice_dynamic(p, dim, scalar_index(part.start), integer(part.size))
        start = integer(part.start)
        return views.slice_dim(p, dim, start, start + integer(part.size))
    if is_dynamic(part):
        return addressing.select_dynamic(p, dim, scalar_index(part))
    return views.select(p, dim, _from_end(integer(part), n))


def _from_end(index: int, n: int) -> int:
    return index + n if index < 0 else index
