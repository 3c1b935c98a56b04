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
    matmul,
    microscale,
    random,
    reduce,
    search,
    select,
    stats,
)
from nki.isa.spec import Instruction

__all__ = ["TABLE"]

_FAMILIES = (
    copy, dma, matmul, microscale, elementwise, reduce, activate, select, gather, search, stats,
    random, control,
)  # fmt: skip

TABLE: Mapping[str, Instruction] = MappingProxyType(
    {row.name: row for family in _FAMILIES for row in family.ROWS}
)
