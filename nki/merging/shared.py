"""HBM that the two cores of a logical core share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from nki.access import mark_written, unwritten, written
from nki.checks.flow import Leaf
from nki.errors import NkiError
from nki.isa.state import Finding
from nki.memory import Storage
from nki.tensor import NkiTensor

if TYPE_CHECKING:
    from nki.recorder import Recorder

__all__ = ["Mask", "SharedMemory", "match_shared"]

Mask = npt.NDArray[np.bool_]
Where = tuple[str, int]


def match_shared(recorders: Sequence[Recorder]) -> dict[int, Storage]:
    """Return, by id of a storage of a second core, the storage of the first core that it is.

    Constants are left out: nobody writes them, and the cores may have different ones.

    Raises:
        NkiError: the n-th tensors that the cores created differ (NKI300).
    """
    found: dict[int, Storage] = {}
    heads: dict[int, list[Storage]] = {}
    for recorder in recorders:
        constants = {id(recorder.recording.storages[n]) for n in recorder.recording.constants}
        created = [storage for storage in recorder.shared if id(storage) not in constants]
        first = heads.setdefault(recorder.rank, created)
        for i, (a, b) in enumerate(zip_longest(first, created)):
            if b is None or a is b:
                continue
            ours = None if a is None else _described(recorders[recorder.lane - 1], a)
            theirs = _described(recorder, b)
            # A tensor that the second core creates alone is its own, but core 0 fills them.
            if ours != theirs and (a is not None or id(b) in recorder.filled):
                raise NkiError(
                    "NKI300",
                    f"tensor {i} in shared HBM is {ours or 'missing'} on core 0 and {theirs} on "
                    "core 1",
                    "let both cores create the same tensors in nl.shared_hbm in the same order, "
                    "and use nl.private_hbm for what only one of them needs",
                    recorder.where_created(b),
                )
            if a is not None:
                found[id(b)] = a
    return found


def _described(recorder: Recorder, storage: Storage) -> str:
    value = recorder.filled.get(id(storage))
    filled = "" if value is None else f" filled with {value}"
    return f"{storage.dtype}{list(storage.shape)}{filled}"


class SharedMemory:
    """What of the shared tensors has been written, by either core.

    Attributes:
        findings: reads of what nobody has written.
    """

    def __init__(self) -> None:
        self.findings: list[tuple[Finding, Where]] = []

    def used(
        self, name: str, touched: Sequence[tuple[Leaf, NkiTensor]], where: Where
    ) -> Iterator[tuple[NkiTensor, Mask]]:
        """Follow an instruction; iterate over the reads of what nobody has written.

        Args:
            name: of the instruction.
            touched: its operands in shared HBM.
            where: the user's line.
        """
        for leaf, tensor in touched:
            if leaf.reads and not leaf.writes and tensor.pattern.indirect is None:
                first = unwritten(tensor)
                if first is not None:
                    text = (
                        f"{name} {leaf.name} reads {tensor.storage.label} at {list(first)} of "
                        f"the view {list(tensor.shape)}, which neither core has written"
                    )
                    self.findings.append((Finding("NKI204", text), where))
                    yield tensor, ~written(tensor)
                    mark_written(tensor)
        for leaf, tensor in touched:
            if leaf.writes:
                _mark(tensor)


def _mark(tensor: Any) -> None:
    if tensor.pattern.indirect is None:
        mark_written(tensor)
    else:  # which elements is known on the device only: all that it could be count
        tensor.storage.shadow.mark_all()
