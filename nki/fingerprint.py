"""The parts of a kernel as a hash: equal hashes mean equal recordings for equal arguments.

A kernel is a Python function, so its meaning is its code and everything that the code can reach:
functions, classes, constants, closures, modules of the user's. Whatever cannot be followed makes
the kernel one that is not kept on disk, never one that is kept under a wrong name.
"""

from __future__ import annotations

import dis
import enum
import functools
import hashlib
import importlib.util
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nki.objects import NKIObject

__all__ = ["fingerprint"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))
# Libraries whose content the key of a recording names by version.
_KNOWN = frozenset({"nki", "neuronxcc", "torch_neuronx", "numpy", "ml_dtypes", "torch", "jax"})
# Kernels that come with PyTorch's side are followed like anybody's: the version of a checkout does
# not change with them.
_FOLLOWED = "torch_neuronx.kernels."
_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))


class _Unknown(Exception):  # noqa: N818 (it says that something cannot be followed, not an error)
    """Something whose meaning cannot be hashed."""


def fingerprint(*values: Any) -> str | None:
    """Return a hash of functions and compile-time arguments, None if they cannot be followed.

    Args:
        values: a kernel's function and its arguments that are no arrays. An object says by a method
            ``__fingerprint__`` what it consists of, unless its type is known here.
    """
    walk = _Walk()
    try:
        for value in values:
            walk.value(value, ())
    except (_Unknown, RecursionError):
        return None
    return walk.digest.hexdigest()


class _Walk:
    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self._seen: dict[Any, tuple[int, Any]] = {}  # by id; the object is kept alive

    def _add(self, *parts: Any) -> None:
        for part in parts:
            text = repr(part).encode("utf-8", "backslashreplace")
            self.digest.update(b"%d:" % len(text))
            self.digest.update(text)

    def value(self, value: Any, names: tuple[str, ...]) -> None:
        """Add a value; ``names`` are those that the code around it uses, for modules."""
        kind = type(value)
        if kind in _PLAIN:
            self._add(kind.__name__, value)
            return
        # A module is looked at for the names that are used: each time for others.
        key = (id(value), names if kind is types.ModuleType else ())
        known = self._seen.get(key)
        if known is not None:
            self._add("again", known[0])
            return
        self._seen[key] = (len(self._seen), value)
        self._add(kind.__module__, kind.__qualname__)
        # Of the type, because a module or a class may have one that speaks of something else.
        parts = getattr(kind, "__fingerprint__", None)
        if parts is not None:
            self._items(parts(value), names)
            return
        for wanted, add in _ADDERS:
            if isinstance(value, wanted):
                add(self, value, names)
                return
        raise _Unknown(kind.__qualname__)

    def _items(self, value: Any, names: tuple[str, ...]) -> None:
        self._add(len(value))
        for item in value:
            self.value(item, names)

    def _set(self, value: Any, names: tuple[str, ...]) -> None:
        del names
        if not all(type(item) in _PLAIN for item in value):
            raise _Unknown("a set of objects")
        self._add(sorted(map(repr, value)))

    def _dict(self, value: Any, names: tuple[str, ...]) -> None:
        self._items([item for pair in value.items() for item in pair], names)

    def _enum(self, value: Any, names: tuple[str, ...]) -> None:
        self._add(value.name)
        self.value(value.value, names)

    def _array(self, value: Any, names: tuple[str, ...]) -> None:
        del names
        if value.dtype.hasobject:
            raise _Unknown("an array of objects")
        self._add(value.shape, str(value.dtype), hashlib.sha256(value.tobytes()).hexdigest())

    def _code(self, code: Any, names: tuple[str, ...]) -> None:
        # The places in the user's files count, because errors name them.
        self._add(code.co_filename, code.co_firstlineno, code.co_code, code.co_names)
        self._add(code.co_varnames, code.co_freevars, code.co_flags, bytes(code.co_linetable))
        for constant in code.co_consts:
            self.value(constant, names)

    def _function(self, function: Any, names: tuple[str, ...]) -> None:
        del names
        module = sys.modules.get(function.__module__)
        if module is not None and _is_library(module) and function.__closure__ is None:
            self._add(function.__module__, function.__qualname__)
            return
        code = function.__code__
        used = _names(code)
        self._code(code, used)
        self.value(function.__defaults__, used)
        self.value(function.__kwdefaults__, used)
        for cell in function.__closure__ or ():
            self.value(_content(cell), used)
        for name in used:
            if name in function.__globals__:
                self._add(name)
                self.value(function.__globals__[name], used)
        for name in _imports(code):
            self._imported(name, used)

    def _imported(self, name: str, names: tuple[str, ...]) -> None:
        if name.partition(".")[0] in _KNOWN | sys.stdlib_module_names:
            self._add(name)
            return
        module = sys.modules.get(name)
        if module is None:
            # It is imported when the kernel runs: its file says what it will be.
            spec = importlib.util.find_spec(name)
            if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
                raise _Unknown(name)
            self._add(hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest())
            return
        self.value(module, names)

    def _module(self, module: Any, names: tuple[str, ...]) -> None:
        self._add(module.__name__)
        if _is_library(module):
            return
        for name in names:
            if hasattr(module, name):
                self._add(name)
                self.value(getattr(module, name), names)

    def _class(self, kind: Any, names: tuple[str, ...]) -> None:
        self._add(kind.__module__, kind.__qualname__)
        module = sys.modules.get(kind.__module__)
        if module is None or _is_library(module):
            return
        self._items(kind.__bases__, names)
        fields = getattr(kind, "_fields", ()) if issubclass(kind, tuple) else ()
        for name, item in vars(kind).items():
            if name in _BOOKKEEPING or (fields and _is_made(name, item, fields)):
                continue
            self._add(name)
            self.value(item, names)

    def _wrapped(self, value: Any, names: tuple[str, ...]) -> None:
        self.value(value.__func__ if hasattr(value, "__func__") else value.fget, names)

    def _bound(self, value: Any, names: tuple[str, ...]) -> None:
        self.value(value.__self__, names)
        self.value(value.__func__, names)

    def _partial(self, value: Any, names: tuple[str, ...]) -> None:
        for part in (value.func, value.args, value.keywords):
            self.value(part, names)

    def _builtin(self, value: Any, names: tuple[str, ...]) -> None:
        del names
        self._add(value.__module__, value.__qualname__)

    def _object(self, value: Any, names: tuple[str, ...]) -> None:
        if not hasattr(value, "__dict__"):
            raise _Unknown(type(value).__qualname__)
        self.value(type(value), names)
        self.value(dict(vars(value)), names)


