"""Calls of instructions that differ from an earlier one by the places of their tensors alone.

A kernel calls the same few instructions again and again. What binding, converting and checking a
call depend on is its *key*: the instruction, the names of its arguments, the layouts of its tensors
(`nki.forms.Layout`: everything but the place) and its other values. A call whose key has been
accepted once is only written down. What depends on more than the key, the contents of memory that
was written before, is followed for every call by those who do it for the others, too.

Whatever is not plainly a key here (registers, tensors that are moved at run time, objects of the
user's) takes the long way.
"""

from __future__ import annotations

import enum
import math
import sys
from collections.abc import Mapping, Sequence
from types import CodeType, FrameType
from typing import Any

import numpy as np

from nki.errors import is_users
from nki.forms import byte_of
from nki.isa.objects import NkiInstruction
from nki.isa.spec import Instruction, Role
from nki.language.constants import Operator
from nki.memory import MemoryRegion
from nki.open_recording import OpenRecording
from nki.psum import Accumulation
from nki.recording import Template, TileForm
from nki.shadow import COMPLETE
from nki.tensor import NkiTensor
from nki.uninitialised import Initialisation, writes_all

__all__ = ["Repeats"]

Key = tuple[Any, ...]

_MOST = 1 << 16  # keys that are kept: a kernel with more of them does not repeat itself
# Types whose values do not change and, being of one type, are equal only if they are the same.
_VALUES: tuple[type, ...] = (int, bool, str, type(None))
_CONSTANT: tuple[type, ...] = (Operator, enum.Enum, np.ufunc, np.dtype, type)


class _Known:
    """An accepted call.

    Attributes:
        template: of the instruction.
        number: of the template.
        tensors: which tensors of the call, counted from 0, its places are those of; None if they
            are in order.
        reads: the numbers of those that are read among them, and the names of the operands.
        writes: of those that are written, by which operands, and whether all their elements are.
        psum: it writes to PSUM.
        adding: number of the template that is recorded where a product adds to others, -1 if that
            is not known.
    """

    __slots__ = (
        "adding", "number", "psum", "reads", "template", "tensors", "writes",
    )  # fmt: skip

    def __init__(self, template: Template, number: int, tensors: Sequence[tuple[str, int]]) -> None:
        """Describe a call.

        Args:
            template: see the class.
            number: see the class.
            tensors: names of operands and which tensor of the call each is, in order of the row.
        """
        operands = {operand.name: operand for operand in template.row.operands}
        roles = {name: operand.role for name, operand in operands.items()}
        self.template = template
        self.number = number
        self.adding = -1
        places = tuple(place for _, place in tensors)
        self.tensors = None if places == tuple(range(len(places))) else places
        names = [name for name, _ in tensors]
        self.reads = tuple((n, name) for n, name in enumerate(names) if roles[name] is Role.READ)
        self.writes = tuple(
            (n, operands[name], writes_all(template, operands[name]))
            for n, name in enumerate(names)
            if roles[name] is not Role.READ
        )
        self.psum = any(
            isinstance(form, TileForm) and form.region is MemoryRegion.psum
            for name, form in template.operands
            if roles[name] is not Role.READ
        )


