"""Questions to the table: the entry of an operator, and the verdict for a dtype and target."""

from __future__ import annotations

import enum
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .entry import ANY, DTYPE_NUMBER, EVERY, WIDE_INTS, Basis, Engine, Gap
from .gaps import DTYPE_GAPS, NOT_IN_TABLE
from .table import ROWS, Policy

if TYPE_CHECKING:
    from collections.abc import Mapping


class Status(enum.StrEnum):
    """The fate of one operator with one dtype on one target."""

    NATIVE = "native"  # a NeuronCore executes it in that dtype
    CARRIED = "carried"  # executes with the 64-bit integers held in 32 bits: exact below 2^31
    GAP = "gap"  # a NeuronCore has the operator, not with this dtype
    HOST = "host"  # no NeuronCore executes it in any dtype
    UNDEFINED = "undefined"  # PyTorch itself defines no such operator for the dtype


@dataclass(frozen=True, slots=True)
class Entry:
    """One operator of the table: `name` is its base name, the rest is that of its `Row`."""

    name: str
    family: str
    engine: Engine
    basis: Basis
    dtypes: int
    gaps: tuple[Gap, ...]
    note: str
    composite: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer for one operator, dtype and target; `gap` is what is in the way, if anything."""

    status: Status
    engine: Engine
    gap: Gap | None = None

    @property
    def on_neuron_core(self) -> bool:
        """Return whether a NeuronCore executes it; undefined dtypes are left to PyTorch."""
        return self.status in {Status.NATIVE, Status.CARRIED, Status.UNDEFINED}


@functools.cache
def entries() -> Mapping[str, Entry]:
    """Every entry by base name, in the order of the rows. Made at the first call."""
    return {
        name: Entry(
            name,
            row.family,
            row.engine,
            row.basis,
            row.dtypes,
            row.gaps,
            row.note,
            row.composite,
        )
        for row in ROWS
        for name in row.names.split()
    }


def entry_or_unknown(name: str) -> Entry:
    """The entry of a base name; for one that is not listed an entry that says `host`."""
    found = entries().get(name)
    if found is None:
        found = Entry(
            name,
            "unlisted",
            Engine.HOST,
            Basis.DERIVED,
            ANY,
            (NOT_IN_TABLE,),
            "not in the operator table",
            composite=False,
        )
    return found


def verdict(name: str, dtype: str, policy: Policy) -> Verdict:
    """Return the fate of the operator `name` (a base name) with `dtype` ("float32", no prefix).

    An empty or unknown dtype stands for "no tensor": only host-only operators are refused then.
    """
    entry = entry_or_unknown(name)
    if entry.engine is Engine.HOST:
        return Verdict(Status.HOST, Engine.HOST, entry.gaps[0])
    bit = 1 << DTYPE_NUMBER[dtype] if dtype in DTYPE_NUMBER else 0
    if bit == 0 or entry.dtypes == EVERY:
        return Verdict(Status.NATIVE, entry.engine)
    for gap in (*DTYPE_GAPS, *(gap for gap in entry.gaps if policy.enforces(gap))):
        if gap.dtypes & bit and gap.holds_on(policy.target):
            return Verdict(Status.GAP, Engine.HOST, gap)
    status = Status.NATIVE
    if not entry.dtypes & bit:
        status = Status.UNDEFINED
    elif bit & WIDE_INTS and not policy.native_int64:
        status = Status.CARRIED
    return Verdict(status, entry.engine)


def executed_dtypes(name: str, policy: Policy) -> int:
    """Bit mask of the dtypes for which the verdict is native or carried."""
    mask = 0
    for dtype, number in DTYPE_NUMBER.items():
        if verdict(name, dtype, policy).status in {Status.NATIVE, Status.CARRIED}:
            mask |= 1 << number
    return mask
