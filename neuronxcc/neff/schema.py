"""How values of an annotated type are written as JSON, and read back with every type checked.

The dataclasses of a program are their own schema: a field that is added to one of them is stored
without a change here, as long as its annotation is made of types that are known. A dataclass is
written as a list of its fields' values in order; `describe` tells the names.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from neuronxcc.program.errors import NeffError

Encoder = Callable[[Any], Any]
Decoder = Callable[[Any], Any]
Codec = tuple[Encoder, Decoder]

_INT_LIMIT = 1 << 63
_FLOAT_LIMIT = 32  # characters of a float in hexadecimal: "-0x1.fffffffffffffp+1023"


def shown(value: object) -> str:
    """A value for an error, short."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def wrong(value: object, wanted: str) -> NeffError:
    """The error for a value of another type."""
    return NeffError(f"expected {wanted}, found {shown(value)}")


def _same(value: Any) -> Any:
    return value


def _exactly(kind: type, wanted: str) -> Codec:
    def check(value: Any) -> Any:
        if type(value) is not kind:
            raise wrong(value, wanted)
        return value

    return check, check


def _check_int(value: Any) -> int:
    # type() and not isinstance(): True is no integer here.
    if type(value) is not int or not -_INT_LIMIT <= value < _INT_LIMIT:
        raise wrong(value, "a 64-bit integer")
    return value


def encode_float(value: float) -> str:
    """Hexadecimal digits, exact for every float; "inf", "-inf", "nan", "-nan"."""
    return "-nan" if math.isnan(value) and math.copysign(1, value) < 0 else value.hex()


def decode_float(text: Any) -> float:
    """Inverse of `encode_float`; accepts nothing that it would not write."""
    if type(text) is str and len(text) <= _FLOAT_LIMIT:
        try:
            value = float.fromhex(text)
        except (ValueError, OverflowError):
            raise wrong(text, "a hexadecimal float") from None
        if encode_float(value) == text:
            return value
    raise wrong(text, "a hexadecimal float")


def encode_complex(value: complex) -> list[str]:
    """Real and imaginary part."""
    return [encode_float(value.real), encode_float(value.imag)]


def decode_complex(parts: Any) -> complex:
    """Inverse of `encode_complex`."""
    if type(parts) is not list or len(parts) != 2:
        raise wrong(parts, "real and imaginary part")
    return complex(decode_float(parts[0]), decode_float(parts[1]))


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    """Types of the fields. A schema is made for each file, this only once."""
    return typing.get_type_hints(kind)


def _enum(kind: type[enum.Enum]) -> Codec:
    by_value = {member.value: member for member in kind}

    def encode(member: Any) -> Any:
        if type(member) is not kind:
            raise wrong(member, kind.__name__)
        return member.value

    def decode(value: Any) -> Any:
        member = by_value.get(value) if type(value) is str else None
        if member is None:
            raise wrong(value, f"a {kind.__name__}")
        return member

    return encode, decode