class _Empty(NamedTuple):
    """The attributes of a named tuple that nobody wrote."""


_BOOKKEEPING = frozenset(
    {"__dict__", "__weakref__", "__module__", "__qualname__", "__doc__", "__abstractmethods__",
     "_abc_impl", "__annotations__", "__firstlineno__", "__static_attributes__"}
)  # fmt: skip


def _is_library(module: types.ModuleType) -> bool:
    if module.__name__.startswith(_FOLLOWED):
        return False
    if module.__name__.partition(".")[0] in _KNOWN | sys.stdlib_module_names:
        return True
    file = getattr(module, "__file__", None)
    return file is None or file.startswith(_LIBRARIES)


def _is_made(name: str, item: Any, fields: tuple[str, ...]) -> bool:
    """Return whether something in a named tuple is what `collections` makes of its fields."""
    code = getattr(getattr(item, "__func__", item), "__code__", None)
    if code is None:
        return name in fields or name in {"__slots__", "__match_args__", "__orig_bases__"}
    made: Any = getattr(vars(_Empty).get(name), "__func__", vars(_Empty).get(name))
    return made is not None and code.co_filename == made.__code__.co_filename


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that is assigned later
        return None


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _names(code: types.CodeType) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for part in _codes(code) for name in part.co_names))


def _imports(code: types.CodeType) -> tuple[str, ...]:
    return tuple(
        instruction.argval
        for part in _codes(code)
        for instruction in dis.get_instructions(part)
        if instruction.opname == "IMPORT_NAME"
    )


Adder = Callable[[_Walk, Any, tuple[str, ...]], None]
_ADDERS: tuple[tuple[type | tuple[type, ...], Adder], ...] = (
    (enum.Enum, _Walk._enum),  # noqa: SLF001 (its own table)
    (types.FunctionType, _Walk._function),  # noqa: SLF001
    (types.MethodType, _Walk._bound),  # noqa: SLF001
    ((types.BuiltinFunctionType, np.ufunc), _Walk._builtin),  # noqa: SLF001
    (types.CodeType, _Walk._code),  # noqa: SLF001
    (types.ModuleType, _Walk._module),  # noqa: SLF001
    (type, _Walk._class),  # noqa: SLF001
    ((staticmethod, classmethod, property), _Walk._wrapped),  # noqa: SLF001
    (functools.partial, _Walk._partial),  # noqa: SLF001
    ((np.ndarray, np.generic), _Walk._array),  # noqa: SLF001
    ((tuple, list), _Walk._items),  # noqa: SLF001
    ((set, frozenset), _Walk._set),  # noqa: SLF001
    (dict, _Walk._dict),  # noqa: SLF001
    (NKIObject, _Walk._object),  # noqa: SLF001
)
