"""Bases of the objects that kernels handle."""

import copy
import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

__all__ = ["NKIObject", "RuntimeScalar", "TensorBase", "copied", "fields_of"]


class NKIObject:
    """Base class of a kernel's own data classes and configuration objects.

    A subclass without an ``__init__`` of its own takes its annotated attributes by keyword or in
    order of declaration, defaults being the class attributes and else None, and then calls
    ``__post_init__`` if there is one: it need not be decorated as a dataclass.
    """

    __slots__ = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        names = [
            name for kind in reversed(type(self).__mro__) for name in inspect.get_annotations(kind)
        ]
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
            setattr(self, name, given[name] if name in given else getattr(type(self), name, None))
        post = getattr(self, "__post_init__", None)
        if post is not None:
            post()


class RuntimeScalar(NKIObject):
    """A scalar whose value exists while the kernel runs: a register, or a loop's counter.

    Views take one as a dynamic index. ``nki.isa.VirtualRegister`` is the public subclass.
    """

    __slots__ = ()


class TensorBase(NKIObject):
    """What `nki.tensor.NkiTensor` is to modules that it is built from."""

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
