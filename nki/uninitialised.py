"""Memory that nothing has written: found exactly, element by element, while recording.

To read it is a finding, not an error: kernels may compute on rows that they throw away. What is
read then is what the documented simulator fills new memory with (NaN, or 4 in integer types). The
native executor reuses memory, so a storage of which something unwritten can be seen is filled where
it began, by instructions that the user does not see: when it is read or returned, when a value of
the run chooses what of it is read or written, and when an instruction leaves out elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from nki.access import as_direct, mark_written, unwritten, whole, written
from nki.dtypes import info
from nki.isa.mx import scale_rows
from nki.isa.rows.hidden import SENTINEL
from nki.isa.spec import Operand, Role
from nki.memory import MemoryRegion, Storage, sentinel_bytes
from nki.open_recording import OpenRecording
from nki.psum import boxes
from nki.recording import Template
from nki.tensor import NkiTensor

__all__ = ["Initialisation", "keeps", "missing_fills", "writes_all"]


# Operands that are read in the first partitions of every group only: (partitions, of how many).
_SPARSE = {
    ("nc_matmul_mx", "stationary_scale"): (4, 32),
    ("nc_matmul_mx", "moving_scale"): (4, 32),
    ("nonzero_with_count", "src"): (1, 16),
}


def _shuffled(template: Template, partitions: int) -> list[int]:
    mask = template.attributes["shuffle_mask"]
    return [lane for lane in range(partitions) if mask[lane % len(mask)] != _KEEP]


def _scales(template: Template, partitions: int) -> list[int]:
    del partitions
    return [int(row) for row in scale_rows(template.call.tile("src").partitions)]


_KEEP = 255  # in the mask of a shuffle
# Operands of which an instruction writes some partitions only: their numbers.
_PARTITIONS: dict[tuple[str, str], Callable[[Template, int], list[int]]] = {
    ("nc_stream_shuffle", "dst"): _shuffled,
    ("nonzero_with_count", "dst"): lambda _, partitions: list(range(0, partitions, 16)),
    ("quantize_mx", "dst_scale"): _scales,
}
# What they add to is the business of `nki.psum`.
_PRODUCTS = ("nc_matmul", "nc_matmul_mx")
_MOST_PLACES = 4096  # of a written view that a counter moves


def keeps(template: Template, role: Role) -> bool:
    """Return whether what an instruction leaves of an operand that it writes depends on data."""
    if role is Role.READWRITE and template.row.name not in _PRODUCTS:
        return True
    return template.attributes.get("oob_mode") == "skip"


def missing_fills(storage: Storage) -> Iterator[tuple[NkiTensor, Any]]:
    """Iterate over views of what nothing has written, and what new memory holds there.

    They are elements of the storage's own type, and single bytes of those that are partly written.
    """
    every, shadow = whole(storage), storage.shadow
    if shadow.untouched:
        yield every, SENTINEL
        return
    size = info(storage.dtype).itemsize
    if shadow.granule % size == 0:
        for box in boxes(~written(every)):
            yield every[box], SENTINEL
        return
    raw = every.view("uint8")
    flags = written(raw).reshape(*every.shape, size)
    for box in boxes(np.asarray(~flags.any(axis=-1))):
        yield every[box], SENTINEL
    part = flags.any(axis=-1) & ~flags.all(axis=-1)
    if not part.any():
        return
    for number, value in enumerate(sentinel_bytes(storage.dtype)):
        mask = np.zeros((*every.shape, size), np.bool_)
        mask[..., number] = part & ~flags[..., number]
        for box in boxes(mask.reshape(raw.shape)):
            yield raw[box], value


def writes_all(template: Template, operand: Operand) -> bool:
    """Return whether an instruction writes all elements of an operand, whatever the data are."""
    partly = (template.row.name, operand.name) in _PARTITIONS
    return not partly and not keeps(template, operand.role)


class Initialisation:
    """Follows reads and writes of one recorder."""

    def __init__(self, recorder: OpenRecording) -> None:
        self._recorder = recorder
        self._filled: dict[int, Storage] = {}

    def issued(self, template: Template, operands: Mapping[str, Any]) -> None:
        """Check what an instruction reads, and take note of what it writes."""
        written: list[tuple[Operand, NkiTensor]] = []
        for operand in template.row.operands:
            value = operands.get(operand.name)
            if type(value) is NkiTensor:
                if operand.role is Role.READ:
                    self.read(template, operand.name, value)
                else:
                    written.append((operand, value))
            elif isinstance(value, (list, tuple)):
                if operand.role is not Role.READ:
                    written += [(operand, item) for item in value]
                    continue
                for item in value:
                    self.read(template, operand.name, item)
        for operand, tensor in written:
            self.write(template, operand, tensor)

    def returned(self, tensor: NkiTensor) -> None:
        """Check a tensor that the kernel returns."""
        if not (tensor.storage.shadow.complete or self._elsewhere(tensor)):
            self._look(tensor, "the kernel returns", self._recorder.where_created(tensor.storage))

    # --- writes ----------------------------------------------------------------------------------

    def write(self, template: Template, operand: Operand, tensor: NkiTensor) -> None:
        """Take note of what an instruction writes."""
        self._index(template, tensor)
        if tensor.storage.shadow.complete or self._elsewhere(tensor):
            return
        if not self._recorder.surely_runs(tensor.storage):
            self._fill(tensor.storage)
        if tensor.pattern.indirect is not None:
            self._write_moved(template, operand, tensor)
            return
        if operand.role is Role.READWRITE:
            rows = _PARTITIONS.get((template.row.name, operand.name))
            if rows is not None:
                for row in rows(template, tensor.shape[0]):
                    mark_written(tensor[row : row + 1])
                return
        if keeps(template, operand.role):
            self._fill(tensor.storage)
        if tensor.layout is not None and tensor.layout.whole:
            tensor.storage.mark_all()
        else:
            mark_written(tensor)

    def _write_moved(self, template: Template, operand: Operand, tensor: NkiTensor) -> None:
        """Take note of what is written where a value of the run says."""
        indirect = tensor.pattern.indirect
        assert indirect is not None
        values = self._recorder.counted(tensor.storage, indirect.index)
        if values is not None and len(values) <= _MOST_PLACES and not keeps(template, operand.role):
            for value in values:
                here = as_direct(tensor, value)
                if here is not None:  # else the program ends there
                    mark_written(here)
            return
        # Which elements is known on the device only: all that it could be count.
        self._fill(tensor.storage)
        mark_written(whole(tensor.storage))

    def _fill(self, storage: Storage) -> None:
        """Let what nothing has written hold what new memory holds."""
        if id(storage) in self._filled:
            return
        self._filled[id(storage)] = storage
        recorder = self._recorder
        # Bytes with an address, and in HBM, outlive the iteration of a loop that gives them a name.
        lasts = storage.address is not None or not recorder.surely_runs(storage)
        block = recorder.recording.body if lasts else recorder.block_of(storage)
        for tensor, value in missing_fills(storage):
            recorder.hidden_fill(block, tensor, value)

    def _elsewhere(self, tensor: NkiTensor) -> bool:
        """Return whether the other core may write it: the merged recording can tell then."""
        return self._recorder.cores > 1 and tensor.storage.region is MemoryRegion.shared_hbm

    # --- reads -----------------------------------------------------------------------------------

    def _index(self, template: Template, tensor: NkiTensor) -> None:
        indirect = tensor.pattern.indirect
        if indirect is not None and type(indirect.index) is NkiTensor:
            self.read(template, "index", indirect.index)

    def read(self, template: Template, name: str, tensor: NkiTensor) -> None:
        """Check that what an operand shows has been written."""
        shadow = tensor.storage.shadow
        if tensor.pattern.indirect is not None:
            self._index(template, tensor)
        if shadow.complete:
            if tensor.storage.address is None:
                tensor.storage.mark_all()
            return
        if self._elsewhere(tensor):
            return
        what = f"{template.row.name} {name} reads"
        if tensor.pattern.indirect is not None:
            # Of what is partly written nobody knows what will be read.
            if shadow.begun:
                self._fill(tensor.storage)
            else:
                self._look(whole(tensor.storage), what)
            return
        step = _SPARSE.get((template.row.name, name))
        if step is None:
            self._look(tensor, what)
            return
        rows, every_ = step
        for start in range(0, tensor.shape[0], every_):
            self._look(tensor[start : min(start + rows, tensor.shape[0])], what)

    def _look(self, tensor: NkiTensor, what: str, where: tuple[str, int] | None = None) -> None:
        first = unwritten(tensor)
        if first is None:
            return
        text = (
            f"{what} {tensor.storage.label} at {list(first)} of the view {list(tensor.shape)}, "
            "which nothing has written"
        )
        self._recorder.finding("NKI204", text, where)
        self._fill(tensor.storage)
        mark_written(tensor)
