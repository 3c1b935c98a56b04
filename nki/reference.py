"""Runs a recording on NumPy arrays, one instruction after the other: the slow, obvious meaning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nki import access
from nki.bounds import check_index, indices_of, kept_elements
from nki.dtypes import info
from nki.errors import NkiError
from nki.isa.evaluate import dtypes_of, evaluate
from nki.isa.mx import rule_in_use
from nki.isa.state import MATMUL, OTHER, CoreState, Step
from nki.memory import Core, MemoryRegion, Storage
from nki.pattern import Indirect
from nki.psum import WrittenMap
from nki.recording import (
    Block,
    Event,
    Form,
    Loop,
    Place,
    Recording,
    RegisterForm,
    Template,
    TileForm,
    leaves,
)
from nki.returned import outputs_of
from nki.tensor import NkiTensor, tensor_of

__all__ = ["Machine", "run"]

Array = npt.NDArray[Any]


def run(recording: Recording, arrays: Sequence[Array]) -> list[Array]:
    """Run a recording; inputs that it writes are changed in place.

    Args:
        recording: what to run.
        arrays: contents of the inputs, contiguous and writable, of NKI's NumPy types.

    Returns:
        The memories that the kernel returns and that are no arguments, whole; see `nki.returned`.
    """
    machine = Machine(recording, arrays)
    machine.proceed()
    return [machine.whole(number) for number in outputs_of(recording)]


class Machine:
    """The memories, registers and engines' states of the cores that take part."""

    def __init__(self, recording: Recording, arrays: Sequence[Array]) -> None:
        self._recording = recording
        self._storages: dict[int, Storage] = {}
        self._cores: dict[int, Core] = {}
        self._states = [
            CoreState(core, scale_rule=rule_in_use()) for core in range(recording.cores)
        ]
        self._registers: dict[int, int] = {}
        self._written: dict[int, WrittenMap] = {}
        self._next = 0
        for number, array in zip(recording.inputs, arrays, strict=True):
            self._bind(number, array)

    def _bind(self, number: int, array: Array) -> None:
        old = self._recording.storages[number]
        flat = array.reshape(old.shape)
        assert np.shares_memory(flat, array)
        self._storages[number] = Storage.from_array(flat, old.region, dtype=old.dtype)

    def _storage(self, number: int) -> Storage:
        made = self._storages.get(number)
        if made is None:
            old = self._recording.storages[number]
            if number in self._recording.constants:
                made = Storage(old.region, old.dtype, old.shape, core=self._core(old))
                made.bytes[:] = old.bytes
            else:
                made = Storage(
                    old.region, old.dtype, old.shape, address=old.address, core=self._core(old)
                )
            self._storages[number] = made
        return made

    def _core(self, storage: Storage) -> Core:
        key = id(storage.core)
        if key not in self._cores:
            self._cores[key] = Core(storage.core.target, storage.core.index)
        return self._cores[key]

    # --- running -------------------------------------------------------------------------------

    def proceed(self) -> None:
        """Run what was recorded since the last time."""
        body = self._recording.body
        rest = Block(body.code[self._next :], body.loops)
        self._next = len(body.code)
        self._block(rest)

    def _block(self, block: Block) -> None:
        for item in block.items(self._recording.templates):
            if isinstance(item, Event):
                self._event(item)
            elif item.kind == "for":
                self._for(item)
            else:
                self._while(item)

    def _for(self, loop: Loop) -> None:
        for i in range(self._value(loop.lower), self._value(loop.upper), loop.step):
            for counter in loop.counters:
                self._registers[counter] = i
            self._block(loop.body)

    def _while(self, loop: Loop) -> None:
        value = self._value(loop.lower)
        while value != 0:
            for counter in loop.counters:
                self._registers[counter] = value
            self._block(loop.body)
            value = self._value(loop.upper)

    def _value(self, bound: int | tuple[int]) -> int:
        return bound if isinstance(bound, int) else self._registers[bound[0]]

    def _event(self, event: Event) -> None:
        template = event.template
        if template.hidden:
            return
        kept = self._within_bounds(event)
        operands = {n: self._read(f, p) for n, f, p in event.operands() if f is not None}
        if template.row.name == "device_print":
            print(template.attributes["prefix"], operands["src"])  # noqa: T201 (what it is for)
            return
        step = Step(
            self._states[template.core],
            template.generation,
            template.engine,
            dtypes_of(template.call.operands),
            _lane(template),
            self._written_states(event),
        )
        try:
            results = evaluate(template.row, step, operands, template.attributes)
        except NkiError as error:
            where = self._recording.locations[event.location]
            raise type(error)(error.code, error.what, error.remedy, where) from None
        places = {name: (form, at) for name, form, at in event.operands()}
        for name, value in results.items():
            form, at = places[name]
            if isinstance(form, RegisterForm):
                self._registers[at[0][0]] = int(value.reshape(-1)[0])
            else:
                assert isinstance(form, TileForm)
                product = template.row.name.startswith("nc_matmul")
                self._write(form, at, value, kept, product=product)

    def _within_bounds(self, event: Event) -> Array | None:
        """Check the indices of an event; None, or where it is to take part if it skips some.

        Raises:
            NkiIndexError: an index is out of bounds and is not to be skipped (NKI132).
        """
        kept: Array | None = None
        template = event.template
        for name, operand, places in event.operands():
            # Of several sources of an instruction the places are those of all of them in order.
            at = 0
            forms = [operand] if isinstance(operand, TileForm) else operand
            for form in forms if isinstance(forms, (list, tuple)) else ():
                if not isinstance(form, TileForm):
                    continue
                words = sum(1 for _ in leaves(form))
                here, at = places[at : at + words], at + words
                indirect = form.indirect
                if indirect is None or indirect.kind == "tensor":
                    continue
                used = indices_of(form, self._read(indirect.source, here[1:]))
                if template.attributes.get("oob_mode") == "skip":
                    inside = kept_elements(form, used).reshape(-1)
                    kept = inside if kept is None else kept & inside
                else:
                    where = self._recording.locations[event.location]
                    check_index(f"{template.row.name} {name}", indirect, used, where)
        return None if kept is None or kept.all() else kept

    def _written_states(self, event: Event) -> Array | None:
        if not event.template.row.name.startswith("nc_matmul"):
            return None
        form, place = event.template.form("dst"), event.places[0]
        assert isinstance(form, TileForm)
        tensor = self._tensor(form, event.places)[0]
        states = self._map(place[0]).get(tensor)
        return np.array(np.broadcast_to(np.uint8(states), form.shape))

    def _map(self, number: int) -> WrittenMap:
        found = self._written.get(number)
        if found is None:
            found = self._written[number] = WrittenMap(self._storage(number))
        return found

    # --- operands ------------------------------------------------------------------------------

    def _tensor(self, form: TileForm, places: Sequence[Place]) -> tuple[NkiTensor, Any]:
        """Return the view that a form is here, and the contents of its index."""
        number, byte = places[0]
        storage = self._storage(number)
        itemsize = info(form.dtype).itemsize
        offset = byte // itemsize
        if form.addressed:
            row, byte = divmod(byte - storage.base, storage.pitch)
            offset = (row * storage.row_bytes + byte) // itemsize
        pattern = form.pattern._replace(offset=offset)
        if form.indirect is None:
            return tensor_of(storage, pattern), None
        values = self._read(form.indirect.source, places[1:])
        found = form.indirect
        if found.kind != "tensor":
            values = np.clip(values, 0, found.bound - 1)  # others are skipped
        indirect = Indirect(found.kind, None, found.stride, found.axis, found.bound)
        return tensor_of(storage, pattern._replace(indirect=indirect)), values

    def _read(self, form: Form, places: Sequence[Place]) -> Any:
        if isinstance(form, RegisterForm):
            return np.array([[self._registers.get(places[0][0], 0)]], np.int32)
        if isinstance(form, TileForm):
            tensor, values = self._tensor(form, places)
            group = form.indirect.group if form.indirect is not None else 16
            return access.read(tensor, values, group)
        if isinstance(form, tuple):
            rest = iter(places)
            return tuple(self._read(item, [next(rest) for _ in leaves(item)]) for item in form)
        return form

    def _write(
        self,
        form: TileForm,
        places: Sequence[Place],
        value: Array,
        kept: Array | None = None,
        *,
        product: bool,
    ) -> None:
        tensor, index = self._tensor(form, places)
        group = form.indirect.group if form.indirect is not None else 16
        if kept is not None:
            starts = access.byte_starts(tensor.storage, tensor.pattern, index, group)
            items = np.ascontiguousarray(value).reshape(-1, 1).view(np.uint8)[kept]
            inner = np.arange(items.shape[1])
            tensor.storage.bytes[starts.reshape(-1)[kept][:, None] + inner] = items
            return
        access.write(tensor, value.view(info(tensor.dtype).numpy), index, group)
        if form.region is MemoryRegion.psum:
            self._map(places[0][0]).put(tensor, MATMUL if product else OTHER)

    # --- results -------------------------------------------------------------------------------

    def read(self, tensor: NkiTensor) -> Array:
        """Return what a tensor of the recorded kernel holds now."""
        for number, storage in enumerate(self._recording.storages):
            if storage is tensor.storage:
                here = tensor_of(self._storage(number), tensor.pattern)
                return access.read(here)
        return access.read(tensor_of(tensor.storage, tensor.pattern))

    def whole(self, number: int) -> Array:
        """Return all that a storage holds, in its shape."""
        storage = self._storage(number)
        return storage.bytes.view(info(storage.dtype).numpy).reshape(storage.shape)


def _lane(template: Template) -> int:
    """Return the first partition of the first operand on a chip."""
    for _, form in template.operands:
        if isinstance(form, TileForm) and form.region.on_chip:
            return form.row
    return 0
