"""The parts of a process' file: `layout.inc` as offsets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

MAGIC: Final = int.from_bytes(b"NEURONTN", "little")
_LINE = re.compile(r"(\w+)\((\w+)(?:, (\w+))?\)")
_CONSTANT = re.compile(r"#define (REGISTRY_\w+) (\d+)")
_NUMBER = 8  # bytes


@dataclass(frozen=True)
class Record:
    """One kind of record.

    Attributes:
        numbers: Offset of each, in bytes.
        series: Offset and length of each.
        texts: Offset and size in bytes of each.
        size: Of the record, in bytes.
    """

    numbers: dict[str, int] = field(default_factory=dict)
    series: dict[str, tuple[int, int]] = field(default_factory=dict)
    texts: dict[str, tuple[int, int]] = field(default_factory=dict)
    size: int = 0


@dataclass(frozen=True)
class Layout:
    """The file, version `version`.

    Attributes:
        statuses: Number of the status that each row of a core's failures counts.
    """

    version: int
    header: Record
    core: Record
    program: Record
    statuses: tuple[int, ...]


def _lines(text: str) -> Iterator[tuple[str, str, str]]:
    for line in text.splitlines():
        found = _LINE.match(line)
        if found:
            yield found[1], found[2], found[3] or ""


def parse(text: str) -> Layout:
    """Read the table.

    Args:
        text: The content of `layout.inc`.
    """
    constants = {name: int(value) for name, value in _CONSTANT.findall(text)}
    sizes = {"HEADER": 0, "CORE": 0, "PROGRAM": 0}
    records: dict[str, Record] = {name: Record() for name in sizes}
    statuses = []
    for kind, name, argument in _lines(text):
        if kind == "STATUS":
            statuses.append(int(argument))
            continue
        which, _, what = kind.partition("_")
        length = constants[argument] if argument in constants else int(argument or 0)
        offset = sizes[which]
        if what == "NUMBER":
            records[which].numbers[name] = offset
            sizes[which] += _NUMBER
        elif what == "SERIES":
            records[which].series[name] = offset, length
            sizes[which] += _NUMBER * length
        else:
            records[which].texts[name] = offset, length
            sizes[which] += length
    header, core, program = (
        Record(r.numbers, r.series, r.texts, sizes[which]) for which, r in records.items()
    )
    return Layout(constants["REGISTRY_VERSION"], header, core, program, tuple(statuses))


LAYOUT: Final = parse(Path(__file__).with_name("layout.inc").read_text(encoding="utf-8"))