class Schema:
    """Codecs by type, derived from annotations when they are first asked for.

    Args:
        custom: Codecs of types that the derivation doesn't know or must not look into.
        anywhere: Types that may stand where the annotation is Any, beside those of JSON.
    """

    def __init__(self, custom: Mapping[Any, Codec], anywhere: tuple[type, ...] = ()) -> None:
        self._codecs: dict[Any, Codec] = {
            int: (_check_int, _check_int),
            str: _exactly(str, "text"),
            bool: _exactly(bool, "true or false"),
            Any: (self.encode_any, self.decode_any),
            **custom,
        }
        self._anywhere = {kind.__name__: kind for kind in anywhere}
        self._by_type: dict[type, Encoder] = {
            **dict.fromkeys((types.NoneType, bool, str), _same),
            int: _check_int,
            tuple: self._encode_items,
            list: lambda value: {"list": self._encode_items(value)},
            float: lambda value: {"float": encode_float(value)},
            complex: lambda value: {"complex": encode_complex(value)},
        }
        self._by_tag: dict[str, Decoder] = {
            "float": decode_float,
            "complex": decode_complex,
            "list": self._decode_list,
            "map": self._decode_mapping,
        }

    def codec(self, annotation: Any) -> Codec:
        """Encoder and decoder of a type; TypeError for one that cannot be stored."""
        found = self._codecs.get(annotation)
        if found is None:
            # A type that contains itself (a step with steps in it) meets this instead of itself.
            self._codecs[annotation] = self._later(annotation)
            try:
                found = self._codecs[annotation] = self._derive(annotation)
            except TypeError:
                del self._codecs[annotation]
                raise
        return found

    def _later(self, annotation: Any) -> Codec:
        """A codec that looks for the codec when it is used."""

        def encode(value: Any) -> Any:
            return self._codecs[annotation][0](value)

        def decode(value: Any) -> Any:
            return self._codecs[annotation][1](value)

        return encode, decode

    def describe(self) -> dict[str, list[str]]:
        """Names of the fields of all dataclasses met so far: what the lists in a file mean."""
        return {
            kind.__name__: [field.name for field in dataclasses.fields(kind)]
            for kind in sorted(
                (k for k in self._codecs if isinstance(k, type) and dataclasses.is_dataclass(k)),
                key=lambda kind: kind.__name__,
            )
        }

    def _derive(self, annotation: Any) -> Codec:
        origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
        if origin in {typing.Union, types.UnionType}:
            return self._union(arguments)
        if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
            return self._sequence(arguments[0])
        if origin is tuple and arguments:
            return self._fixed(arguments)
        if origin in {Mapping, dict} and arguments == (str, Any):
            return self._encode_mapping, self._decode_mapping
        if isinstance(annotation, type):
            if issubclass(annotation, enum.Enum):
                return _enum(annotation)
            if dataclasses.is_dataclass(annotation):
                return self.fields(annotation)
        raise TypeError(f"{annotation!r} cannot be stored in a NEFF")

    def fields(self, kind: type) -> Codec:
        """Codec of a dataclass by its fields, whatever codec it has as a part of others."""
        hints = _hints(kind)
        names = [field.name for field in dataclasses.fields(kind)]
        codecs = [self.codec(hints[name]) for name in names]
        encoders = tuple(zip(names, (codec[0] for codec in codecs), strict=True))
        decoders = tuple(codec[1] for codec in codecs)
        count, label = len(names), kind.__name__

        def encode(value: Any) -> list[Any]:
            if type(value) is not kind:
                raise wrong(value, label)
            return [encoder(getattr(value, name)) for name, encoder in encoders]

        def decode(row: Any) -> Any:
            if type(row) is not list or len(row) != count:
                raise wrong(row, f"{label}, a list of {count}")
            return kind(*[decoder(item) for decoder, item in zip(decoders, row, strict=True)])

        return encode, decode

    def _sequence(self, item: Any) -> Codec:
        encode_item, decode_item = self.codec(item)

        def encode(values: Any) -> list[Any]:
            if type(values) is not tuple:
                raise wrong(values, "a tuple")
            return [encode_item(value) for value in values]

        def decode(values: Any) -> tuple[Any, ...]:
            if type(values) is not list:
                raise wrong(values, "a list")
            return tuple([decode_item(value) for value in values])

        def decode_ints(values: Any) -> tuple[int, ...]:
            # Most of a file is tuples of integers, so these are checked without a call for each.
            if type(values) is not list:
                raise wrong(values, "a list")
            for value in values:
                if type(value) is not int or not -_INT_LIMIT <= value < _INT_LIMIT:
                    raise wrong(value, "a 64-bit integer")
            return tuple(values)

        return encode, decode_ints if item is int else decode

    def _fixed(self, arguments: tuple[Any, ...]) -> Codec:
        codecs = [self.codec(argument) for argument in arguments]
        count = len(codecs)

        def encode(values: Any) -> list[Any]:
            if type(values) is not tuple or len(values) != count:
                raise wrong(values, f"a tuple of {count}")
            return [codec[0](value) for codec, value in zip(codecs, values, strict=True)]

        def decode(values: Any) -> tuple[Any, ...]:
            if type(values) is not list or len(values) != count:
                raise wrong(values, f"a list of {count}")
            return tuple([codec[1](value) for codec, value in zip(codecs, values, strict=True)])

        return encode, decode

    def _union(self, arguments: tuple[Any, ...]) -> Codec:
        kinds = [argument for argument in arguments if argument is not types.NoneType]
        optional = len(kinds) < len(arguments)
        if len(kinds) == 1:
            encode_one, decode_one = self.codec(kinds[0])
        else:
            encode_one, decode_one = self._tagged(kinds)
        if not optional:
            return encode_one, decode_one

        def encode(value: Any) -> Any:
            return None if value is None else encode_one(value)

        def decode(value: Any) -> Any:
            return None if value is None else decode_one(value)

        return encode, decode

    def _tagged(self, kinds: list[Any]) -> Codec:
        """One of several dataclasses or plain types: [name, value]."""
        encoders = {kind: (kind.__name__, self.codec(kind)[0]) for kind in kinds}
        decoders = {kind.__name__: self.codec(kind)[1] for kind in kinds}
        wanted = "one of " + ", ".join(sorted(decoders))

        def encode(value: Any) -> list[Any]:
            found = encoders.get(type(value))
            if found is None:
                raise wrong(value, wanted)
            return [found[0], found[1](value)]

        def decode(row: Any) -> Any:
            if type(row) is not list or len(row) != 2 or type(row[0]) is not str:
                raise wrong(row, wanted)
            decoder = decoders.get(row[0])
            if decoder is None:
                raise wrong(row[0], wanted)
            return decoder(row[1])

        return encode, decode

    # Values of any type, for arguments of operators: what JSON has is itself, the rest is tagged.

    def encode_any(self, value: Any) -> Any:
        """None, bool, int, text, tuple of these as themselves; the rest as {tag: value}."""
        kind = type(value)
        encoder = self._by_type.get(kind)
        if encoder is not None:
            return encoder(value)
        if isinstance(value, Mapping):
            return {"map": self._encode_mapping(value)}
        if self._anywhere.get(kind.__name__) is kind:
            return {kind.__name__: self.codec(kind)[0](value)}
        raise wrong(value, "a value that a NEFF can hold")

    def decode_any(self, value: Any) -> Any:
        """Inverse of `encode_any`."""
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        if kind is int:
            return _check_int(value)
        if kind is list:
            return tuple([self.decode_any(item) for item in value])
        if kind is dict and len(value) == 1:
            ((tag, item),) = value.items()
            decoder = self._by_tag.get(tag)
            if decoder is None and tag in self._anywhere:
                decoder = self.codec(self._anywhere[tag])[1]
            if decoder is not None:
                return decoder(item)
        raise wrong(value, "a value that a NEFF can hold")

    def _encode_items(self, values: Any) -> list[Any]:
        return [self.encode_any(item) for item in values]

    def _decode_list(self, values: Any) -> list[Any]:
        if type(values) is not list:
            raise wrong(values, "a list")
        return [self.decode_any(item) for item in values]

    def _encode_mapping(self, values: Any) -> dict[str, Any]:
        if not isinstance(values, Mapping) or not all(type(key) is str for key in values):
            raise wrong(values, "a mapping with text as keys")
        return {key: self.encode_any(value) for key, value in values.items()}

    def _decode_mapping(self, values: Any) -> dict[str, Any]:
        if type(values) is not dict:
            raise wrong(values, "a mapping")
        return {key: self.decode_any(value) for key, value in values.items()}
