"""What the operations are predicted to take on an instance, from published rates and hops.

Nothing runs for it: `neuronxcc.perf.graphs.collectives` says of what a time is made. It is what
links need for the bytes and a hop for each step, so the truth is more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neuron_tools.machine import ToolError
from neuron_tools.nccom.operations import Operation
from neuronxcc.machine import MachineConfigError, named_lnc
from neuronxcc.perf.graphs.collectives import collective_us, place_of, reach_of
from neuronxcc.targets import TARGETS, Instance, Target

ERA = "documented"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the ranks would be: on the first cores of an instance, in order."""

    target: Target
    instance: Instance
    lnc: int

    @property
    def source(self) -> str:
        """Whose times these are, in a sentence."""
        hops = "" if self.target.collectives else "; hops of trn2, no others are published"
        return (
            f"predicted for {self.instance.name} at LNC={self.lnc}: published bandwidths and hops, "
            f"without queues and software{hops}; nothing was run"
        )

    def us(self, operation: Operation, nbytes: int, groups: Sequence[Sequence[int]]) -> float:
        """Return the microseconds of the slowest of groups that work at the same time.

        Args:
            operation: What they do.
            nbytes: Of each group's whole payload.
            groups: Ranks; of a message its sender and its receiver.
        """
        per_chip = self.target.logical_cores_per_chip(self.lnc)
        on_instance = self.instance.chips * per_chip
        times = [0.0]
        for ranks in {tuple(dict.fromkeys(group)) for group in groups}:
            places = [place_of(rank, on_instance, per_chip) for rank in ranks]
            reach = reach_of(places, per_chip, on_instance, self.instance.network_gbit)
            found = collective_us(operation.kind, nbytes, reach, self.target, era=ERA)
            assert found is not None, "only what lies between instances may be unknown"
            times.append(found)
        return max(times)


def on(name: str, ranks: int) -> Place:
    """Return where so many ranks would be.

    Args:
        name: Of an instance type; NEURON_LOGICAL_NC_CONFIG groups its cores.
        ranks: How many.

    Raises:
        ToolError: There is no such instance, or it has fewer cores.
    """
    known = {i.name: (target, i) for target in TARGETS for i in target.instances}
    if name not in known:
        raise ToolError(f"--predict {name!r} is not known; allowed: {', '.join(sorted(known))}")
    target, instance = known[name]
    try:
        said = named_lnc(None, target)
    except MachineConfigError as error:
        raise ToolError(str(error)) from error
    lnc = target.default_lnc if said is None else said[1]
    cores = instance.chips * target.logical_cores_per_chip(lnc)
    if ranks > cores:
        raise ToolError(
            f"--nworkers {ranks}: {name} at LNC={lnc} has {cores} cores, and several hosts are "
            "not predicted here; `python -m torch_neuronx.estimate` has them"
        )
    return Place(target, instance, lnc)
