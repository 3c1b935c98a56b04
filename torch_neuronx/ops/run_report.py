"""The portability report of a run: the counts of the native core, seen through the table."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .entry import Engine, base_name
from .lookup import Status, verdict
from .modes import get_portability
from .text import table

if TYPE_CHECKING:
    from .table import Policy

_CARRIED_REMEDY = "use int32, or --native-int64=enabled on trn2 and newer; exact below 2^31"


@dataclass(frozen=True, slots=True)
class OperatorUse:
    """Calls of one operator with one dtype in this process.

    `op` is the base name, `dtype` the one that was checked, `engine` where a NeuronCore runs it
    ("host" if it does not), `code` a documented compiler code or "".
    """

    op: str
    dtype: str
    calls: int
    engine: Engine
    status: Status
    code: str
    reason: str
    remedy: str


def summarize(counts: list[tuple[str, str, int, bool]], policy: Policy) -> list[OperatorUse]:
    """Counts of the native core by base name, those that are not native first, then by calls."""
    calls: Counter[tuple[str, str]] = Counter()
    for op, dtype, number, _ in counts:
        calls[base_name(op), dtype] += number
    uses: list[OperatorUse] = []
    for (op, dtype), number in calls.items():
        found = verdict(op, dtype, policy)
        gap = found.gap
        carried = found.status is Status.CARRIED
        uses.append(
            OperatorUse(
                op,
                dtype,
                number,
                found.engine,
                found.status,
                gap.code if gap else "",
                gap.reason if gap else f"{dtype} is carried in 32 bits" if carried else "",
                gap.remedy if gap else _CARRIED_REMEDY if carried else "",
            )
        )
    rank = {Status.HOST: 0, Status.GAP: 0, Status.CARRIED: 1}
    return sorted(uses, key=lambda use: (rank.get(use.status, 2), -use.calls, use.op, use.dtype))


def format_uses(uses: list[OperatorUse], policy: Policy, *, width: int = 100) -> str:
    """A summary line, and a table of what ran on the host or with truncated integers."""
    title = f"Portability report: {policy.target}, mode {get_portability()}"
    total = sum(use.calls for use in uses)
    if total == 0:
        return f"{title}\nNo operator ran on the device."
    host = [use for use in uses if use.status in {Status.HOST, Status.GAP}]
    carried = [use for use in uses if use.status is Status.CARRIED]
    off, narrow = sum(use.calls for use in host), sum(use.calls for use in carried)
    lines = [
        title,
        (
            f"{total:,} operator calls: {_share(total - off - narrow, total)} as they are on a "
            f"NeuronCore,\n{_share(narrow, total)} with 64-bit integers in 32 bits, "
            f"{_share(off, total)} on the host"
        ),
    ]
    if not host and not carried:
        return "\n".join(lines)
    rows = [
        [
            use.op,
            use.dtype,
            f"{use.calls:,}",
            use.engine if use.status is Status.CARRIED else "host",
            f"NCC_{use.code}" if use.code else "-",
            f"{use.reason}: {use.remedy}" if use.status is not Status.CARRIED else "32 bits",
        ]
        for use in (*host, *carried)
    ]
    lines.append("")
    lines.append(
        table(
            ["operator", "dtype", "calls", "runs on", "code", "reason and remedy"],
            rows,
            width=width,
            numbers="calls",
        )
    )
    if carried:
        lines.append(f"32 bits: {_CARRIED_REMEDY}")
    return "\n".join(lines)


def _share(part: int, total: int) -> str:
    return f"{part:,} ({100 * part / total:.1f} %)"
