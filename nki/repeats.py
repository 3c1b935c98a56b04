"""Calls of instructions that differ from an earlier one by the places of their tensors alone.

A kernel calls the same few instructions again and again. What binding, converting and checking a
call depend on is its *key*: the instruction, the names of its arguments, the layouts of its tensors
(`nki.forms.Layout`: everything but the place) and its other values. A call whose key has been
accepted once is only written down. What depends on more than the key, the contents of memory that
was written before, is followed for every call by those who do it for the others, too.

Most calls of a kernel are made in a loop, so the same line makes them with the same arguments but
for the places of tensors. A *site* is the place in the code that calls. It keeps what was accepted
there by the layout of the first tensor, and the next call is compared with that: names, layouts and
values are the same objects. Only where they are not is a key made and looked for.

Whatever is not plainly a key here (registers, tensors that are moved at run time, objects of the
user's) takes the long way.
"""

from __future__ import annotations

import enum
import math
import sys
from collections.abc import Mapping
from types import CodeType, FrameType
from typing import Any

import numpy as np

from nki.errors import is_users
from nki.forms import Layout
from nki.isa.objects import NkiInstruction
from nki.isa.spec import Instruction
from nki.language.constants import Operator
from nki.open_recording import OpenRecording
from nki.psum import Accumulation
from nki.recording import Template
from nki.replay import WriteDown, made
from nki.tensor import NkiTensor
from nki.uninitialised import Initialisation

__all__ = ["Repeats"]

Key = tuple[Any, ...]
# The id of a code and the number of its instruction. Where a function calls many of ours, the name
# of ours and this; where the recorder says which line is meant, the name and that line.
Place = tuple[int, int] | tuple[str, tuple[int, int]] | tuple[str, tuple[str, int]]

_MOST = 1 << 16  # keys that are kept: a kernel with more of them does not repeat itself
# Types whose values do not change and, being of one type, are equal only if they are the same.
_VALUES: tuple[type, ...] = (int, bool, str, type(None))
_CONSTANT: tuple[type, ...] = (Operator, enum.Enum, np.ufunc, np.dtype, type)


class _Known:
    """An accepted call.

    Attributes:
        row: the instruction.
        positional: how many arguments were given without a name.
        arguments: all of them by name.
        template: of the instruction.
        lasting: no argument may change without becoming another object.
        write_down: writes a call like it down; None as long as there was no second one.
    """

    __slots__ = (
        "arguments", "lasting", "positional", "row", "template", "write_down",
    )  # fmt: skip

    def __init__(self, template: Template, arguments: dict[str, Any], positional: int) -> None:
        """Describe a call.

        Args:
            template: see the class.
            arguments: see the class.
            positional: see the class.
        """
        self.row = template.row
        self.positional = positional
        self.arguments = arguments
        self.template = template
        self.lasting = all(map(_lasts, arguments.values()))
        self.write_down: WriteDown | None = None


def _lasts(value: Any) -> bool:
    """Return whether an argument that is part of a key is always what it is now."""
    return all(map(_lasts, value)) if type(value) is tuple else type(value) is not list


