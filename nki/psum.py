"""The meaning of `accumulate=None`: the first product written to a place in PSUM overwrites it.

Which elements of a PSUM tensor hold sums is known while the kernel is recorded, so a recorded
product says whether it adds. Where only some of its elements hold sums, the others are set to 0
before, by a fill that the user does not see, and it adds everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nki.access import whole
from nki.addressing import indices
from nki.dtypes import info
from nki.isa.rows.hidden import SENTINEL
from nki.isa.state import MATMUL, OTHER, UNWRITTEN
from nki.memory import MemoryRegion, Storage
from nki.open_recording import OpenRecording
from nki.recording import Template
from nki.tensor import NkiTensor

__all__ = ["Accumulation", "WrittenMap", "boxes"]

_PRODUCTS = ("nc_matmul", "nc_matmul_mx")


class WrittenMap:
    """For one storage in PSUM: what has written each of its bytes.

    As long as all partitions are written alike, the bytes of one stand for all.

    Attributes:
        state: of all bytes, None if they differ.
    """

    __slots__ = ("_alike", "_bytes", "_storage", "state")

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.state: int | None = UNWRITTEN
        self._alike = True
        self._bytes: npt.NDArray[np.uint8] | None = None

    def _covers(self, tensor: NkiTensor) -> bool:
        p = tensor.pattern
        return p.size * info(p.dtype).itemsize == self._storage.nbytes

    def _view(self, tensor: NkiTensor) -> npt.NDArray[np.uint8]:
        p, storage = tensor.pattern, self._storage
        size = info(p.dtype).itemsize
        row, rows = storage.row_bytes, storage.shape[0]
        shape, at = p.shape, p.offset * size
        strides = [s * size for s in p.strides]
        if self._bytes is None:
            self._bytes = np.full(row, self.state, np.uint8)
            self._alike = True
        self.state = None
        if self._alike and shape[0] == rows and strides[0] == row and at < row:
            shape = (1, *shape[1:])
        elif self._alike:
            self._bytes = np.tile(self._bytes, rows)
            self._alike = False
        return np.ndarray((*shape, size), np.uint8, self._bytes, at, (*strides, 1))

    def _flat(self) -> npt.NDArray[np.uint8]:
        """The states of all bytes of all partitions."""
        if self._bytes is None:
            self._bytes = np.full(self._storage.nbytes, self.state, np.uint8)
        elif self._alike:
            self._bytes = np.tile(self._bytes, self._storage.shape[0])
        self.state, self._alike = None, False
        return self._bytes

    def get(
        self, tensor: NkiTensor, values: Any = None, group: int = 16
    ) -> int | npt.NDArray[np.uint8]:
        """Return what has written a view: one of the states, or one for each element.

        Args:
            tensor: the view.
            values: contents of the index of an indirect view; without them it counts as 0.
            group: see `nki.addressing.indices`.
        """
        if self.state is not None:
            return self.state
        states: npt.NDArray[np.uint8]
        if values is None:
            states = self._view(tensor)[..., 0]
        else:
            size = info(tensor.dtype).itemsize
            states = self._flat()[indices(tensor.pattern, values, group) * size]
        first = int(states.flat[0])
        return first if bool((states == first).all()) else np.broadcast_to(states, tensor.shape)

    def put(self, tensor: NkiTensor, state: int, values: Any = None, group: int = 16) -> None:
        """Remember what has written a view; see `get`."""
        if self.state == state:
            return
        if values is not None:
            size = info(tensor.dtype).itemsize
            starts = indices(tensor.pattern, values, group) * size
            self._flat()[starts[..., None] + np.arange(size)] = state
            return
        layout = tensor.layout
        if (layout is not None and layout.whole) or (
            tensor.pattern.indirect is None and self._covers(tensor)
        ):
            self.state, self._bytes = state, None
        else:
            self._view(tensor)[...] = state


class Accumulation:
    """Follows the products of one recorder."""

    def __init__(self, recorder: OpenRecording) -> None:
        self._recorder = recorder
        self._maps: dict[Storage, WrittenMap] = {}
        self._variants: dict[tuple[Template, bool], Template] = {}

    def _map(self, storage: Storage) -> WrittenMap:
        found = self._maps.get(storage)
        if found is None:
            found = self._maps[storage] = WrittenMap(storage)
        return found

    def state(self, storage: Storage) -> int | None:
        """Return what has written all of a storage; None if parts of it differ."""
        found = self._maps.get(storage)
        return UNWRITTEN if found is None else found.state

    def begin(self, storage: Storage, state: int) -> None:
        """Remember what has written all of a storage that nothing had written."""
        self._map(storage).state = state

    def issued(self, template: Template, written: Sequence[NkiTensor]) -> Template:
        """Take note of what an instruction writes; return it with its accumulation decided.

        Args:
            template: of the instruction.
            written: the tensors that it writes, each an operand of its own.
        """
        if template.row.name in _PRODUCTS:
            return self._product(template, written[0])
        for tensor in written:
            if tensor.storage.region is MemoryRegion.psum:
                self._map(tensor.storage).put(tensor, OTHER)
        return template

    def _product(self, template: Template, dst: NkiTensor) -> Template:
        moved = dst.pattern.indirect is not None
        states = self._map(dst.storage)
        if not template.attributes.get("is_transpose"):
            if moved:
                dst = whole(dst.storage)
                adds = self._adds_somewhere(template, dst)
            else:
                adds = self._adds(template, dst, states)
            key = template, adds
            found = self._variants.get(key)
            if found is None:
                found = self._recorder.variant(template, accumulate=adds)
                self._variants[key] = found
            template = found
        states.put(dst, MATMUL)
        return template

    def _adds_somewhere(self, template: Template, every: NkiTensor) -> bool:
        """Decide for a product whose place a value of the run chooses, in all of a storage.

        What is new is 0 everywhere then, so that adding to it is writing it.
        """
        asked = template.attributes.get("accumulate")
        unwritten = self._map(every.storage).get(every) == UNWRITTEN
        if asked and np.all(unwritten):
            self._recorder.finding(
                "NKI126", "accumulate=True adds to PSUM that nothing has written"
            )
        if np.any(unwritten):
            self._fill(every, unwritten, 0.0)
        return asked is not False

    def _adds(self, template: Template, dst: NkiTensor, written: WrittenMap) -> bool:
        asked = template.attributes.get("accumulate")
        if asked is False:
            return False
        states = written.get(dst)
        if type(states) is int:
            fresh = states == UNWRITTEN and not asked
            if states == MATMUL or (fresh and not self._recorder.inside_loop_of(dst.storage)):
                return states == MATMUL
        unwritten = states == UNWRITTEN
        if template.generation < 4 and np.any(states == OTHER):
            self._recorder.finding(
                "NKI126",
                "a matmul adds to PSUM that another instruction has written, which is undefined "
                f"on NeuronCore-v{template.generation}",
            )
        if not np.any(unwritten):
            return True
        if asked:
            self._recorder.finding(
                "NKI126", "accumulate=True adds to PSUM that nothing has written"
            )
            self._fill(dst, unwritten, SENTINEL)
            return True
        repeated = self._recorder.inside_loop_of(dst.storage)
        if np.all(unwritten) and not repeated:
            return False
        self._fill(dst, unwritten, 0.0)
        return True

    def _fill(self, dst: NkiTensor, chosen: Any, value: Any) -> None:
        mask = np.broadcast_to(chosen, dst.shape)
        fill_boxes(self._recorder, dst, mask, value)


def boxes(mask: npt.NDArray[np.bool_]) -> Iterator[tuple[slice, ...]]:
    """Cut the true elements of a mask into boxes: index expressions that do not overlap.

    Slices have steps where equal parts lie in equal distances.
    """
    if not mask.any():
        return
    if mask.all() or mask.ndim == 0:
        yield tuple(slice(0, n) for n in mask.shape)
        return
    parts = np.packbits(mask.reshape(len(mask), -1), axis=1)
    kinds, which = np.unique(parts, axis=0, return_inverse=True)
    which = which.reshape(-1)
    for kind in range(len(kinds)):
        places = np.flatnonzero(which == kind)
        first = mask[places[0]]
        if not first.any():
            continue
        inner: list[tuple[slice, ...]] = list(boxes(first)) if mask.ndim > 1 else [()]
        for run in _runs(places):
            for rest in inner:
                yield (run, *rest)


def _runs(places: npt.NDArray[np.intp]) -> Iterator[slice]:
    """Cut ascending numbers into runs of equal steps."""
    start = 0
    while start < len(places):
        end = start + 1
        step = int(places[end] - places[start]) if end < len(places) else 1
        while end < len(places) and places[end] - places[end - 1] == step:
            end += 1
        yield slice(int(places[start]), int(places[end - 1]) + 1, step)
        start = end


def fill_boxes(
    recorder: OpenRecording, tensor: NkiTensor, mask: npt.NDArray[np.bool_], value: Any
) -> None:
    """Fill some elements of a view where its storage began, unseen by the user."""
    block = recorder.block_of(tensor.storage)
    for box in boxes(mask):
        recorder.hidden_fill(block, tensor[box], value)
