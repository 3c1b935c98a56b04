"""Bases of the objects that kernels handle."""

import copy
import dataclasses
import functools
import inspect
import re
import types
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["NKIObject", "RuntimeScalar", "TensorBase", "copied", "fields_of"]


class NKIObject:
    """Base class of a kernel's own data classes and configuration objects.

    A subclass without an ``__init__`` of its own takes its data attributes, annotated or not, by
    keyword or in order of declaration, defaults being the class attributes and else None, and then
    calls ``__post_init__`` if there is one. It need not be decorated as a dataclass, and if it is,
    the same holds: the vendor's compiler reads classes itself, and knows no other rules. Two
    objects of one class are equal if their attributes are.
    """

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__init__ is NKIObject.__init__:
            # In the class itself, so that `dataclass` makes none.
            cls.__init__ = NKIObject.__init__  # type: ignore[method-assign]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        names, defaults, passed = _declared(type(self))  # type: ignore[arg-type]  # a class is hashable
        if len(args) > len(names):
            raise TypeError(
                f"{type(self).__name__}() takes {len(names)} arguments but {len(args)} were given"
            )
        given = dict(zip(names, args, strict=False))
        for name, value in kwargs.items():
            if name in given:
                raise TypeError(f"{type(self).__name__}() got argument {name!r} twice")
            if name not in names:
                raise TypeError(f"{type(self).__name__}() has no attribute {name!r}")
            given[name] = value
        for name in names:
            if name not in given:
                given[name] = defaults[name]() if name in defaults else None
            if name not in passed:
                object.__setattr__(self, name, given[name])  # a frozen dataclass refuses others
        post = getattr(self, "__post_init__", None)
        if post is not None:
            post(*(given[name] for name in passed))

    def __eq__(self, other: object) -> bool:
        mine = fields_of(self)
        if mine is None or type(other) is not type(self):
            return NotImplemented
        return mine == fields_of(other)

    def __hash__(self) -> int:
        # Of what cannot change: kernels change attributes of objects that are keys somewhere.
        return object.__hash__(self) if fields_of(self) is None else hash(type(self))


_CODE = (
    types.FunctionType, classmethod, staticmethod, property, type, functools.cached_property,
    types.MemberDescriptorType, types.GetSetDescriptorType,
)  # fmt: skip


def _is_marked(annotation: Any, marker: str) -> bool:
    """Return whether an annotation, which may be a string, is a `ClassVar` or `InitVar`."""
    text = annotation if isinstance(annotation, str) else repr(annotation)
    return re.match(rf"(\w+\.)*{marker}\b", text) is not None


def _own_names(kind: type) -> list[str]:
    """Return the data attributes that a class declares, in their order.

    Where one without annotation stands among annotated ones without a value, it comes after them.
    """
    annotated = {
        name: annotation
        for name, annotation in inspect.get_annotations(kind).items()
        if not _is_marked(annotation, "ClassVar")
    }
    plain = [
        name
        for name, value in vars(kind).items()
        if not (
            name in inspect.get_annotations(kind)
            or name.startswith("_")
            or isinstance(value, _CODE)
        )
    ]
    names = list(annotated)
    order = list(vars(kind))
    for name in reversed(plain):
        later = (other for other in order[order.index(name) + 1 :] if other in names)
        names.insert(
            names.index(following) if (following := next(later, None)) else len(names), name
        )
    return names


@functools.lru_cache(maxsize=1024)
def _declared(
    kind: type,
) -> tuple[tuple[str, ...], dict[str, Callable[[], Any]], tuple[str, ...]]:
    """Return a class's attributes in order, how defaults are made, and what `__post_init__` gets.

    Mutable defaults are copied for each object.
    """
    fields = getattr(kind, "__dataclass_fields__", {})
    names: dict[str, None] = {}
    for base in reversed(kind.__mro__):
        if issubclass(base, NKIObject):
            names.update(dict.fromkeys(_own_names(base)))
    defaults: dict[str, Callable[[], Any]] = {}
    passed: list[str] = []
    for name in names:
        field = fields.get(name)
        value = getattr(kind, name, dataclasses.MISSING) if field is None else field.default
        if isinstance(value, dataclasses.Field):  # of a class that is not decorated
            field, value = value, value.default
        if field is not None and field.default_factory is not dataclasses.MISSING:
            defaults[name] = field.default_factory
        elif value is not dataclasses.MISSING:
            mutable = isinstance(value, (list, dict, set))
            defaults[name] = functools.partial(copy.copy if mutable else _same, value)
        if field is not None and _is_marked(field.type, "InitVar"):
            passed.append(name)
    return tuple(names), defaults, tuple(passed)


def _same(value: Any) -> Any:
    return value


class RuntimeScalar(NKIObject):
    """A scalar whose value exists while the kernel runs: a register, or a loop's counter.

    Views take one as a dynamic index. ``nki.isa.VirtualRegister`` is the public subclass.
    """

    __slots__ = ()


class TensorBase(NKIObject):
    """The part of `nki.tensor.NkiTensor` that the modules below it need."""

    __slots__ = ()


def fields_of(value: Any) -> dict[str, Any] | None:
    """Return the attributes of a kernel's data object, None of anything else.

    Such an object is an `NKIObject` or a dataclass of the user's; a kernel gets a copy of it.
    """
    if isinstance(value, type) or not hasattr(value, "__dict__"):
        return None
    if type(value).__module__.partition(".")[0] == "nki":
        return None
    if isinstance(value, NKIObject) or dataclasses.is_dataclass(value):
        return vars(value)
    return None


def copied(value: Any, fields: Mapping[str, Any]) -> Any:
    """Return a data object like another, with other attributes."""
    made = copy.copy(value)
    vars(made).update(fields)
    return made
