"""Races between the two cores of a logical core, which share HBM.

What one core does between two synchronisation points (`sendrecv`, `core_barrier`, a collective)
has no order with what the other one does meanwhile. Where both touch a byte of shared HBM, and one
of them writes it, the result depends on chance, unless both write the same there: kernels let both
cores compute what both need. This is found exactly, on bytes; accesses that a value of the run
moves (registers, index tensors) are left out, because nobody knows their bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from nki.access import box, byte_layout, overlap
from nki.dtypes import info
from nki.isa.state import Finding
from nki.merging.values import EventKey, Values
from nki.pattern import AccessPattern
from nki.tensor import NkiTensor

__all__ = ["Races", "Touch"]

Where = tuple[str, int]

# From this many pairs of accesses on, whose smallest boxes meet, bytes are marked one by one.
_MANY = 2000


class Touch(NamedTuple):
    """One access to shared HBM.

    Attributes:
        tensor: what is touched.
        writes: it is written, else read.
        where: the user's line.
        events: the instructions that do so, in order.
    """

    tensor: NkiTensor
    writes: bool
    where: Where
    events: list[EventKey]


class Races:
    """Compares what the two cores of one logical core did since they last met.

    Attributes:
        findings: races, with the line of the second core.
    """

    def __init__(self, values: Callable[[], Values]) -> None:
        """Begin.

        Args:
            values: tells which writes store the same; asked for when there is any doubt.
        """
        self._values = values
        self.findings: list[tuple[Finding, Where]] = []
        self._touched: tuple[dict[Any, Touch], dict[Any, Touch]] = ({}, {})

    def touch(self, core: int, touch: Touch) -> None:
        """Take note of an access of core 0 or 1."""
        if touch.tensor.pattern.indirect is None:
            key = (id(touch.tensor.storage), touch.tensor.pattern, touch.writes)
            known = self._touched[core].setdefault(key, touch)
            if known is not touch:
                known.events.extend(touch.events)

    def meet(self) -> None:
        """Look for races among what was touched, and forget it: the cores have met."""
        storages: dict[int, tuple[list[Touch], list[Touch]]] = {}
        for core, touched in enumerate(self._touched):
            for touch in touched.values():
                storages.setdefault(id(touch.tensor.storage), ([], []))[core].append(touch)
            touched.clear()
        for ours, theirs in storages.values():
            written = any(touch.writes for touch in (*ours, *theirs))
            if ours and theirs and written:
                self._compare(ours, theirs)

    def _compare(self, ours: list[Touch], theirs: list[Touch]) -> None:
        writes = [{t.tensor.pattern: t for t in side if t.writes} for side in (ours, theirs)]

        def races(a: Touch, b: Touch) -> bool:
            return overlap(a.tensor, b.tensor) and not self._redundant(a, b, writes)

        pairs = _candidates(ours, theirs)
        if pairs is None:
            pairs = _by_bytes(ours, theirs, races)
        seen: set[tuple[Where, Where]] = set()
        for a, b in pairs:
            if (a.where, b.where) not in seen and races(a, b):
                seen.add((a.where, b.where))
                self._found(a, b)

    def _redundant(
        self, a: Touch, b: Touch, writes: Sequence[Mapping[AccessPattern, Touch]]
    ) -> bool:
        """Return whether both cores store the same, before either reads it."""
        writer, reader = (a, b) if a.writes else (b, a)
        mate = writes[1 if a.writes else 0].get(writer.tensor.pattern)
        if mate is None or (reader.writes and reader is not mate):
            return False
        values = self._values()
        same = values.same([*writer.events, *mate.events])
        return same and (reader is mate or values.before(mate.events[0], reader.events[0]))

    def _found(self, a: Touch, b: Touch) -> None:
        kinds = ["writes" if touch.writes else "reads" for touch in (a, b)]
        file, line = a.where
        text = (
            f"core 1 {kinds[1]} bytes of {b.tensor.storage!r} that core 0 {kinds[0]} at "
            f"{file}:{line}, and no core_barrier or sendrecv between them says which is first"
        )
        self.findings.append((Finding("NKI304", text), b.where))


def _candidates(ours: list[Touch], theirs: list[Touch]) -> list[tuple[Touch, Touch]] | None:
    """Return the pairs whose smallest boxes meet and one of which writes, None if too many."""
    spans = [np.array([box(t.tensor)[2:] for t in side], np.int64) for side in (ours, theirs)]
    order = np.argsort(spans[1][:, 0], kind="stable")
    lows, highs = spans[1][order, 0], np.maximum.accumulate(spans[1][order, 1])
    pairs: list[tuple[Touch, Touch]] = []
    for a, (low, high) in zip(ours, spans[0].tolist(), strict=True):
        first = int(np.searchsorted(highs, low))
        last = int(np.searchsorted(lows, high, side="right"))
        if len(pairs) + last - first > _MANY:
            return None
        for i in order[first:last].tolist():
            b = theirs[i]
            if (a.writes or b.writes) and spans[1][i, 1] >= low:
                pairs.append((a, b))
    return pairs


_READ, _WRITTEN, _AGAIN = 1, 2, 4  # what is known of a byte; the last: by more than one access


def _by_bytes(
    ours: list[Touch], theirs: list[Touch], races: Callable[[Touch, Touch], bool]
) -> list[tuple[Touch, Touch]]:
    """Return pairs that share bytes, one for each of the second core's that has any.

    Every byte of the storage has a flag for each kind of access of the first core, so that the
    time is that of touching the bytes once more. Where flags meet, the bytes say whose they are;
    all accesses are looked through only if a byte has several.
    """
    flags = np.zeros(ours[0].tensor.storage.nbytes, np.uint8)
    for touch in ours:
        view, kind = _view(flags, touch.tensor), _WRITTEN if touch.writes else _READ
        view |= np.where(view & kind, np.uint8(kind | _AGAIN), np.uint8(kind))
    owners: dict[bool, Any] = {}
    pairs: list[tuple[Touch, Touch]] = []
    seen: set[Where] = set()
    for b in theirs:
        matters = _READ | _WRITTEN if b.writes else _WRITTEN
        if b.where in seen:
            continue
        touched = _view(flags, b.tensor)
        if not (touched & matters).any():
            continue
        owners = owners or {writes: _owners(ours, writes=writes) for writes in (False, True)}
        asked = {int(i) for writes in {True, not b.writes}
                 for i in np.unique(_view(owners[writes], b.tensor)) if i >= 0}  # fmt: skip
        found = next(((ours[i], b) for i in sorted(asked) if races(ours[i], b)), None)
        if found is None and (touched & _AGAIN).any():
            found = next(((a, b) for a in ours if (a.writes or b.writes) and races(a, b)), None)
        if found is not None:
            seen.add(b.where)
            pairs.append(found)
    return pairs


def _owners(ours: list[Touch], *, writes: bool) -> Any:
    """For every byte of the storage the last of the accesses of one kind, -1 if there is none."""
    owners = np.full(ours[0].tensor.storage.nbytes, -1, np.int32)
    for number, touch in enumerate(ours):
        if touch.writes == writes:
            _view(owners, touch.tensor)[...] = number
    return owners


def _view(facts: Any, tensor: NkiTensor) -> Any:
    """What is known of the bytes of a view, writable.

    Args:
        facts: one item for each byte of the storage.
        tensor: the view.
    """
    offset, strides = byte_layout(tensor.storage, tensor.pattern)
    size, each = info(tensor.dtype).itemsize, facts.itemsize
    shape = (*tensor.shape, size)
    return np.ndarray(shape, facts.dtype, facts, offset * each,
                      (*(stride * each for stride in strides), each))  # fmt: skip
