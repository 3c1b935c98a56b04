"""What `accumulate=None` means: the first product written to a place in PSUM overwrites it.

Which elements of a PSUM tensor hold sums is known while the kernel is recorded, so a recorded
product says whether it adds. Where only some of its elements hold sums, the others are set to 0
before, by a fill that the user does not see, and it adds everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from nki.dtypes import info
from nki.isa.rows.hidden import SENTINEL
from nki.isa.spec import Role
from nki.isa.state import MATMUL, OTHER, UNWRITTEN
from nki.memory import MemoryRegion, Storage
from nki.recording import Template
from nki.tensor import NkiTensor

if TYPE_CHECKING:
    from nki.recorder import Recorder

__all__ = ["Accumulation", "WrittenMap", "boxes"]

_PRODUCTS = ("nc_matmul", "nc_matmul_mx")


class WrittenMap:
    """For one storage in PSUM: what has written each of its bytes."""

    __slots__ = ("_bytes", "_storage", "_whole")

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._whole: int | None = UNWRITTEN  # all bytes are alike
        self._bytes: npt.NDArray[np.uint8] | None = None

    def _covers(self, tensor: NkiTensor) -> bool:
        p = tensor.pattern
        return p.size * info(p.dtype).itemsize == self._storage.nbytes

    def _view(self, tensor: NkiTensor) -> npt.NDArray[np.uint8]:
        if self._bytes is None:
            self._bytes = np.full(self._storage.nbytes, self._whole, np.uint8)
        self._whole = None
        p = tensor.pattern
        size = info(p.dtype).itemsize
        strides = [s * size for s in p.strides]
        return np.ndarray((*p.shape, size), np.uint8, self._bytes, p.offset * size, (*strides, 1))

    def get(self, tensor: NkiTensor) -> int | npt.NDArray[np.uint8]:
        """Return what has written a view: one of the states, or one for each element."""
        if self._whole is not None:
            return self._whole
        states: npt.NDArray[np.uint8] = self._view(tensor)[..., 0]
        first = int(states.flat[0])
        return first if bool((states == first).all()) else states

    def put(self, tensor: NkiTensor, state: int) -> None:
        """Remember what has written a view."""
        if self._covers(tensor) and tensor.pattern.indirect is None:
            self._whole, self._bytes = state, None
        elif self._whole != state:
            self._view(tensor)[...] = state


class Accumulation:
    """Follows the products of one recorder."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._maps: dict[int, tuple[Storage, WrittenMap]] = {}

    def _map(self, storage: Storage) -> WrittenMap:
        found = self._maps.get(id(storage))
        if found is None:
            found = self._maps[id(storage)] = (storage, WrittenMap(storage))
        return found[1]

    def issued(self, template: Template, operands: Mapping[str, Any]) -> Template:
        """Take note of what an instruction writes; return it with its accumulation decided."""
        product = template.row.name in _PRODUCTS
        for operand in template.row.operands:
            tensor = operands.get(operand.name)
            if operand.role is Role.READ or type(tensor) is not NkiTensor:
                continue
            if tensor.storage.region is not MemoryRegion.psum:
                continue
            if not product:
                self._map(tensor.storage).put(tensor, OTHER)
        if not product or template.attributes.get("is_transpose"):
            if product:
                self._map(operands["dst"].storage).put(operands["dst"], MATMUL)
            return template
        adds = self._adds(template, operands["dst"])
        self._map(operands["dst"].storage).put(operands["dst"], MATMUL)
        return self._recorder.variant(template, accumulate=adds)

    def _adds(self, template: Template, dst: NkiTensor) -> bool:
        asked = template.attributes.get("accumulate")
        if asked is False:
            return False
        states = self._map(dst.storage).get(dst)
        if type(states) is int and states == MATMUL:
            return True
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
    """Cut the true elements of a mask into boxes: index expressions that do not overlap."""
    if not mask.any():
        return
    if mask.all() or mask.ndim == 0:
        yield tuple(slice(0, n) for n in mask.shape)
        return
    start = 0
    for i in range(1, len(mask) + 1):
        if i < len(mask) and np.array_equal(mask[i], mask[start]):
            continue
        if mask.ndim == 1:
            if mask[start]:
                yield (slice(start, i),)
        else:
            for rest in boxes(mask[start]):
                yield (slice(start, i), *rest)
        start = i


def fill_boxes(
    recorder: Recorder, tensor: NkiTensor, mask: npt.NDArray[np.bool_], value: Any
) -> None:
    """Fill some elements of a view where its storage began, unseen by the user."""
    block = recorder.block_of(tensor.storage)
    for box in boxes(mask):
        recorder.hidden_fill(block, tensor[box], value)
