"""The instruction table: every documented function of `nki.isa`, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from nki.isa.rows import (
    activate,
    control,
    copy,
    dma,
    elementwise,
    gather,
    hidden,
    matmul,
    microscale,
    random,
    reduce,
    search,
    select,
    stats,
)
from nki.isa.spec import Instruction

__all__ = ["HIDDEN", "TABLE"]

_FAMILIES = (
    copy, dma, matmul, microscale, elementwise, reduce, activate, select, gather, search, stats,
    random, control,
)  # fmt: skip

TABLE: Mapping[str, Instruction] = MappingProxyType(
    {row.name: row for family in _FAMILIES for row in family.ROWS}
)

# What recordings hold besides: no function of `nki.isa` issues them.
HIDDEN: Mapping[str, Instruction] = MappingProxyType({row.name: row for row in hidden.ROWS})
