"""Which bytes of a memory have been written: a shadow beside it.

It keeps one flag per granule, at first one element; an access that is finer or lies across granules
makes them single bytes, so the answer is always exact. A memory that is wholly written, such as an
input of a kernel, keeps no flags at all.
"""

import numpy as np
import numpy.typing as npt

__all__ = ["Shadow"]

Bools = npt.NDArray[np.bool_]


class Shadow:
    """Flags for ``nbytes`` bytes in granules of ``granule`` bytes.

    Attributes:
        complete: everything is written.
    """

    __slots__ = ("_flags", "_granule", "_nbytes", "complete")

    def __init__(self, nbytes: int, granule: int, *, complete: bool = False) -> None:
        self._nbytes = nbytes
        self._granule = granule
        self._flags: Bools | None = None
        self.complete = complete

    def mark_all(self) -> None:
        """Remember that everything has been written."""
        self.complete = True
        self._flags = None

    def mark(
        self, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
    ) -> None:
        """Remember that items at a byte offset, with byte strides, are written."""
        if not self.complete:
            self._view(offset, shape, strides, itemsize)[...] = True

    def missing(
        self, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
    ) -> tuple[int, ...] | None:
        """Return the index of the first item not wholly written, None if all are."""
        if self.complete:
            return None
        written = self.written(offset, shape, strides, itemsize)
        if written.all():
            return None
        return tuple(int(i) for i in np.unravel_index(int(np.argmin(written)), shape))

    def written(
        self, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
    ) -> Bools:
        """Return which items are wholly written."""
        found = self._view(offset, shape, strides, itemsize).all(axis=-1)
        return np.asarray(found)

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

    def _view(
        self, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
    ) -> Bools:
        g = self._granule
        if g > 1 and (offset % g or itemsize % g or any(s % g for s in strides)):
            self._bytewise()
            g = 1
        if self._flags is None:
            self._flags = np.zeros(self._nbytes // g, np.bool_)
        return np.ndarray(
            (*shape, itemsize // g),
            np.bool_,
            self._flags,
            offset // g,
            (*(s // g for s in strides), 1),
        )

    def _bytewise(self) -> Bools:
        """Return the flags after making each granule one byte."""
        if self._flags is None:
            self._flags = np.zeros(self._nbytes, np.bool_)
        elif self._granule > 1:
            self._flags = np.repeat(self._flags, self._granule)
        self._granule = 1
        return self._flags
