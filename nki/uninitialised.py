"""Reads of memory that nothing has written: found exactly, element by element, while recording.

Such a read is a finding, not an error: kernels may compute on rows that they throw away. What is
read then is what the documented simulator fills new memory with (NaN, or 4 in integer types).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nki.access import mark_written, unwritten, written
from nki.isa.rows.hidden import SENTINEL
from nki.isa.spec import Role
from nki.memory import MemoryRegion
from nki.psum import fill_boxes
from nki.recording import Template
from nki.tensor import NkiTensor

if TYPE_CHECKING:
    from nki.recorder import Recorder

__all__ = ["Initialisation"]


# Operands that are read in the first partitions of every group only: (partitions, of how many).
_SPARSE = {
    ("nc_matmul_mx", "stationary_scale"): (4, 32),
    ("nc_matmul_mx", "moving_scale"): (4, 32),
    ("nonzero_with_count", "src"): (1, 16),
}


class Initialisation:
    """Follows reads and writes of one recorder."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def issued(self, template: Template, operands: Mapping[str, Any]) -> None:
        """Check what an instruction reads, and take note of what it writes."""
        written: list[NkiTensor] = []
        for operand in template.row.operands:
            value = operands.get(operand.name)
            if type(value) is NkiTensor:
                if operand.role is Role.READ:
                    self._read(template, operand.name, value)
                else:
                    written.append(value)
            elif isinstance(value, (list, tuple)):
                if operand.role is not Role.READ:
                    written += value
                    continue
                for item in value:
                    self._read(template, operand.name, item)
        for tensor in written:
            self._write(template, tensor)

    def _write(self, template: Template, tensor: NkiTensor) -> None:
        self._index(template, tensor)
        if self._elsewhere(tensor):
            return
        if tensor.pattern.indirect is None:
            mark_written(tensor)
        elif tensor.storage.address is None:
            # Which elements is known on the device only: all that it could be count.
            tensor.storage.shadow.mark_all()

    def _elsewhere(self, tensor: NkiTensor) -> bool:
        """Whether the other core may write it, so that only the merged recording can tell."""
        return self._recorder.cores > 1 and tensor.storage.region is MemoryRegion.shared_hbm

    def _index(self, template: Template, tensor: NkiTensor) -> None:
        indirect = tensor.pattern.indirect
        if indirect is not None and type(indirect.index) is NkiTensor:
            self._read(template, "index", indirect.index)

    def _read(self, template: Template, name: str, tensor: NkiTensor) -> None:
        shadow = tensor.storage.shadow
        if tensor.pattern.indirect is not None:
            self._index(template, tensor)
            return
        if shadow.complete or self._elsewhere(tensor):
            return
        step = _SPARSE.get((template.row.name, name))
        if step is None:
            self._read_all(template, name, tensor)
            return
        rows, every = step
        for start in range(0, tensor.shape[0], every):
            part = tensor[start : min(start + rows, tensor.shape[0])]
            self._read_all(template, name, part)

    def _read_all(self, template: Template, name: str, tensor: NkiTensor) -> None:
        first = unwritten(tensor)
        if first is None:
            return
        self._recorder.finding(
            "NKI204",
            f"{template.row.name} {name} reads {tensor.storage.label} at {list(first)} of the "
            f"view {list(tensor.shape)}, which nothing has written",
        )
        fill_boxes(self._recorder, tensor, ~written(tensor), SENTINEL)
        mark_written(tensor)
