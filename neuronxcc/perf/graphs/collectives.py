"""How long collectives between cores take: bytes over links, hops, and a floor that has an era.

The published numbers come from different years, instances and versions of the runtime, and differ
by a factor of ten for small payloads. So no constant is used across them: an era has its own, and a
result says which era it is of.
"""

from __future__ import annotations

import csv
import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Final, NamedTuple

import numpy as np

from neuronxcc.targets import CollectiveFacts, Target, get_target

__all__ = [
    "DEFAULT_ERA",
    "ERAS",
    "SENT",
    "Measured",
    "Reach",
    "collective_us",
    "measured",
    "place_of",
    "reach_of",
]

# What every rank sends in a group of n, as a multiple of the bytes of the whole payload: what a
# ring does, and what no algorithm that uses each link once can be below.
SENT: Final[Mapping[str, Callable[[int], float]]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "gather": lambda n: 1 / n,
    "scatter": lambda n: (n - 1) / n,
    "broadcast": lambda n: (n - 1) / n,
    "reduce": lambda n: (n - 1) / n,
    "send": lambda _: 1.0,
    "recv": lambda _: 0.0,
    "barrier": lambda _: 0.0,
}


#: By era, where its times are from.
ERAS: Final[dict[str, str]] = {
    "models": "bytes, hops, and the parameter collective_floor, which the times of whole models of "
    "2023 to 2025 chose",
    "documented": "bytes and hops alone (intranode-collective-comm.rst, "
    "internode-collective-comm.rst)",
    "measured": "the examples of nccom-test.rst where there is one of a group of the same size, "
    "else as documented",
}
DEFAULT_ERA: Final = "models"


class Reach(NamedTuple):
    """Where the ranks of a group are.

    Attributes:
        ranks: of the group.
        chips: that they are on.
        hosts: that they are on.
        on_chip: the most of them on one chip.
        on_host: the most of them on one instance.
        cores_per_chip: logical ones.
        ranks_per_host: of the job.
        network_gbit: of an instance, None if that is not published.
    """

    ranks: int
    chips: int
    hosts: int
    on_chip: int
    on_host: int
    cores_per_chip: int
    ranks_per_host: int
    network_gbit: float | None = None


def place_of(rank: int, ranks_per_host: int, cores_per_chip: int) -> tuple[int, int]:
    """Return which chip of which instance a rank is on: ranks fill cores in order."""
    host, local = divmod(rank, ranks_per_host)
    return host, local // cores_per_chip


def reach_of(
    places: Sequence[tuple[int, int]],
    cores_per_chip: int,
    ranks_per_host: int,
    network_gbit: float | None,
) -> Reach:
    """Return where the ranks of a group are, from each one's instance and chip."""
    chips, hosts = Counter(places), Counter(host for host, _ in places)
    return Reach(
        ranks=len(places),
        chips=len(chips),
        hosts=len(hosts),
        on_chip=max(chips.values()),
        on_host=max(hosts.values()),
        cores_per_chip=cores_per_chip,
        ranks_per_host=ranks_per_host,
        network_gbit=network_gbit,
    )


def collective_us(
    kind: str,
    nbytes: int,
    reach: Reach,
    target: Target,
    *,
    era: str = "documented",
    floor_us: float = 0.0,
) -> float | None:
    """Return the microseconds of a collective; None where nothing is published about a link.

    It is what the bytes need on the slowest link at its full published rate, while all groups of
    the same kind (those that the other ranks are in) do the same; a hop for each step of the
    algorithm that the runtime chooses by size; in the era "models" also the floor. Queues, other
    traffic, and what overlaps with it are left out.

    Args:
        kind: "all_reduce" and so on.
        nbytes: of the whole payload: what an all-gather puts together, what a reduction reduces.
        reach: where the ranks are.
        target: the chip. Hops are those of trn2, the only one that they are published of.
        era: a name in `ERAS`.
        floor_us: what a collective costs beyond its bytes and hops in the era "models".
    """
    if reach.ranks == 1:
        return 0.0
    kind = "send" if kind == "recv" else kind  # it takes as long
    if era == "measured":
        found = measured(kind, reach.ranks, reach.hosts)
        if found is not None:
            return found.us(nbytes)
    moved = _transfer_us(nbytes * SENT[kind](reach.ranks), reach, target)
    if moved is None:
        return None
    facts = target.collectives or get_target("trn2").collectives
    assert facts is not None
    floor = floor_us if era == "models" else 0.0
    return floor + moved + _hops_us(nbytes, reach, facts)


def _transfer_us(sent: float, reach: Reach, target: Target) -> float | None:
    """Bytes are written once and read once by each rank of a chip."""
    found = 2 * sent * reach.cores_per_chip / target.hbm_gbps
    if reach.chips > 1:
        groups = reach.cores_per_chip / reach.on_chip
        found = max(found, sent * groups / target.link.chip_gbps)
    if reach.hosts > 1:
        if reach.network_gbit is None:
            return None
        groups = reach.ranks_per_host / reach.on_host
        found = max(found, sent * groups / (reach.network_gbit / 8))
    return found / 1e3


def _hops_us(nbytes: int, reach: Reach, facts: CollectiveFacts) -> float:
    if nbytes < facts.mesh_below_bytes:
        hops: float = 1
    elif nbytes < facts.halving_below_bytes:
        hops = math.ceil(math.log2(max(reach.on_host, 2)))
    else:
        hops = max(reach.on_host / 2, 1)
    return hops * facts.hop_us + (reach.hosts - 1) * facts.network_hop_us


class Measured(NamedTuple):
    """The published example of a group: what it took by size.

    Attributes:
        era: "older" or "newer", of the example.
        sizes: bytes, ascending.
        times: microseconds.
    """

    era: str
    sizes: tuple[int, ...]
    times: tuple[float, ...]

    def us(self, nbytes: int) -> float:
        """Between two sizes on the line through them; beyond the last at the last one's rate."""
        if nbytes > self.sizes[-1]:
            return self.times[-1] * nbytes / self.sizes[-1]
        return float(np.interp(nbytes, self.sizes, self.times))


def measured(kind: str, ranks: int, hosts: int) -> Measured | None:
    """Return the newest published example of a collective of a group of that size."""
    rows = [r for r in _rows() if r[:3] == (kind, ranks, hosts)]
    if not rows:
        return None
    era = min(row[3] for row in rows)  # "newer" comes before "older"
    points = sorted((row[4], row[5]) for row in rows if row[3] == era)
    return Measured(era, tuple(size for size, _ in points), tuple(us for _, us in points))


@functools.cache
def _rows() -> tuple[tuple[str, int, int, str, int, float], ...]:
    text = resources.files(__package__).joinpath("collectives.csv").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return tuple(
        (
            row["kind"],
            int(row["ranks"]),
            int(row["hosts"]),
            row["era"],
            int(row["bytes"]),
            float(row["us"]),
        )
        for row in csv.DictReader(lines)
    )


def markdown() -> str:
    """Return the table of eras as the page docs/estimate.md has it."""
    lines = ["| Era | Where its times are from |", "|---|---|"]
    lines += [f"| `{name}` | {text} |" for name, text in ERAS.items()]
    return "\n".join(lines) + "\n"
