"""Which reduction over loops has written each byte of a tile last."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
import numpy.typing as npt

from nki.dtypes import info
from nki.first_generation.indices import Booleans
from nki.memory import Storage
from nki.tensor import NkiTensor

__all__ = ["Owners"]


class Owners:
    """For one storage: who has written its bytes, None where nobody who is asked about has.

    As long as all bytes have one owner, that is all there is.
    """

    __slots__ = ("_bytes", "_known", "_whole", "storage")

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._known: dict[Hashable, int] = {None: 0}
        self._whole = 0
        self._bytes: npt.NDArray[np.int32] | None = None

    def copy(self) -> Owners:
        """Return the same, to be changed apart from it."""
        made = Owners(self.storage)
        made._known, made._whole = dict(self._known), self._whole
        made._bytes = None if self._bytes is None else self._bytes.copy()
        return made

    def _view(self, tensor: NkiTensor) -> npt.NDArray[np.int32]:
        if self._bytes is None:
            self._bytes = np.full(self.storage.nbytes, self._whole, np.int32)
        p = tensor.pattern
        size = info(p.dtype).itemsize
        strides = [4 * size * step for step in p.strides]
        offset = 4 * size * p.offset
        return np.ndarray((*p.shape, size), np.int32, self._bytes, offset, (*strides, 4))

    def put(self, tensor: NkiTensor, owner: Hashable, inside: Booleans | None = None) -> None:
        """Remember who has written a view, or the elements of it that a mask leaves."""
        number = self._known.setdefault(owner, len(self._known))
        p = tensor.pattern
        if p.indirect is not None:  # which elements is known on the device only
            return
        if inside is None and p.size * info(p.dtype).itemsize == self.storage.nbytes:
            self._whole, self._bytes = number, None
        elif self._bytes is not None or number != self._whole:
            view = self._view(tensor)
            view[... if inside is None else inside] = number

    def owned(self, tensor: NkiTensor, chosen: Any) -> Booleans | bool:
        """Return where a view was written by an owner for whom `chosen(owner)` holds."""
        numbers = [number for owner, number in self._known.items() if chosen(owner)]
        if self._bytes is None:
            return self._whole in numbers
        view = self._view(tensor)[..., 0]
        first = int(view.flat[0])
        if bool((view == first).all()):
            return first in numbers
        return np.isin(view, numbers)
