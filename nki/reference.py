"""Runs a recording on NumPy arrays, one instruction after the other: the slow, obvious meaning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nki import access
from nki.bounds import bounded
from nki.core import Core
from nki.dtypes import info
from nki.errors import NkiError
from nki.isa.evaluate import dtypes_of, evaluate
from nki.isa.mx import rule_in_use
from nki.isa.rows.dma_rules import AXES
from nki.isa.state import MATMUL, OTHER, UNWRITTEN, CoreState, Step
from nki.memory import MemoryRegion, Storage
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
                    old.region, old.dtype, old.shape,
                    address=old.address, core=self._core(old), spills=old.spills,
                )  # fmt: skip
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
        try:
            self._run(event)
        except NkiError as error:
            where = self._recording.locations[event.location]
            raise type(error)(error.code, error.what, error.remedy, where) from None

    def _run(self, event: Event) -> None:
        template = event.template
        skip = template.attributes.get("oob_mode") == "skip"
        inside: dict[str, Array] = {}
        operands = {
            name: self._read(form, places, skip=skip, inside=inside, name=name)
            for name, form, places in event.operands()
            if form is not None
        }
        if template.row.name == "device_print":
            print(template.attributes["prefix"], operands["src"])  # noqa: T201 (what it is for)
            return
        if template.row.meaning is None:
            raise NkiError(
                "NKI305",
                f"a value is asked for after {template.row.name}, which needs what other cores do",
                "use nl.device_print, or look at values before cores exchange any",
            )
        if template.accumulate is False:
            self._forget(event)
        step = Step(
            self._states[template.core],
            template.generation,
            template.engine,
            dtypes_of(template.call.operands),
            _lane(template),
            self._written_states(event),
        )
        results = evaluate(template.row, step, operands, template.attributes)
        places = {name: (form, at) for name, form, at in event.operands()}
        for name, value in results.items():
            form, at = places[name]
            if isinstance(form, RegisterForm):
                self._registers[at[0][0]] = int(value.reshape(-1)[0])
            else:
                assert isinstance(form, TileForm)
                product = template.row.name.startswith("nc_matmul")
                mask = _kept(template, operands, inside, name) if inside else None
                self._write(form, at, value, product=product, mask=mask)
        if template.hidden:
            self._forget(event)

    def _forget(self, event: Event) -> None:
        """Begin anew with memory in PSUM that is new here: in a loop it was written before."""
        form = event.template.form("dst")
        assert isinstance(form, TileForm)
        if form.region is MemoryRegion.psum:
            tensor, values = self._tensor(form, event.places)
            group = form.indirect.group if form.indirect is not None else 16
            self._map(event.places[0][0]).put(tensor, UNWRITTEN, values, group)

    def _written_states(self, event: Event) -> Array | None:
        if not event.template.row.name.startswith("nc_matmul"):
            return None
        form, place = event.template.form("dst"), event.places[0]
        assert isinstance(form, TileForm)
        tensor, values = self._tensor(form, event.places)
        group = form.indirect.group if form.indirect is not None else 16
        states = self._map(place[0]).get(tensor, values, group)
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
        indirect = Indirect(found.kind, None, found.stride, found.axis, found.bound)
        return tensor_of(storage, pattern._replace(indirect=indirect)), values

    def _read(
        self,
        form: Form,
        places: Sequence[Place],
        *,
        skip: bool = False,
        inside: dict[str, Array] | None = None,
        name: str = "",
    ) -> Any:
        """Return an operand.

        Args:
            form: what it is.
            places: of its leaves.
            skip: read something else where an index is out of bounds.
            inside: receives what of the operand is in bounds, where not all of it is.
            name: of the operand.
        """
        if isinstance(form, RegisterForm):
            return np.array([[self._registers.get(places[0][0], 0)]], np.int32)
        if isinstance(form, TileForm):
            tensor, values = self._tensor(form, places)
            if form.indirect is None:
                return access.read(tensor)
            group = form.indirect.group
            values, mask = bounded(tensor.storage, tensor.pattern, values, group, skip=skip)
            if mask is not None and inside is not None:
                inside[name] = mask
            return access.read(tensor, values, group)
        if isinstance(form, tuple):
            items, at = [], 0
            for i, item in enumerate(form):
                count = sum(1 for _ in leaves(item))
                here = places[at : at + count]
                at += count
                items.append(self._read(item, here, skip=skip, inside=inside, name=f"{name}[{i}]"))
            return tuple(items)
        return form

    def _write(
        self,
        form: TileForm,
        places: Sequence[Place],
        value: Array,
        *,
        product: bool,
        mask: Array | None,
    ) -> None:
        tensor, index = self._tensor(form, places)
        group = form.indirect.group if form.indirect is not None else 16
        access.write(tensor, value.view(info(tensor.dtype).numpy), index, group, mask)
        if form.region is MemoryRegion.psum:
            self._map(places[0][0]).put(tensor, MATMUL if product else OTHER, index, group)

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


def _kept(
    template: Template, operands: dict[str, Any], inside: dict[str, Array], name: str
) -> Array:
    """Return which elements of a result are written: those for which no index is out of bounds."""
    shape = operands[name].shape
    kept = np.ones(shape, np.bool_)
    for operand, mask in inside.items():
        moved = mask
        if template.row.name == "dma_transpose" and operand == "src":
            moved = mask.transpose(template.attributes["axes"] or AXES[mask.ndim])
        kept &= moved.reshape(shape)
    return kept


def _lane(template: Template) -> int:
    """Return the first partition of the first operand on a chip."""
    for _, form in template.operands:
        if isinstance(form, TileForm) and form.region.on_chip:
            return form.row
    return 0
