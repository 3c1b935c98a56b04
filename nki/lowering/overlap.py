"""Overlap of one instruction's operands: results wait then until everything is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from neuronxcc.addresses import Addresses, share_a_byte
from nki.bounds import limit
from nki.dtypes import info
from nki.isa.spec import Role
from nki.lowering.operands import Variant
from nki.memory import Storage
from nki.pattern import Indirect
from nki.recording import Form, RegisterForm, Template, TileForm, leaves

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


def _addresses(form: TileForm, byte: int) -> Addresses:
    return Addresses(form.shape, form.strides, info(form.dtype).itemsize, byte)


def _share(a: TileForm | RegisterForm, at: int, b: TileForm | RegisterForm, bt: int) -> bool:
    """Return whether two forms share a byte; in doubt they do."""
    assert isinstance(a, TileForm)
    assert isinstance(b, TileForm)
    if a.indirect is not None or b.indirect is not None:
        return True
    return share_a_byte(_addresses(a, at), _addresses(b, bt)) is not False


def _parts(form: Form) -> list[tuple[TileForm | RegisterForm, bool]]:
    """The leaves of an operand, with whether it is the operand itself and not its index."""
    if isinstance(form, tuple) and not isinstance(form, TileForm | RegisterForm):
        return [part for item in form for part in _parts(item)]
    return [(leaf, number == 0) for number, leaf in enumerate(leaves(form))]


class Overlaps:
    """The bytes that the leaves of a template touch."""

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
        self._registers = [isinstance(form, RegisterForm) for form in self.forms]
        # Where the numbers of storages are among the words of an event.
        self.storages = [2 * i for i, register in enumerate(self._registers) if not register]
        self._known: dict[tuple[int, ...], Variant] = {}

    def variant(
        self, buffers: Sequence[int], words: Sequence[int], storages: Sequence[Storage]
    ) -> Variant:
        """Return the variant of an event.

        Args:
            buffers: of every leaf; those of registers are the register file.
            words: the places of all leaves, flat.
            storages: of the recording.
        """
        if not self._indirect and len(set(buffers)) == len(buffers):
            return self._plain
        key = self._key(buffers, words)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._find(buffers, words, storages)
        return found

    def _key(self, buffers: Sequence[int], words: Sequence[int]) -> tuple[int, ...]:
        """The key of the variant: which leaves share a buffer, and how they lie there."""
        if self._indirect:
            return (*buffers, *words)
        key: list[int] = []
        first: dict[int, int] = {}
        for i, buffer in enumerate(buffers):
            j = first.setdefault(buffer, i)
            pitch = self._extents[i].pitch
            if self._registers[i]:
                key += (j, words[2 * i], 0)
            else:
                byte = words[2 * i + 1]
                key += (j, byte - words[2 * j + 1], byte % pitch if pitch else 0)
        return tuple(key)

    def _find(
        self, buffers: Sequence[int], words: Sequence[int], storages: Sequence[Storage]
    ) -> Variant:
        same = list(range(len(buffers)))
        staged = False
        for i, a in enumerate(self._extents):
            at = words[2 * i + 1]
            for j in range(i):
                b, bt = self._extents[j], words[2 * j + 1]
                if buffers[i] != buffers[j]:
                    continue
                if self._registers[i]:
                    if words[2 * i] == words[2 * j]:
                        same[i] = same[j]
                elif self.forms[i] == self.forms[j] and at == bt and not a.moved:
                    same[i] = same[j]
                    # Two results in one place: the last one stays.
                    staged |= a.written and b.written
                elif (a.written or b.written) and _meet(a, at, b, bt):
                    staged |= _share(self.forms[i], at, self.forms[j], bt)
        highest = [-1] * len(buffers)
        for number in self._indirect:
            form = self.forms[number]
            assert isinstance(form, TileForm)
            storage, byte = words[2 * number], words[2 * number + 1]
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
