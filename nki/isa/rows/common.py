"""Short names for writing rows, and the two ways in which a meaning reads an operand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nki.dtypes import NAMES, info
from nki.isa.cast import Array, bit_pattern, to_float32
from nki.isa.spec import GENERATIONS, REQUIRED, Engines, Kind, Operand, Role
from nki.isa.state import Step

__all__ = [
    "FLOATS",
    "INTEGERS",
    "NUMERIC",
    "SBUF",
    "flat",
    "number_or_vector",
    "on",
    "raw",
    "read",
    "source",
    "target",
    "vector",
]

Arrays = Mapping[str, Any]

NUMERIC = frozenset(name for name in NAMES if not info(name).is_packed)
INTEGERS = frozenset(name for name in NAMES if info(name).is_int)
FLOATS = frozenset(name for name in NUMERIC if info(name).is_float) - {"float8_e8m0fnu"}
FLOAT32 = frozenset({"float32"})
SBUF = frozenset({"sbuf"})
PSUM = frozenset({"psum"})


def source(name: str, dtypes: frozenset[str] | None = NUMERIC, **more: Any) -> Operand:
    """Make an operand that is read."""
    return Operand(name, Role.READ, dtypes=dtypes, **more)


def target(name: str = "dst", dtypes: frozenset[str] | None = NUMERIC, **more: Any) -> Operand:
    """Make an operand that is written."""
    return Operand(name, more.pop("role", Role.WRITE), dtypes=dtypes, **more)


def vector(name: str, dtypes: frozenset[str] | None = NUMERIC, **more: Any) -> Operand:
    """Make an operand of one element per partition."""
    return Operand(name, more.pop("role", Role.READ), Kind.VECTOR, dtypes=dtypes, **more)


def number_or_vector(name: str, default: Any = REQUIRED, **more: Any) -> Operand:
    """Make an operand that is a number or has one element per partition."""
    more.setdefault("dtypes", NUMERIC)
    return Operand(name, Role.READ, Kind.SCALAR_OR_VECTOR, default=default, **more)


def on(*engines: str, first: int = 2, choose: Any = None, **by_version: tuple[str, ...]) -> Engines:
    """Say which engines run an instruction: `engines` from a generation on, but ``v3=(...)``."""
    allowed = dict.fromkeys((g for g in GENERATIONS if g >= first), engines)
    for version, names in by_version.items():
        allowed[int(version[1:])] = names
    return Engines(allowed, choose)


def flat(value: Array) -> Array:
    """Return (partitions, elements per partition)."""
    return value.reshape(value.shape[0], -1) if value.ndim else value.reshape(1, 1)


def read(step: Step, operands: Arrays, name: str) -> Array:
    """Return an operand as the float32 engines read it: shape (P, F), or (1, 1) for a number."""
    value = operands[name]
    if name in step.dtypes:
        return flat(to_float32(value, step.dtypes[name]))
    return flat(np.asarray(value).astype(np.float32))


def raw(step: Step, operands: Arrays, name: str) -> Array:
    """Return an operand's items so that writing them keeps every bit: shape (P, F)."""
    value = flat(operands[name])
    return bit_pattern(value) if step.dtypes[name] == "tfloat32" else value


def copied(step: Step, operands: Arrays, name: str, dst: str = "dst") -> Array:
    """Return what a copy to `dst` writes: the same bits if the types agree, else float32."""
    if step.dtypes[name] == step.dtypes[dst]:
        return raw(step, operands, name)
    return read(step, operands, name)
