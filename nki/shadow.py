"""Which bytes of a memory have been written: a shadow beside it.

It keeps one flag per granule, at first one element; an access that is finer or lies across granules
makes them single bytes, so the answer is always exact. As long as all partitions of a memory are
written alike, which most kernels do, the flags of one stand for all. A memory that is wholly
written, such as an input of a kernel, keeps no flags at all.
"""

import numpy as np
import numpy.typing as npt

__all__ = ["COMPLETE", "Shadow"]

Bools = npt.NDArray[np.bool_]

_SMALL = 1 << 18  # flags that are looked through after a write to find that all are set


class Shadow:
    """Flags for ``nbytes`` bytes in granules of ``granule`` bytes.

    Attributes:
        complete: everything is written.
    """

    __slots__ = ("_alike", "_flags", "_granule", "_nbytes", "_row", "_rows", "complete")

    @property
    def untouched(self) -> bool:
        """Return whether surely nothing is written."""
        return self._flags is None and not self.complete

    @property
    def begun(self) -> bool:
        """Return whether anything is written, if only a byte of an item."""
        return self.complete or (self._flags is not None and bool(self._flags.any()))

    @property
    def granule(self) -> int:
        """Bytes that were only written together."""
        return self._granule

    def __init__(self, nbytes: int, granule: int, *, rows: int = 1, complete: bool = False) -> None:
        """Begin with nothing written.

        Args:
            nbytes: bytes of the memory.
            granule: divides the bytes of a row.
            rows: partitions that the bytes are cut into.
            complete: everything is written.
        """
        self._nbytes = nbytes
        self._granule = granule
        self._rows = rows
        self._row = nbytes // rows
        self._alike = True
        self._flags: Bools | None = None
        self.complete = complete

    def mark_all(self) -> None:
        """Remember that everything has been written."""
        self.complete = True
        self._flags = None

    def mark(
        self, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
    ) -> None:
        """Remember that items at a byte offset, with byte strides, are written.

        If there are several rows, dimension 0 goes over rows.
        """
        if self.complete:
            return
        if self._alike and self._rows > 1:
            if offset >= self._row or shape[0] != self._rows or strides[0] != self._row:
                self._spread()
            else:
                shape, strides = shape[1:], strides[1:]
        self._part(offset, shape, strides, itemsize)[...] = True
        flags = self._flags
        if (
            self._alike
            and flags is not None
            and flags.size <= _SMALL
            and flags[0]
            and flags[-1]
            and np.count_nonzero(flags) == flags.size
        ):
            self.mark_all()

    def missing(
        self, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
    ) -> tuple[int, ...] | None:
        """Return the index of the first item not wholly written, None if all are."""
        if self.complete:
            return None
        if self._alike and self._rows > 1 and strides[0] % self._row == 0:
            found = self._part(offset % self._row, shape[1:], strides[1:], itemsize)
            if np.count_nonzero(found) == found.size:
                return None
        written = self.written(offset, shape, strides, itemsize)
        if written.all():
            return None
        return tuple(int(i) for i in np.unravel_index(int(np.argmin(written)), shape))

    def written(
        self, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
    ) -> Bools:
        """Return which items are wholly written."""
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

    def _part(
        self, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
    ) -> Bools:
        """Return the flags of items, in whatever shape."""
        g = self._granule
        if len(shape) == 1 and strides[0] == itemsize and not (offset % g or itemsize % g):
            flags = self._flags
            if flags is None:
                flags = self._new()
            return flags[offset // g : (offset + shape[0] * itemsize) // g]
        return self._items(offset, shape, strides, itemsize)

    def _items(
        self, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
    ) -> Bools:
        """Return the flags of items, with a last dimension for those of one item."""
        g = self._granule
        if g > 1 and (offset % g or itemsize % g or any(s % g for s in strides)):
            self._refine()
            g = 1
        flags = self._flags
        if flags is None:
            flags = self._new()
        return np.ndarray(
            (*shape, itemsize // g),
            np.bool_,
            flags,
            offset // g,
            (*(s // g for s in strides), 1),
        )

    def _new(self) -> Bools:
        size = self._row if self._alike else self._nbytes
        self._flags = np.zeros(size // self._granule, np.bool_)
        return self._flags

    def _refine(self) -> None:
        """Make each granule one byte."""
        if self._flags is not None and self._granule > 1:
            self._flags = np.repeat(self._flags, self._granule)
        self._granule = 1

    def _spread(self) -> None:
        """Give each row flags of its own."""
        if self._alike and self._flags is not None:
            self._flags = np.tile(self._flags, self._rows)
        self._alike = False

    def _bytewise(self) -> Bools:
        """Return a flag for every byte."""
        self._refine()
        self._spread()
        return self._new() if self._flags is None else self._flags


# That of whatever is wholly written: nothing changes it any more.
COMPLETE = Shadow(0, 1, complete=True)
