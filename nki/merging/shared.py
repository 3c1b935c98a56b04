"""HBM that the two cores of a logical core share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

from nki.access import mark_written, unwritten, whole
from nki.checks.flow import Leaf
from nki.errors import NkiError
from nki.isa.state import Finding
from nki.memory import Storage
from nki.recorder import Recorder
from nki.recording import Template
from nki.tensor import NkiTensor
from nki.uninitialised import keeps, missing_fills

__all__ = ["Fill", "SharedMemory", "match_shared"]

Fill = tuple[NkiTensor, Any]  # a view, and the number that it is filled with
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
    """The parts of shared tensors that either core has written.

    Attributes:
        findings: reads of what nobody has written.
    """

    def __init__(self) -> None:
        self.findings: list[tuple[Finding, Where]] = []
        self._filled: set[int] = set()

    def used(
        self,
        template: Template,
        touched: Sequence[tuple[Leaf, NkiTensor]],
        where: Where,
        *,
        surely: bool,
    ) -> Iterator[Fill]:
        """Follow an instruction; iterate over what must be filled because nobody has written it.

        Args:
            template: the instruction.
            touched: its operands in shared HBM.
            where: the user's line.
            surely: it runs in every run of the program.
        """
        for leaf, tensor in touched:
            if not leaf.reads or leaf.writes or tensor.storage.shadow.complete:
                continue
            what = f"{template.row.name} {leaf.name} reads"
            if tensor.pattern.indirect is None:
                yield from self.look(tensor, what, where)
            elif tensor.storage.shadow.begun:
                # Of what is partly written nobody knows what will be read.
                yield from self._fills(tensor.storage)
            else:
                yield from self.look(whole(tensor.storage), what, where)
        for leaf, tensor in touched:
            if not leaf.writes or tensor.storage.shadow.complete:
                continue
            moved = tensor.pattern.indirect is not None
            if moved or not surely or keeps(template, leaf.role):
                yield from self._fills(tensor.storage)
            # Where it is written is known on the device only: all that it could be count.
            mark_written(whole(tensor.storage) if moved else tensor)

    def look(self, tensor: NkiTensor, what: str, where: Where) -> Iterator[Fill]:
        """Check that a view is written; iterate over what must be filled because it is not."""
        first = unwritten(tensor)
        if first is None:
            return
        text = (
            f"{what} {tensor.storage.label} at {list(first)} of the view {list(tensor.shape)}, "
            "which neither core has written"
        )
        self.findings.append((Finding("NKI204", text), where))
        yield from self._fills(tensor.storage)
        mark_written(tensor)

    def _fills(self, storage: Storage) -> Iterator[Fill]:
        if id(storage) not in self._filled:
            self._filled.add(id(storage))
            yield from missing_fills(storage)
