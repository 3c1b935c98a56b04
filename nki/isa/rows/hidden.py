"""Instructions that recordings hold besides the documented ones.

- ``fill`` sets any memory to a number.
- ``register_alu`` is Python's arithmetic on a register; its 32 bits wrap around.
- ``device_print`` prints a tensor.
- ``combine`` folds a list of tensors of one type, element by element, from the first to the last:
  what a reduction across ranks is. ``dst`` may be one of the sources, whole, and overlaps no other.
- ``counted_copy`` copies as many elements as a tensor says, between tensors that count as flat:
  ``dst[dst_at : dst_at + count] = src[src_at : src_at + count]``. The other elements of ``dst``
  keep their value. ``count`` and the positions are uint32 tensors of one element, or numbers.
  A count above ``most``, or a chunk that leaves ``src`` or ``dst``, stops the kernel (NKI320).

The last two are what collectives become when the recordings of several ranks are merged; their
other copies are ``dma_copy``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from nki.dtypes import info
from nki.errors import NkiError
from nki.isa import convert
from nki.isa.alu import ALU
from nki.isa.cast import Array, bit_pattern, to_float32, to_integer
from nki.isa.rows.common import NUMERIC, Arrays, on, raw, source, target
from nki.isa.spec import (
    ANY_DTYPE,
    HBM,
    ON_CHIP,
    REGISTER,
    Attribute,
    Instruction,
    Kind,
    Operand,
    Role,
)
from nki.isa.state import Step
from nki.memory import sentinel_bytes

__all__ = ["COMBINED", "REGISTER_OPERATORS", "ROWS", "SENTINEL"]

# A fill with what memory holds that nothing has written.
SENTINEL = "sentinel"


def _value(given: Any) -> Any:
    return given if given == SENTINEL else convert.number(given)


def _fill(step: Step, operands: Arrays, attributes: Mapping[str, Any]) -> dict[str, Array]:
    dst, value = operands["dst"], attributes["value"]
    if value == SENTINEL:
        item = np.frombuffer(sentinel_bytes(step.dtypes["dst"]), dst.dtype)
        if step.dtypes["dst"] == "tfloat32":
            item = bit_pattern(item)
        return {"dst": np.broadcast_to(item, dst.shape)}
    if info(step.dtypes["dst"]).is_packed:
        return {"dst": np.zeros(dst.shape, dst.dtype)}
    return {"dst": np.full(dst.shape, value, np.int64 if isinstance(value, int) else np.float32)}


def _register_alu(step: Step, operands: Arrays, attributes: Mapping[str, Any]) -> dict[str, Array]:
    del step
    a, b = (np.asarray(operands[name], np.int64).reshape(1, 1) for name in ("a", "b"))
    word = REGISTER_OPERATORS[attributes["op"]](a, b) & 0xFFFFFFFF
    return {"dst": word.astype(np.uint32).view(np.int32)}


def _combine(step: Step, operands: Arrays, attributes: Mapping[str, Any]) -> dict[str, Array]:
    function = ALU[attributes["op"]].function
    kind = info(step.dtypes["dst"])
    total: Array | None = None
    for i, value in enumerate(operands["srcs"]):
        flat = value.reshape(-1)
        # Sums of integers are exact, and saturated once, when they are written.
        term = to_integer(flat) if kind.is_int else to_float32(flat, step.dtypes[f"srcs[{i}]"])
        total = term if total is None else function(total, term)
    assert total is not None
    return {"dst": total}


def _counted_copy(step: Step, operands: Arrays, attributes: Mapping[str, Any]) -> dict[str, Array]:
    dst = np.array(raw(step, operands, "dst")).reshape(-1)
    src = raw(step, operands, "src").reshape(-1)
    count, start, to = (int(operands[name].reshape(-1)[0]) for name in _POSITIONS)
    for what, end, limit in (
        ("copies", count, attributes["most"]),
        ("reads its source up to", start + count, src.size),
        ("writes its destination up to", to + count, dst.size),
    ):
        if end > limit:
            raise NkiError(
                "NKI320",
                f"a chunk of a collective {what} {end} elements, and there are {limit}",
                "correct the counts and displacements in the metadata tensor",
            )
    dst[to : to + count] = src[start : start + count]
    return {"dst": dst}


# What registers compute. The low bits do not depend on the bits above, so 64 are enough.
REGISTER_OPERATORS: Mapping[str, Any] = MappingProxyType(
    {"add": np.add, "subtract": np.subtract, "multiply": np.multiply}
)
_POSITIONS = ("count", "src_at", "dst_at")
_ANYWHERE = HBM | ON_CHIP
COMBINED = NUMERIC - {"bool_", "float8_e8m0fnu"}  # what has a sum


def _position(name: str) -> Operand:
    return Operand(
        name,
        Role.READ,
        Kind.SCALAR_OR_TILE,
        regions=_ANYWHERE,
        dtypes=frozenset({"uint32"}),
        any_start=True,
    )


ROWS = (
    Instruction(
        "combine",
        (
            target(dtypes=COMBINED, regions=_ANYWHERE, any_start=True),
            source("srcs", COMBINED, kind=Kind.TILES, regions=_ANYWHERE, any_start=True),
            Attribute("op", convert.op("add", "minimum", "maximum")),
        ),
        on("dma"),
        _combine,
    ),
    Instruction(
        "counted_copy",
        (
            target(dtypes=ANY_DTYPE, role=Role.READWRITE, regions=_ANYWHERE, any_start=True),
            source("src", ANY_DTYPE, regions=_ANYWHERE, any_start=True),
            *map(_position, _POSITIONS),
            Attribute("most", convert.integer(0)),
        ),
        on("dma"),
        _counted_copy,
    ),
    Instruction(
        "fill",
        (
            target(dtypes=ANY_DTYPE, regions=HBM | ON_CHIP, any_start=True),
            Attribute("value", _value),
        ),
        on("dma"),
        _fill,
    ),
    Instruction(
        "register_alu",
        (
            Operand("dst", Role.WRITE, Kind.REGISTER, REGISTER),
            Operand("a", Role.READ, Kind.REGISTER_OR_INT, REGISTER),
            Operand("b", Role.READ, Kind.REGISTER_OR_INT, REGISTER),
            Attribute("op", convert.op(*REGISTER_OPERATORS)),
        ),
        on("sync"),
        _register_alu,
    ),
    Instruction(
        "device_print",
        (
            source("src", ANY_DTYPE, regions=HBM | ON_CHIP, any_start=True),
            Attribute("prefix", str),
        ),
        on("sync"),
        None,
    ),
)
