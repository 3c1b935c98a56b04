"""Collectives of device programs: where the ranks of a job are, and how long they take together.

Cores of their own move the bytes, beside the engines of a core (`exchanged.py`). Their times are
those of `neuronxcc.perf.graphs.collectives`, by bytes and by links between the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.perf.graphs.collectives import DEFAULT_ERA, collective_us, place_of, reach_of
from neuronxcc.perf.graphs.parameters import GraphParameters
from neuronxcc.targets import Instance, Target

__all__ = ["COLLECTIVES", "Job"]

#: By operator, as the table of times names it.
COLLECTIVES = {
    Op.ALL_REDUCE: "all_reduce",
    Op.ALL_GATHER: "all_gather",
    Op.REDUCE_SCATTER: "reduce_scatter",
    Op.ALL_TO_ALL: "all_to_all",
    Op.COLLECTIVE_BROADCAST: "broadcast",
    Op.COLLECTIVE_PERMUTE: "send",
}


@dataclass(frozen=True, slots=True)
class Job:
    """The job that a program is one rank of. Ranks fill cores, chips and instances in order.

    Attributes:
        ranks: how many there are.
        target: the chip.
        lnc: physical cores of a logical one.
        instance: of which type the instances are; the chip's largest if None.
        ranks_per_instance: all logical cores of an instance if 0.
        era: which times: a name in `neuronxcc.perf.graphs.collectives.ERAS`.
        parameters: of the model of graphs, which has what a collective costs besides.
    """

    ranks: int
    target: Target
    lnc: int
    instance: Instance | None = None
    ranks_per_instance: int = 0
    era: str = DEFAULT_ERA
    parameters: GraphParameters = field(default_factory=GraphParameters)

    def us(self, node: Node) -> float | None:
        """Return the microseconds of a collective; None where nothing is published about a link.

        All groups of a collective do the same at the same time, so the slowest of them counts.
        """
        kind = COLLECTIVES[node.op]
        # What an all-gather puts together; of the others what a rank brings.
        nbytes = node.type.nbytes if node.op is Op.ALL_GATHER else node.srcs[0].type.nbytes
        times = [self._group_us(kind, nbytes, ranks) for ranks in self._groups(node)]
        known = [us for us in times if us is not None]
        return max(known, default=0.0) if len(known) == len(times) else None

    def _groups(self, node: Node) -> Sequence[Sequence[int]]:
        if node.op is Op.COLLECTIVE_PERMUTE:
            return [sorted({*pair}) for pair in node["pairs"]]
        found: Sequence[Sequence[int]] = node["group"]
        return found or [range(self.ranks)]

    def _group_us(self, kind: str, nbytes: int, ranks: Sequence[int]) -> float | None:
        instance = self.instance or max(self.target.instances, key=lambda one: one.chips)
        chip = self.target.logical_cores_per_chip(self.lnc)
        each = self.ranks_per_instance or instance.chips * chip
        places = [place_of(rank, each, chip) for rank in ranks]
        reach = reach_of(places, chip, each, instance.network_gbit)
        return collective_us(
            kind, nbytes, reach, self.target, era=self.era,
            floor_us=self.parameters.collective_floor,
        )  # fmt: skip