class Repeats:
    """The accepted calls of one recorder, and the user's lines that they were made at."""

    def __init__(
        self, recorder: OpenRecording, initialisation: Initialisation, accumulation: Accumulation
    ) -> None:
        """Begin.

        Args:
            recorder: whose calls they are.
            initialisation: follows what is read and written.
            accumulation: follows what PSUM holds.
        """
        self._recorder = recorder
        self._initialisation = initialisation
        self._accumulation = accumulation
        self._forms = recorder.forms
        self._numbers = recorder.forms.numbers
        self._known: dict[Key, _Known] = {}
        self._plain: set[type] = set(_VALUES)  # and those of `_CONSTANT` that were met
        self._lines: dict[tuple[int, int], int] = {}  # -1: none of the user's
        self._codes: list[CodeType] = []  # those in `_lines`, so that no other has their id

    # One function for its speed: it is all that most instructions pass through.
    def again(  # noqa: C901, PLR0912, PLR0915
        self, row: Instruction, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> NkiInstruction | Key | None:
        """Record a call if its key is known.

        Returns:
            The instruction if it was recorded, else the key, None if the call has none.
        """
        name = None
        if "name" in kwargs:
            kwargs = dict(kwargs)
            name = kwargs.pop("name")
        parts: list[Any] = [row.name, len(args), *kwargs]
        tensors: list[NkiTensor] = []
        plain = self._plain
        for value in (*args, *kwargs.values()) if args else kwargs.values():
            kind = type(value)
            if kind is NkiTensor:
                layout = value.layout
                if layout is None:
                    if value.pattern.indirect is not None or value.storage.exceeded:
                        return None
                    layout = self._forms.layout(value)
                parts.append(layout)
                tensors.append(value)
            elif kind in plain or (kind is float and (value > 0 or value < 0)):
                parts += (kind, value)
            elif not self._value(kind, value, parts):
                return None
        key = tuple(parts)
        known = self._known.get(key)
        if known is None:
            return key
        if known.tensors is not None:
            tensors = [tensors[place] for place in known.tensors]
        recorder, numbers = self._recorder, self._numbers
        if recorder.where is None:
            frame = sys._getframe(2)  # noqa: SLF001 (the documented way)
            line = self._lines.get((id(frame.f_code), frame.f_lasti), -1)
            code = [known.number, self._line(frame) if line < 0 else line]
        else:
            code = [known.number, recorder.line(recorder.where)]
        for tensor in tensors:
            layout = tensor.layout
            number = numbers.get(tensor.storage)
            code.append(self._forms.number(tensor.storage) if number is None else number)
            code.append(byte_of(tensor) if layout.addressed else tensor.offset * layout.itemsize)
        for n, read in known.reads:
            tensor = tensors[n]
            marks = tensor.storage.marks
            if marks is not COMPLETE and (
                marks is None or (code[3 + 2 * n], tensor.layout) not in marks.noted
            ):
                self._initialisation.read(known.template, read, tensor)
        for n, operand, entirely in known.writes:
            tensor = tensors[n]
            storage = tensor.storage
            if storage.marks is COMPLETE:
                continue
            alone = not recorder.depth and (recorder.cores == 1 or storage.region.on_chip)
            layout = tensor.layout
            if not (alone and entirely) or layout.addressed:
                self._initialisation.write(known.template, operand, tensor)
            elif layout.whole:
                storage.marks = COMPLETE
            else:
                storage.shadow.note(code[3 + 2 * n], layout)
        if known.psum:
            written = [tensors[n] for n, _, _ in known.writes]
            if known.adding >= 0 and self._accumulation.holds_sums(written[0].storage):
                code[0] = known.adding
            else:
                template = self._accumulation.issued(known.template, written)
                code[0] = recorder.number_of(template)
                if template.accumulate:
                    known.adding = code[0]
        return recorder.append(code, name)

    def learn(
        self,
        key: Key,
        template: Template,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        """Keep the key of a call that was accepted.

        Args:
            key: of the call.
            template: of its instruction.
            args: positional arguments.
            kwargs: named arguments.
        """
        # A name is looked for among the named arguments only.
        if len(self._known) >= _MOST or "name" in template.row.names[: len(args)]:
            return
        names = (*template.row.names[: len(args)], *kwargs)
        given = [
            name
            for name, value in zip(names, (*args, *kwargs.values()), strict=True)
            if type(value) is NkiTensor
        ]
        numbers = {name: number for number, name in enumerate(given)}
        operands = [o.name for o in template.row.operands if o.name in numbers]
        tensors = [(name, numbers[name]) for name in operands]
        self._known[key] = _Known(template, self._recorder.number_of(template), tensors)

    def _value(self, kind: type, value: Any, parts: list[Any]) -> bool:
        """Append what tells a value from others that are no tensors; whether there is such."""
        if kind is float:
            # 0.0 and -0.0 are equal, and NaN is not even equal to itself.
            parts += (kind, value or repr(value))
            return not math.isnan(value)
        if kind in self._plain or issubclass(kind, _CONSTANT):
            self._plain.add(kind)
            parts += (kind, value)
            return True
        if issubclass(kind, np.generic):
            parts += (kind, value.tobytes())
            return True
        if kind is tuple or kind is list:
            parts += (kind, len(value))
            return all(self._value(type(item), item, parts) for item in value)
        return False

    def _line(self, frame: FrameType) -> int:
        """Return the number of the user's line that a frame stands for."""
        lines = self._lines
        while True:
            code = frame.f_code
            key = id(code), frame.f_lasti
            line = lines.get(key)
            if line is None:
                self._codes.append(code)
                users = is_users(code.co_filename)
                if not users and frame.f_back is None:
                    return self._recorder.line((code.co_filename, frame.f_lineno))
                where = code.co_filename, frame.f_lineno
                line = lines[key] = self._recorder.line(where) if users else -1
            if line >= 0:
                return line
            assert frame.f_back is not None
            frame = frame.f_back
