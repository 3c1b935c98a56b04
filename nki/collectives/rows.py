"""The table of collectives: their documented parameters, and what they demand.

None has a meaning of its own: ranks are recorded one by one, and `nki.merging.collectives` says
what copies and sums a collective becomes when their recordings are merged.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from nki.collectives import rules
from nki.isa import convert
from nki.isa.rows.common import SBUF, on
from nki.isa.rows.hidden import COMBINED
from nki.isa.spec import ANY_DTYPE, HBM, Attribute, Instruction, Kind, Operand, Role, Rule

__all__ = ["ROWS"]

_ANYWHERE = HBM | SBUF
_GROUP = Attribute("replica_group", rules.group)
_DIM = Attribute("collective_dim", convert.integer(0))
_OP = Attribute("op", convert.op("add", "minimum", "maximum"))
_CHANNELS = Attribute("channel_ids", rules.sequence_of_channels, (0,))
_KNOWN = Attribute("recv_counts_known", convert.flag, False)  # noqa: FBT003 (the default value)
_DISPLACED = Attribute("has_rdispls", convert.flag, False)  # noqa: FBT003
_LAST = (
    Attribute("priority", convert.optional(convert.integer(0, 3)), None),
    convert.NAME,
)
_METADATA = Operand(
    "metadata_tensor",
    Role.READWRITE,
    regions=_ANYWHERE,
    dtypes=frozenset({"uint32"}),
    any_start=True,
)


def _row(
    name: str,
    *parameters: Operand | Attribute,
    also: tuple[Rule, ...],
) -> Instruction:
    return Instruction(
        name, (*parameters, *_LAST), on("dma"), None, None, (rules.PRIORITY, *also)
    )  # fmt: skip


def _lists(
    *names: str, dtypes: Any = ANY_DTYPE, regions: frozenset[str] = HBM
) -> tuple[Operand, ...]:
    """Return lists of tensors; the last one is written."""
    return tuple(
        Operand(
            name,
            Role.WRITE if name == names[-1] else Role.READ,
            Kind.TILES,
            regions=regions,
            dtypes=dtypes,
            any_start=True,
        )
        for name in names
    )


_BOTH = ("srcs", "dsts")
_MEMORY = rules.hbm_or_sbuf(*_BOTH)
_RING = ("srcs_by_channel", "dsts_by_channel")
_RING_SUM = ("srcs0_by_channel", "srcs1_by_channel", "dsts_by_channel")
_FLAT = (rules.one_tensor(*_BOTH), rules.same_lists(*_BOTH), *rules.metadata)

_ALL = (
    _row(
        "all_reduce",
        *_lists(*_BOTH, dtypes=COMBINED, regions=_ANYWHERE),
        _GROUP,
        _OP,
        also=(rules.same_lists(*_BOTH), *_MEMORY, rules.same_shapes),
    ),
    _row(
        "all_gather",
        *_lists(*_BOTH, regions=_ANYWHERE),
        _GROUP,
        _DIM,
        also=(
            rules.same_lists(*_BOTH),
            *_MEMORY,
            rules.allowed_dim((0,), (0, 1)),
            rules.gathered,
        ),
    ),
    _row(
        "all_gather_v",
        *_lists(*_BOTH),
        _GROUP,
        _METADATA,
        _KNOWN,
        _DISPLACED,
        also=(
            *_FLAT,
            rules.no_displacements("leave has_rdispls out, as documented", (2, 3, 4)),
        ),
    ),
    _row(
        "reduce_scatter",
        *_lists(*_BOTH, dtypes=COMBINED, regions=_ANYWHERE),
        _GROUP,
        _DIM,
        _OP,
        also=(
            rules.same_lists(*_BOTH),
            *_MEMORY,
            rules.allowed_dim((0,), (0,)),
            rules.scattered,
        ),
    ),
    _row(
        "all_to_all",
        *_lists(*_BOTH),
        _GROUP,
        _DIM,
        also=(
            rules.same_lists(*_BOTH),
            rules.allowed_dim((0,), ()),
            rules.same_shapes,
            rules.split,
        ),
    ),
    _row(
        "all_to_all_v",
        *_lists(*_BOTH),
        _GROUP,
        _METADATA,
        _KNOWN,
        _DISPLACED,
        also=(
            *_FLAT,
            rules.no_displacements("build for trn3, or leave has_rdispls out", (2, 3)),
        ),
    ),
    _row(
        "collective_permute",
        *_lists(*_BOTH),
        Attribute("source_target_pairs", rules.pairs),
        also=(rules.one_tensor(*_BOTH), rules.same_lists(*_BOTH), rules.same_shapes),
    ),
    _row(
        "collective_permute_implicit",
        *_lists(*_RING, regions=_ANYWHERE),
        _GROUP,
        _CHANNELS,
        also=(rules.channels(*_RING), rules.same_lists(*_RING), rules.same_shapes),
    ),
    _row(
        "collective_permute_implicit_reduce",
        *_lists(*_RING_SUM, dtypes=COMBINED, regions=_ANYWHERE),
        _GROUP,
        _OP,
        _CHANNELS,
        also=(rules.channels(*_RING_SUM), rules.same_lists(*_RING_SUM), rules.same_shapes),
    ),
)
ROWS: Mapping[str, Instruction] = MappingProxyType({row.name: row for row in _ALL})
