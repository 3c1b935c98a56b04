"""Which bytes of a memory have been written: a shadow beside it.

It keeps one flag per granule, at first as many bytes as were written together; an access that is
finer or lies across granules makes them smaller, so the answer is always exact. As long as all
partitions of a memory are written alike, which most kernels do, the flags of one stand for all. A
memory that is wholly written, such as an input of a kernel, keeps no flags at all.

Kernels mostly read the very views that they have written. So writes may be noted first, and flags
are set when somebody asks about another view.
"""

from __future__ import annotations

import math
from itertools import islice
from typing import Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["COMPLETE", "Extent", "Shadow"]

Bools = npt.NDArray[np.bool_]
Ints = tuple[int, ...]

_SMALL = 1 << 18  # flags that are looked through after a write to find that all are set
_NOTED = 1 << 16  # views that are noted at most, and flags that are set at once


class Extent(Protocol):
    """A view without its place.

    Attributes:
        extent: sizes, distances in bytes between neighbours of each dimension, bytes of an item.
    """

    extent: tuple[Ints, Ints, int]


class Shadow:
    """Flags for ``nbytes`` bytes in granules.

    Attributes:
        noted: (byte offset, view) of what was written lately.
    """

    __slots__ = (
        "_alike", "_complete", "_flags", "_granule", "_nbytes", "_row", "_rows", "_settled",
        "noted",
    )  # fmt: skip

    def __init__(self, nbytes: int, granule: int, *, rows: int = 1, complete: bool = False) -> None:
        """Begin with nothing written.

        Args:
            nbytes: bytes of the memory.
            granule: bytes that are mostly written together; divides the bytes of a row.
            rows: partitions that the bytes are cut into.
            complete: everything is written.
        """
        self._nbytes = nbytes
        self._granule = granule
        self._rows = rows
        self._row = nbytes // rows
        self._alike = True
        self._flags: Bools | None = None
        self._complete = complete
        self.noted: dict[tuple[int, Extent], None] = {}
        self._settled = 0  # how many of them the flags know

    @property
    def complete(self) -> bool:
        """Return whether everything is known to be written."""
        if len(self.noted) > self._settled:
            self._settle()
        return self._complete

    @property
    def untouched(self) -> bool:
        """Return whether surely nothing is written."""
        return not self.complete and self._flags is None

    @property
    def begun(self) -> bool:
        """Return whether anything is written, if only a byte of an item."""
        return self.complete or (self._flags is not None and bool(self._flags.any()))

    @property
    def granule(self) -> int:
        """Bytes that were only written together."""
        self._settle()
        return self._granule

    def mark_all(self) -> None:
        """Remember that everything has been written."""
        self._complete = True
        self._flags = None
        self._forget()

    def note(self, offset: int, view: Extent) -> None:
        """Remember that a view at a byte offset is written; see `mark`."""
        self.noted[offset, view] = None
        if len(self.noted) > _NOTED:
            self._settle()
            self._forget()

    def _forget(self) -> None:
        # COMPLETE is one for all, and notes nothing.
        if self.noted:
            self.noted = {}
        self._settled = 0

    def _settle(self) -> None:
        """Set the flags of what was noted."""
        if len(self.noted) == self._settled:
            return
        by_view: dict[Extent, list[int]] = {}
        for offset, view in islice(self.noted, self._settled, None):
            by_view.setdefault(view, []).append(offset)
        self._settled = len(self.noted)
        for view, offsets in by_view.items():
            if self._rows > 1 or len(offsets) == 1:
                for offset in offsets:
                    self._mark(offset, *view.extent)
            else:
                self._mark_several(offsets, *view.extent)

    def mark(self, offset: int, shape: Ints, strides: Ints, itemsize: int) -> None:
        """Remember that items at a byte offset, with byte strides, are written.

        If there are several rows, dimension 0 goes over rows.
        """
        if not self.complete:
            self._mark(offset, shape, strides, itemsize)

    def _mark(self, offset: int, shape: Ints, strides: Ints, itemsize: int) -> None:
        if self._complete:
            return
        if self._alike and self._rows > 1:
            if offset >= self._row or shape[0] != self._rows or strides[0] != self._row:
                self._spread()
            else:
                shape, strides = shape[1:], strides[1:]
        shape, strides, itemsize = _runs(shape, strides, itemsize)
        if self._flags is None:
            self._granule = math.gcd(self._row, offset, itemsize, *strides)
        self._items(offset, shape, strides, itemsize)[...] = True
        self._look()

    def _mark_several(self, offsets: list[int], shape: Ints, strides: Ints, itemsize: int) -> None:
        """Mark the same items at several offsets of a memory of one row."""
        shape, strides, itemsize = _runs(shape, strides, itemsize)
        if self._flags is None:
            self._granule = math.gcd(self._row, itemsize, *offsets, *strides)
        count = math.prod(shape) * itemsize // math.gcd(self._granule, itemsize)
        if self._complete or count * len(offsets) > _NOTED * 16:
            for offset in offsets:
                self._mark(offset, shape, strides, itemsize)
            return
        flags = self._flat(*offsets, itemsize, *strides)
        g = self._granule
        inner = np.arange(itemsize // g)
        for n, stride in zip(shape[::-1], strides[::-1], strict=True):
            inner = (np.arange(n) * (stride // g))[:, None] + inner.reshape(1, -1)
        flags[(np.array(offsets) // g)[:, None] + inner.reshape(1, -1)] = True
        self._look()

    def _look(self) -> None:
        """Find out whether all flags are set, where that is quick."""
        flags = self._flags
        if (
            self._alike
            and flags is not None
            and flags.size <= _SMALL
            and flags[0]
            and flags[-1]
            and np.count_nonzero(flags) == flags.size
        ):
            self._complete, self._flags = True, None

    def missing(self, offset: int, shape: Ints, strides: Ints, itemsize: int) -> Ints | None:
        """Return the index of the first item not wholly written, None if all are."""
        if self.complete:
            return None
        if self._flags is None:
            return (0,) * len(shape)
        if self._alike and self._rows > 1:
            alike = strides[0] % self._row == 0
            runs = _runs(shape[1:], strides[1:], itemsize)
        else:
            alike, runs = True, _runs(shape, strides, itemsize)
        if alike:
            found = self._items(offset % self._row if self._alike else offset, *runs)
            if np.count_nonzero(found) == found.size:
                return None
        written = self.written(offset, shape, strides, itemsize)
        if written.all():
            return None
        return tuple(int(i) for i in np.unravel_index(int(np.argmin(written)), shape))

    def written(self, offset: int, shape: Ints, strides: Ints, itemsize: int) -> Bools:
        """Return which items are wholly written."""
        if self.complete:
            return np.ones(shape, np.bool_)
        if self._alike and self._rows > 1:
            if strides[0] % self._row == 0:
                flags = self._items(offset % self._row, shape[1:], strides[1:], itemsize)
                return np.broadcast_to(flags.all(axis=-1), shape)
            self._spread()
        return np.asarray(self._items(offset, shape, strides, itemsize).all(axis=-1))

    def mark_bytes(self, starts: npt.NDArray[np.int64], itemsize: int) -> None:
        """Like :meth:`mark` for items that start at any bytes."""
        if not self.complete:
            self._bytewise()[starts[..., None] + np.arange(itemsize)] = True

    def missing_bytes(self, starts: npt.NDArray[np.int64], itemsize: int) -> tuple[int, ...] | None:
        """Like :meth:`missing` for items that start at any bytes."""
        if self.complete:
            return None
        written = self._bytewise()[starts[..., None] + np.arange(itemsize)].all(axis=-1)
        if written.all():
            return None
        return tuple(int(i) for i in np.unravel_index(int(np.argmin(written)), starts.shape))

    def _items(self, offset: int, shape: Ints, strides: Ints, itemsize: int) -> Bools:
        """Return the flags of items, with a last dimension for those of one item."""
        flags = self._flat(offset, itemsize, *strides)
        g = self._granule
        return np.ndarray(
            (*shape, itemsize // g),
            np.bool_,
            flags,
            offset // g,
            (*[s // g for s in strides], 1),
        )

    def _flat(self, *lengths: int) -> Bools:
        """Return all flags, in granules that divide some numbers of bytes."""
        g = math.gcd(self._granule, *lengths)
        flags = self._flags
        if flags is None:
            self._granule = g
            return self._new()
        if g != self._granule:
            flags = self._flags = np.repeat(flags, self._granule // g)
            self._granule = g
        return flags

    def _new(self) -> Bools:
        size = self._row if self._alike else self._nbytes
        self._flags = np.zeros(size // self._granule, np.bool_)
        return self._flags

    def _spread(self) -> None:
        """Give each row flags of its own."""
        if self._alike and self._flags is not None:
            self._flags = np.tile(self._flags, self._rows)
        self._alike = False

    def _bytewise(self) -> Bools:
        """Return a flag for every byte."""
        self._spread()
        return self._flat(1)


def _runs(shape: Ints, strides: Ints, itemsize: int) -> tuple[Ints, Ints, int]:
    """Return items as larger ones, where neighbours leave no gaps."""
    dims = [pair for pair in zip(shape, strides, strict=True) if pair[0] != 1]
    while dims and dims[-1][1] == itemsize:
        itemsize *= dims.pop()[0]
    return tuple([n for n, _ in dims]), tuple([s for _, s in dims]), itemsize


# That of whatever is wholly written: nothing changes it any more.
COMPLETE = Shadow(0, 1, complete=True)
