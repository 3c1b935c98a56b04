"""From the tensors and numbers of a call to forms, which recordings share, and places."""

from __future__ import annotations

import numbers
from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np

from nki.dtypes import info
from nki.isa.objects import VirtualRegister
from nki.isa.spec import Instruction
from nki.memory import Storage
from nki.recording import REGISTER, Form, IndirectForm, TileForm
from nki.tensor import NkiTensor

__all__ = ["Forms"]

Key = Any


class Forms:
    """Makes forms for one recording, and numbers its storages and registers.

    Attributes:
        storages: by number.
    """

    def __init__(self) -> None:
        self.storages: list[Storage] = []
        self._numbers: dict[int, int] = {}  # by id of a storage, which `storages` keeps alive
        self._forms: dict[Key, TileForm] = {}
        self._keys: dict[int, Key] = {}

    def number(self, storage: Storage) -> int:
        """Return a storage's number, giving it the next one at its first use."""
        key = id(storage)
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.storages)
            self.storages.append(storage)
        return found

    def known(self, storage: Storage) -> int | None:
        """Return a storage's number, None if nothing has used it."""
        return self._numbers.get(id(storage))

    def tile(self, tensor: NkiTensor, places: array[int], group: int = 16) -> TileForm:
        """Return a tensor's form, and append its place and that of its index.

        Args:
            tensor: the operand.
            places: (storage, byte) pairs, flat.
            group: partitions that share offsets in tensor indirection.
        """
        p, storage = tensor.pattern, tensor.storage
        at = p.offset * info(p.dtype).itemsize
        row = 0
        addressed = storage.address
        if storage.region.on_chip:
            row, byte = divmod(at, storage.row_bytes)
            if addressed is not None:
                at = storage.base + row * storage.pitch + byte
                row += addressed[0]
        places.append(self.number(storage))
        places.append(at)
        region = storage.region
        key: Key = (
            p.dtype,
            p.shape,
            p.strides,
            id(region),
            row,
            storage.row_bytes,
            storage.nbytes,
            addressed is None,
        )
        indirect = None
        if p.indirect is not None:
            indirect = self._indirect(tensor, places, group)
            key = (key, indirect)
        form = self._forms.get(key)
        if form is None:
            form = self._forms[key] = _form(tensor, row, indirect)
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


def _form(tensor: NkiTensor, row: int, indirect: IndirectForm | None) -> TileForm:
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
        indirect,
    )
