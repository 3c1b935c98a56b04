"""From the tensors and numbers of a call to forms, which recordings share, and places."""

from __future__ import annotations

import numbers
from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np

from nki.addressing import refuse_outside
from nki.dtypes import info
from nki.isa.objects import VirtualRegister
from nki.isa.spec import Instruction
from nki.memory import Storage
from nki.pattern import is_contiguous
from nki.recording import REGISTER, Form, IndirectForm, TileForm
from nki.tensor import NkiTensor

__all__ = ["Forms", "Layout", "byte_of"]

Key = Any


class Layout:
    """A tensor operand as its template knows it.

    Attributes:
        form: for the template.
        itemsize: bytes of an element.
        addressed: the storage has an explicit address.
        whole: it shows all bytes of a storage without an address, dense.
        extent: sizes, distances in bytes between neighbours, and `itemsize`, see `nki.shadow`.
        dims: sizes and distances in elements between neighbours, by dimension.
        row_bytes: bytes of one partition, 0 in HBM.
        views: layouts of parts by what `nki.tensor` says of them.
        chosen: what `nki.first_generation` remembers of parts that index expressions choose.
        forms: whose layout it is.
    """

    __slots__ = (
        "addressed", "chosen", "dims", "extent", "form", "forms", "itemsize", "row_bytes", "views",
        "whole",
    )  # fmt: skip

    def __init__(self, tensor: NkiTensor, form: TileForm, forms: Forms) -> None:
        """Describe a tensor.

        Args:
            tensor: what is described; whatever moves it at run time is left out.
            form: its form.
            forms: whose layout it is.
        """
        p, storage = tensor.pattern, tensor.storage
        self.form = form
        self.itemsize = info(p.dtype).itemsize
        self.addressed = storage.address is not None
        covers = p.size * self.itemsize == storage.nbytes and is_contiguous(p)
        self.whole = covers and not self.addressed
        self.extent = p.shape, form.strides, self.itemsize
        self.dims = tuple(zip(p.shape, p.strides, strict=True))
        self.row_bytes = storage.row_bytes if p.partition else 0
        self.views: dict[tuple[Any, ...], Layout] = {}
        self.chosen: dict[tuple[Any, ...], Any] = {}
        self.forms = forms


def byte_of(tensor: NkiTensor) -> int:
    """Return where in `Storage.bytes` a tensor begins, before anything moves it."""
    storage = tensor.storage
    at = tensor.offset * info(tensor.dtype).itemsize
    if storage.address is None:
        return at
    row, byte = divmod(at, storage.row_bytes)
    return storage.base + row * storage.pitch + byte


class Forms:
    """Makes forms for one recording, and numbers its storages and registers.

    Attributes:
        storages: by number.
        numbers: by storage.
    """

    def __init__(self) -> None:
        self.storages: list[Storage] = []
        self.numbers: dict[Storage, int] = {}
        self._layouts: dict[Key, Layout] = {}
        self._indirect_forms: dict[Key, TileForm] = {}

    def number(self, storage: Storage) -> int:
        """Return a storage's number, giving it the next one at its first use."""
        found = self.numbers.get(storage)
        if found is None:
            found = self.numbers[storage] = len(self.storages)
            self.storages.append(storage)
        return found

    def layout(self, tensor: NkiTensor) -> Layout:
        """Return all of a tensor but its place and what moves it at run time.

        Equal layouts are one object, which tensors that nothing moves keep.

        Raises:
            NkiIndexError: the view leaves its storage (NKI022).
        """
        found: Layout | None = tensor.layout
        if found is not None:
            return found
        p, storage = tensor.pattern, tensor.storage
        if storage.exceeded:
            refuse_outside(p, storage.nbytes, storage.row_bytes)
        row = 0
        if storage.region.on_chip and p.offset:
            row = p.offset * info(p.dtype).itemsize // storage.row_bytes
        if storage.address is not None:
            row += storage.address[0]
        key: Key = (
            p.dtype, p.shape, p.strides, storage.region, row, storage.row_bytes, storage.nbytes,
            storage.address is None,
        )  # fmt: skip
        found = self._layouts.get(key)
        if found is None:
            found = self._layouts[key] = Layout(tensor, _form(tensor, row), self)
        if p.indirect is None:
            tensor.layout = found
        return found

    def tile(self, tensor: NkiTensor, places: array[int], group: int = 16) -> TileForm:
        """Return a tensor's form, and append its place and that of its index.

        Args:
            tensor: the operand.
            places: (storage, byte) pairs, flat.
            group: partitions that share offsets in tensor indirection.

        Raises:
            NkiIndexError: the view leaves its storage (NKI022).
        """
        layout = self.layout(tensor)
        places.append(self.number(tensor.storage))
        places.append(byte_of(tensor))
        if tensor.pattern.indirect is None:
            return layout.form
        indirect = self._indirect(tensor, places, group)
        key = (layout, indirect)
        form = self._indirect_forms.get(key)
        if form is None:
            form = self._indirect_forms[key] = layout.form._replace(indirect=indirect)
        return form

    def _indirect(self, tensor: NkiTensor, places: array[int], group: int) -> IndirectForm:
        indirect = tensor.pattern.indirect
        assert indirect is not None
        source: Any
        if isinstance(indirect.index, VirtualRegister):
            places.append(indirect.index.number)
            places.append(0)
            source = REGISTER
        else:
            source = self.tile(indirect.index, places, group)
        return IndirectForm(
            indirect.kind, indirect.stride, indirect.axis, indirect.bound, group, source
        )

    def operands(
        self, row: Instruction, operands: Mapping[str, Any], places: array[int], group: int
    ) -> tuple[Form, ...]:
        """Return the forms of a call's operands in the order of the row, appending their places."""
        forms: list[Form] = []
        for operand in row.operands:
            value = operands[operand.name]
            if type(value) is NkiTensor:
                forms.append(self.tile(value, places, group))
            elif value is None:
                forms.append(None)
            elif isinstance(value, VirtualRegister):
                places.append(value.number)
                places.append(0)
                forms.append(REGISTER)
            elif isinstance(value, (list, tuple)):
                forms.append(tuple(self.tile(item, places, group) for item in value))
            elif isinstance(value, NkiTensor):  # a result of nl.equal, which is one of its own kind
                forms.append(self.tile(value, places, group))
            else:
                forms.append(number(value))
        return tuple(forms)


def number(value: Any) -> float | int:
    """Return a number as Python's, integers apart from floats."""
    return int(value) if isinstance(value, (numbers.Integral, np.bool_)) else float(value)


def _form(tensor: NkiTensor, row: int) -> TileForm:
    p, storage = tensor.pattern, tensor.storage
    itemsize = info(p.dtype).itemsize
    strides = tuple(s * itemsize for s in p.strides)
    limit = storage.nbytes
    if storage.address is not None:
        rows = strides[0] // storage.row_bytes
        strides = (rows * storage.pitch, *strides[1:])
        limit = storage.memory.partitions * storage.pitch
    return TileForm(
        p._replace(offset=0, indirect=None),
        strides,
        storage.region,
        row,
        limit,
        storage.address is not None,
        storage.row_bytes,
        None,
    )
