"""Whether operands of one instruction overlap: then results wait until everything is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nki.bounds import limit
from nki.dtypes import info
from nki.isa.spec import Role
from nki.lowering.operands import Variant
from nki.memory import Storage
from nki.pattern import Indirect
from nki.recording import Form, Place, RegisterForm, Template, TileForm, leaves

__all__ = ["Overlaps"]


class _Extent(NamedTuple):
    """Bytes that a leaf touches from its place on; on chip rows, and bytes of a row."""

    low: int
    high: int
    pitch: int
    rows: int
    written: bool
    moved: bool


def _extent(form: TileForm | RegisterForm, *, written: bool) -> _Extent:
    if isinstance(form, RegisterForm):
        return _Extent(0, 1, 0, 1, written, moved=False)
    on_chip = form.pattern.partition
    keep = 1 if on_chip else 0
    low = high = 0
    for extent, stride in zip(form.shape[keep:], form.strides[keep:], strict=True):
        low += min(0, stride * (extent - 1))
        high += max(0, stride * (extent - 1))
    high += info(form.dtype).itemsize
    pitch = form.strides[0] if on_chip else 0
    return _Extent(low, high, pitch, form.shape[0] if on_chip else 1, written,
                   form.indirect is not None)  # fmt: skip


def _meet(a: _Extent, at: int, b: _Extent, bt: int) -> bool:
    if a.moved or b.moved:
        return True
    if a.pitch and a.pitch == b.pitch:
        (row, byte), (other, bbyte) = divmod(at, a.pitch), divmod(bt, a.pitch)
        return (
            row < other + b.rows
            and other < row + a.rows
            and byte + a.low < bbyte + b.high
            and bbyte + b.low < byte + a.high
        )
    ends = [
        (p + e.low, p + e.high + e.pitch * (e.rows - 1)) for e, p in ((a, at), (b, bt))
    ]  # fmt: skip
    return ends[0][0] < ends[1][1] and ends[1][0] < ends[0][1]


def _parts(form: Form) -> list[tuple[TileForm | RegisterForm, bool]]:
    """The leaves of an operand, with whether it is the operand itself and not its index."""
    if isinstance(form, tuple) and not isinstance(form, TileForm | RegisterForm):
        return [part for item in form for part in _parts(item)]
    return [(leaf, number == 0) for number, leaf in enumerate(leaves(form))]


class Overlaps:
    """What the leaves of a template touch."""

    def __init__(self, template: Template) -> None:
        roles = {o.name: o.role for o in template.row.operands}
        self.forms: list[TileForm | RegisterForm] = []
        self._extents: list[_Extent] = []
        for name, form in template.operands:
            for leaf, itself in _parts(form):
                written = itself and roles.get(name, Role.READ) is not Role.READ
                self.forms.append(leaf)
                self._extents.append(_extent(leaf, written=written))
        count = len(self.forms)
        self._tiles = [i for i in range(count) if isinstance(self.forms[i], TileForm)]
        self._indirect = [
            i
            for i in self._tiles
            if self.forms[i].indirect is not None  # type: ignore[union-attr]
        ]
        self._plain = Variant(same=tuple(range(count)))
        self._writes = any(extent.written for extent in self._extents)
        self._known: dict[tuple[int, ...], Variant] = {}

    def variant(
        self, buffers: Sequence[int], places: Sequence[Place], storages: Sequence[Storage]
    ) -> Variant:
        """Return the variant of an event.

        Args:
            buffers: of every leaf; those of registers are the register file.
            places: of every leaf.
            storages: of the recording.
        """
        if not self._indirect and len(set(buffers)) == len(buffers):
            return self._plain
        key = (*buffers, *(byte for _, byte in places), *(number for number, _ in places))
        found = self._known.get(key)
        if found is None:
            if len(self._known) > 1 << 16:
                self._known.clear()
            found = self._known[key] = self._find(buffers, places, storages)
        return found

    def _find(
        self, buffers: Sequence[int], places: Sequence[Place], storages: Sequence[Storage]
    ) -> Variant:
        same = list(range(len(buffers)))
        staged = False
        for i, a in enumerate(self._extents):
            register = isinstance(self.forms[i], RegisterForm)
            for j in range(i):
                b = self._extents[j]
                if buffers[i] != buffers[j]:
                    continue
                if register or isinstance(self.forms[j], RegisterForm):
                    if places[i][0] == places[j][0]:
                        same[i] = same[j]
                    continue
                if self.forms[i] == self.forms[j] and places[i][1] == places[j][1] and not a.moved:
                    same[i] = same[j]
                    # Two results in one place: the last one stays.
                    staged |= a.written and b.written
                elif a.written or b.written:
                    staged |= _meet(a, places[i][1], b, places[j][1])
        highest = [-1] * len(buffers)
        for number in self._indirect:
            form = self.forms[number]
            assert isinstance(form, TileForm)
            storage, byte = places[number]
            highest[number] = _below(form, storages[storage], byte) - 1
        return Variant(staged, tuple(same), tuple(highest))


def _below(form: TileForm, storage: Storage, byte: int) -> int:
    """Return what the indices of an indirect form must stay below."""
    itemsize, found = info(form.dtype).itemsize, form.indirect
    assert found is not None
    offset = byte // itemsize
    if form.addressed:
        row, byte = divmod(byte - storage.base, storage.pitch)
        offset = (row * storage.row_bytes + byte) // itemsize
    indirect = Indirect(found.kind, None, found.stride, found.axis, found.bound)
    return limit(storage, form.pattern._replace(offset=offset, indirect=indirect))


def index_bytes(form: TileForm) -> int:
    """Return the bytes of one step of the index that moves a form."""
    assert form.indirect is not None
    size = info(form.dtype).itemsize
    step = form.indirect.stride * size
    if form.pattern.partition and form.row_bytes and step and step % form.row_bytes == 0:
        # Whole partitions, which are further apart where the storage has an address.
        return step // form.row_bytes * form.strides[0]
    return step
