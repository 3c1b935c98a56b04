"""Mutations that keep the outer form, so that a parser's inner checks are reached.

A random byte in a protobuf mostly breaks a length, one in a NEFF its hash. These change one value
of the decoded content and write it again.
"""

from __future__ import annotations

import hashlib
import json
import random
import struct
from collections.abc import Callable, Iterator
from typing import Any

from google.protobuf.message import DecodeError, Message

from neuronxcc.frontends.hlo.schema import message
from neuronxcc.neff.container import HEADER_BYTES
from neuronxcc.neff.tar import read_tar, write_tar

#: Numbers at which checks are off by one and products overflow.
NUMBERS = (0, 1, -1, 2, 3, 7, 13, 64, 65, 255, 1 << 16, (1 << 31) - 1, -(1 << 31), 1 << 32,
           1 << 40, 1 << 62, (1 << 63) - 1, -(1 << 63))  # fmt: skip
FLOATS = (0.0, -1.0, 1e30, float("nan"), float("inf"))
TEXTS = ("", "x", "add", "[1,", "{}", '{"dim": 99}', "\u00e4" * 300)
_DATA_SIZE, _HASH, _UUID = 16, 172, 204  # offsets in a NEFF's header


def mutate_bytes(content: bytes, rng: random.Random) -> bytes:
    """Cut off, flip a bit, overwrite, repeat or remove a piece."""
    if not content:
        return rng.randbytes(8)
    data, at = bytearray(content), rng.randrange(len(content))
    span = 1 << rng.randrange(8)
    match rng.randrange(6):
        case 0:
            return content[:at]
        case 1:
            data[at] ^= 1 << rng.randrange(8)
        case 2:
            data[at] = rng.randrange(256)
        case 3:
            data[at:at] = data[at : at + span]
        case 4:
            del data[at : at + span]
        case _:
            data[at : at + 4] = struct.pack("<i", rng.choice(NUMBERS) & 0x7FFFFFFF)
    return bytes(data)


def mutate_module(content: bytes, rng: random.Random) -> bytes:
    """Change one to three fields anywhere in an HloModuleProto."""
    proto = message("Module")()
    try:
        proto.ParseFromString(content)
    except DecodeError:
        return mutate_bytes(content, rng)
    for _ in range(rng.randint(1, 3)):
        parts = list(_messages(proto))
        _change_message(rng.choice(parts), parts, rng)
    changed: bytes = proto.SerializeToString()
    return changed


def _messages(proto: Message) -> Iterator[Message]:
    yield proto
    for field, value in proto.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for part in value if field.is_repeated else (value,):
                yield from _messages(part)


def _change_message(proto: Message, others: list[Message], rng: random.Random) -> None:
    field: Any = rng.choice(proto.DESCRIPTOR.fields or [None])
    if field is None:
        return
    if field.type == field.TYPE_MESSAGE:
        alike = [m for m in others if m.DESCRIPTOR is field.message_type and m is not proto]
        if rng.random() < 0.3 or not alike:
            proto.ClearField(field.name)
        elif field.is_repeated:
            values = getattr(proto, field.name)
            values.add().CopyFrom(_copy(rng.choice(alike)))
            if len(values) > 1 and rng.random() < 0.5:
                del values[rng.randrange(len(values))]
        else:
            getattr(proto, field.name).CopyFrom(_copy(rng.choice(alike)))
    elif field.is_repeated:
        items = list(getattr(proto, field.name))[:4096]
        _change_items(items, lambda: _scalar(field, rng), rng)
        proto.ClearField(field.name)
        getattr(proto, field.name).extend(items)
    elif field.type == field.TYPE_STRING and rng.random() < 0.7:
        alike = [m for m in others if m.DESCRIPTOR is proto.DESCRIPTOR]
        setattr(proto, field.name, getattr(rng.choice(alike), field.name))
    else:
        setattr(proto, field.name, _scalar(field, rng))


def _copy(proto: Message) -> Message:
    made = type(proto)()
    made.CopyFrom(proto)
    return made


def _change_items(items: list[Any], new: Callable[[], Any], rng: random.Random) -> None:
    if items and rng.random() < 0.3:
        del items[rng.randrange(len(items))]
    elif items and rng.random() < 0.6:
        items[rng.randrange(len(items))] = new()
    else:
        items.insert(rng.randint(0, len(items)), new())


def _scalar(field: Any, rng: random.Random) -> Any:
    """A value of a protobuf field's type."""
    if field.type == field.TYPE_BYTES:
        return rng.choice(TEXTS).encode()
    values = {
        field.CPPTYPE_BOOL: (False, True),
        field.CPPTYPE_DOUBLE: FLOATS,
        field.CPPTYPE_FLOAT: FLOATS,
        field.CPPTYPE_STRING: TEXTS,
        field.CPPTYPE_INT32: [*(n for n in NUMBERS if -(1 << 31) <= n < 1 << 31), *range(40)],
        field.CPPTYPE_UINT32: [n for n in NUMBERS if 0 <= n < 1 << 32],
        field.CPPTYPE_UINT64: [n for n in NUMBERS if n >= 0],
    }
    return rng.choice(values.get(field.cpp_type, (*NUMBERS, *range(5))))


def mutate_neff(content: bytes, rng: random.Random) -> bytes:
    """Change the program or the information in an uncompressed NEFF; header and hash fit again."""
    if rng.random() < 0.1:
        return mutate_bytes(content, rng)
    try:
        files = {name: bytes(data) for name, data in read_tar(content[HEADER_BYTES:]).items()}
        name = rng.choice(sorted(files))
        if name.endswith(".json"):
            value = json.loads(files[name])
            for _ in range(rng.randint(1, 3)):
                value = _mutate_json(value, rng)
            files[name] = json.dumps(value, separators=(",", ":")).encode()
        else:
            files[name] = mutate_bytes(files[name], rng)
        return seal(content[:HEADER_BYTES], b"".join(write_tar(files)))
    except (ValueError, KeyError, RecursionError):
        return mutate_bytes(content, rng)


def seal(header: bytes, archive: bytes) -> bytes:
    """The header with size, hash and uuid of another uncompressed archive, and the archive."""
    made = bytearray(header)
    digest = hashlib.sha256(archive).digest()
    struct.pack_into("<Q", made, _DATA_SIZE, len(archive))
    made[_HASH : _HASH + 32], made[_UUID : _UUID + 16] = digest, digest[:16]
    return bytes(made) + archive


def _mutate_json(value: Any, rng: random.Random) -> Any:
    """One change somewhere in a JSON value, every place as likely."""
    places = list(_places(value))
    if not places:
        return rng.choice(NUMBERS)
    holder, key = rng.choice(places)
    match rng.randrange(5):
        case 0 if isinstance(holder, list):
            del holder[key]
        case 1 if isinstance(holder, list):
            holder.insert(key, _inner(places, rng))
        case 2:
            holder[key] = _inner(places, rng)
        case 3:
            holder[key] = rng.choice((*NUMBERS, None, "", [], {}, 0.5, True))
        case _:
            old = holder[key]
            small = rng.choice((-1, 1, 2, 8, -8))
            holder[key] = old + small if type(old) is int else rng.choice(NUMBERS)
    return value


def _inner(places: list[tuple[Any, Any]], rng: random.Random) -> Any:
    holder, key = rng.choice(places)
    return json.loads(json.dumps(holder[key]))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) in a JSON value."""
    keys = range(len(value)) if isinstance(value, list) else value if type(value) is dict else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])
