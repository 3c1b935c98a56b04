"""Where the ranks of a job are, which links lie between them, and what is public about those."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neuronxcc.perf.graphs.collectives import Reach, collective_us, place_of, reach_of
from neuronxcc.targets import DEFAULT_TARGET, TARGETS, Instance, Target, get_target
from torch_neuronx.distributed.planning.errors import PlanError

# Names of what the ranks of a group share, from near to far, with the link that then limits it.
LINKS = {"core": "none", "chip": "HBM", "instance": "chip to chip", "network": "EFA"}


DEFAULT_INSTANCE = get_target(DEFAULT_TARGET).instances[0].name


def instance_names() -> tuple[str, ...]:
    """Every instance type that is known."""
    return tuple(instance.name for target in TARGETS for instance in target.instances)


@dataclass(frozen=True, slots=True)
class Placement:
    """A job on instances of one type: consecutive ranks fill an instance, and chips, in order."""

    target: Target
    instance: Instance
    lnc: int
    world_size: int
    ranks_per_instance: int

    @classmethod
    def of(
        cls, world_size: int, instance: str, lnc: int | None, ranks_per_instance: int | None
    ) -> Placement:
        """Place a job.

        Raises:
            PlanError: There is no such instance type, or it cannot hold so many ranks.
        """
        for target in TARGETS:
            for known in target.instances:
                if known.name == instance:
                    return cls._on(target, known, world_size, lnc, ranks_per_instance)
        raise PlanError(f"unknown instance type {instance!r}; known: {', '.join(instance_names())}")

    @classmethod
    def _on(
        cls,
        target: Target,
        instance: Instance,
        world_size: int,
        lnc: int | None,
        ranks_per_instance: int | None,
    ) -> Placement:
        lnc = target.default_lnc if lnc is None else lnc
        if lnc not in target.supported_lnc:
            allowed = ", ".join(map(str, target.supported_lnc))
            raise PlanError(f"lnc={lnc}: {target.name} groups its cores by {allowed}")
        cores = instance.chips * target.logical_cores_per_chip(lnc)
        each = cores if ranks_per_instance is None else ranks_per_instance
        if not 1 <= each <= cores:
            raise PlanError(f"{each} ranks on {instance.name}, which has {cores} logical cores")
        if world_size < 1:
            raise PlanError(f"world_size={world_size}: a job has at least one rank")
        return cls(target, instance, lnc, world_size, each)

    @property
    def instances(self) -> int:
        """How many instances the job takes."""
        return -(-self.world_size // self.ranks_per_instance)

    @property
    def cores_per_chip(self) -> int:
        """Logical cores of a chip."""
        return self.target.logical_cores_per_chip(self.lnc)

    @property
    def hbm_bytes(self) -> int:
        """Memory of a logical core."""
        return self.target.hbm_bytes_per_logical_core(self.lnc)

    def instance_of(self, rank: int) -> int:
        """Which instance a rank is on."""
        return self.chip_of(rank)[0]

    def chip_of(self, rank: int) -> tuple[int, int]:
        """Which chip of which instance a rank is on."""
        return place_of(rank, self.ranks_per_instance, self.cores_per_chip)

    def span(self, ranks: Sequence[int]) -> str:
        """The level that the ranks of a group share: `core`, `chip`, `instance` or `network`."""
        if len(ranks) == 1:
            return "core"
        if len({self.instance_of(rank) for rank in ranks}) > 1:
            return "network"
        return "instance" if len({self.chip_of(rank) for rank in ranks}) > 1 else "chip"

    def reach(self, ranks: Sequence[int]) -> Reach:
        """Where the ranks of a group are, for the table of collectives."""
        places = [self.chip_of(rank) for rank in ranks]
        each, network = self.ranks_per_instance, self.instance.network_gbit
        return reach_of(places, self.cores_per_chip, each, network)

    def seconds(self, kind: str, size: int, ranks: Sequence[int]) -> float | None:
        """Bound the time of a collective on hardware from published numbers, `None` without any.

        `neuronxcc.perf.graphs.collectives` says of what it is made.
        """
        if self.target.collectives is None:
            return None
        us = collective_us(kind, size, self.reach(ranks), self.target)
        return None if us is None else us * 1e-6