class _Site:
    """A place in the code that calls instructions.

    Attributes:
        line: number of its line, -1 if it is none of the user's.
        first: name of the first tensor of the calls that it made last.
        known: these calls by the layout of that tensor, and how many arguments had no name if any.
    """

    __slots__ = ("first", "known", "line")

    def __init__(self, line: int) -> None:
        """Begin without a call."""
        self.line = line
        self.first = ""
        self.known: dict[Layout | tuple[Layout, int], _Known] = {}

    def keep(self, known: _Known) -> None:
        """Remember a call that was made here."""
        operands = (o.name for o in known.row.operands)
        first = next((n for n in operands if type(known.arguments.get(n)) is NkiTensor), None)
        if first is None or not known.lasting:
            return
        if first != self.first:
            self.first, self.known = first, {}
        layout = known.arguments[first].layout
        self.known[(layout, known.positional) if known.positional else layout] = known


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
        self._known: dict[Key, _Known] = {}
        self._plain: set[type] = set(_VALUES)  # and those of `_CONSTANT` that were met
        self._sites: dict[Place, _Site] = {}
        self._codes: list[CodeType] = []  # those in `_sites`, so that no other has their id

    # One function for its speed: it is all that most instructions pass through.
    def again(
        self, row: Instruction, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> NkiInstruction | Key | None:
        """Record a call if it, or its key, is known.

        Returns:
            The instruction if it was recorded, else the key, None if the call has none.
        """
        where = self._recorder.where
        if where is None:
            frame = sys._getframe(2)  # noqa: SLF001 (the documented way)
            site = self._sites.get(place := (id(frame.f_code), frame.f_lasti))
            if site is not None and site.line < 0:  # a function's that calls many instructions
                site = self._sites.get((row.name, place))
        else:
            frame = None
            site = self._sites.get((row.name, where))
        if site is None:
            return self._by_key(row, args, kwargs, frame)
        named = kwargs
        if args:
            named = dict(zip(row.names, args, strict=False))
            named.update(kwargs)
        first = named.get(site.first)
        if type(first) is not NkiTensor:
            return self._by_key(row, args, kwargs, frame)
        known = site.known.get((first.layout, len(args)) if args else first.layout)
        if (
            known is None
            or known.row is not row
            or (args and len(named) != len(args) + len(kwargs))  # one was given twice
        ):
            return self._by_key(row, args, kwargs, frame)
        line = site.line if site.line >= 0 else self._line(frame)  # type: ignore[arg-type]
        assert known.write_down is not None  # sites keep those that came twice
        code = known.write_down(named, line)
        if code is None:
            return self._by_key(row, args, kwargs, frame)
        return self._recorder.append(code, None)

    def _by_key(
        self,
        row: Instruction,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        frame: FrameType | None,
    ) -> NkiInstruction | Key | None:
        """Record a call if its key is known; see `again`.

        Args:
            row: the instruction.
            args: positional arguments.
            kwargs: named arguments.
            frame: that calls; None where the recorder says which line is meant.
        """
        name = None
        if "name" in kwargs:
            kwargs = dict(kwargs)
            name = kwargs.pop("name")
        key = self._key(row, args, kwargs)
        known = None if key is None else self._known.get(key)
        if known is None:
            return key
        if frame is None:
            assert self._recorder.where is not None
            line = self._recorder.line(self._recorder.where)
            place: Place = (row.name, self._recorder.where)
            if place not in self._sites:
                self._sites[place] = _Site(line)
        else:
            line = self._line(frame)
            place = (id(frame.f_code), frame.f_lasti)
            if self._sites[place].line < 0:
                place = (row.name, place)
                self._sites.setdefault(place, _Site(-1))
        if known.write_down is None:
            known.write_down = made(
                known.template, known.arguments, self._recorder, self._initialisation,
                self._accumulation,
            )  # fmt: skip
        site = self._sites.get(place)
        if site is not None:
            site.keep(known)
        # Its key is equal, so its values are, if they are other objects.
        given = (*zip(known.row.names, args, strict=False), *kwargs.items())
        named = known.arguments | {n: v for n, v in given if type(v) is NkiTensor}
        code = known.write_down(named, line)
        assert code is not None
        return self._recorder.append(code, name)

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
        arguments = dict(zip(template.row.names, args, strict=False)) | dict(kwargs)
        arguments.pop("name", None)
        self._known[key] = _Known(template, arguments, len(args))

    def _key(
        self, row: Instruction, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Key | None:
        """Return the key of a call, None if it has none."""
        parts: list[Any] = [row.name, len(args), *kwargs]
        for value in (*args, *kwargs.values()):
            kind = type(value)
            if kind is NkiTensor:
                layout = value.layout
                if layout is None:
                    if value.pattern.indirect is not None or value.storage.exceeded:
                        return None
                    layout = self._forms.layout(value)
                parts.append(layout)
            elif kind in self._plain or (kind is float and (value > 0 or value < 0)):
                parts += (kind, value)
            elif not self._value(kind, value, parts):
                return None
        return tuple(parts)

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
        sites = self._sites
        while True:
            code = frame.f_code
            key = id(code), frame.f_lasti
            site = sites.get(key)
            if site is None:
                self._codes.append(code)
                users = is_users(code.co_filename)
                if not users and frame.f_back is None:
                    return self._recorder.line((code.co_filename, frame.f_lineno))
                where = code.co_filename, frame.f_lineno
                site = sites[key] = _Site(self._recorder.line(where) if users else -1)
            if site.line >= 0:
                return site.line
            assert frame.f_back is not None
            frame = frame.f_back
