"""What one operator of eager mode takes on a core, where each of them is a program by itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from neuronxcc.perf.graphs import Machine
from neuronxcc.perf.graphs.collectives import DEFAULT_ERA, collective_us
from neuronxcc.perf.graphs.host import HostParameters
from torch_neuronx._compile_only import settings_of
from torch_neuronx.distributed.planning.collectives import Collective
from torch_neuronx.distributed.planning.mode import PlanMode
from torch_neuronx.distributed.planning.placement import Placement
from torch_neuronx.distributed.planning.progress import Progress
from torch_neuronx.estimation.errors import EstimateError
from torch_neuronx.estimation.recorder import Recorder
from torch_neuronx.estimation.schedule import device_us, run
from torch_neuronx.estimation.segments import Graphs, Timer, by_bytes
from torch_neuronx.nki.frontend import recording_for

__all__ = ["bytes_us", "exchange_us", "operator_us"]


class _Fake(PlanMode):
    """The planning mode without tensors that are real: nothing runs on a core."""

    def fake(self, value: Any) -> Any:
        """What stands for a tensor without memory: one of a core."""
        if not isinstance(value, Tensor) or value.device.type != "meta":
            return value
        with self._fake:
            return torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device="neuron"
            )

    def _run(
        self, func: Any, args: Sequence[object], kwargs: Mapping[str, object], given: list[Tensor]
    ) -> object:
        return self._run_fake(func, args, kwargs, given)


def operator_us(func: Any, arguments: Sequence[Any], placement: Placement) -> float:
    """Return the microseconds that a core is predicted to take for a call: as `estimate` has them.

    Args:
        func: The operator, as `torch.ops` has it.
        arguments: All of its schema's, in order. Meta tensors stand for those of the core; those of
            the host need no values.
        placement: The chip and its logical cores.

    Raises:
        EstimateError: It is a collective.
    """
    leaves = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor)]
    if _copies(func) and len({leaf.device.type for leaf in leaves}) > 1:
        return 0.0  # the host and a core: of a core nothing but its memory is busy
    mode = _Fake(Progress(None))
    memory = mode.progress.memory
    memory.phase, memory.step = "forward", 0
    recorder = Recorder(mode.progress)
    mode.watchers.append(recorder)
    fakes: dict[Tensor, Any] = {leaf: mode.fake(leaf) for leaf in leaves}
    given = [
        tree_map(lambda leaf: fakes[leaf] if isinstance(leaf, Tensor) else leaf, argument)
        for argument in arguments
    ]
    named = list(zip(func._schema.arguments, given, strict=True))
    args = [value for about, value in named if not about.kwarg_only]
    kwargs = {about.name: value for about, value in named if about.kwarg_only}
    with recording_for(placement.target), torch.no_grad():
        try:
            with mode:
                func(*args, **kwargs)
        except (RuntimeError, NotImplementedError, ValueError, TypeError):
            # Its results have shapes that values decide, or nobody wrote a shape function for it:
            # what it is given counts by its bytes, as in graphs.
            recorder(func, args, kwargs, None, None)
    chip = placement.target
    settings = dataclasses.replace(settings_of({}), target=chip.name, lnc=placement.lnc)
    machine = Machine.of(chip, placement.lnc)
    timer = Timer(recorder.tape, machine, settings, training=False, graphs=Graphs())
    regions = {call.region: "operator" for call in recorder.tape.calls}
    clock = run(recorder.tape, regions, timer, _refused, HostParameters(), "eager")
    return device_us(clock.us, clock.rows)


def bytes_us(nbytes: int, placement: Placement) -> float:
    """Return the microseconds of an operator of which only the bytes are known that it is given."""
    return by_bytes(Machine.of(placement.target, placement.lnc), nbytes)


def exchange_us(
    kind: str,
    nbytes: int,
    ranks: Sequence[int],
    placement: Placement,
    machine: Machine,
    era: str = DEFAULT_ERA,
) -> float:
    """Return the microseconds of a collective, or of a message, of a job.

    Args:
        kind: "all_reduce" and so on.
        nbytes: Of the whole payload.
        ranks: Of the group, in the job.
        placement: Of the job.
        machine: A logical core.
        era: Which times: a name in `neuronxcc.perf.graphs.collectives.ERAS`.

    Raises:
        EstimateError: Nothing is published about a link.
    """
    found = collective_us(
        kind, nbytes, placement.reach(ranks), placement.target, era=era,
        floor_us=machine.graph.collective_floor,
    )  # fmt: skip
    if found is None:
        raise EstimateError(
            f"nothing is published about the network of {placement.instance.name}, which a "
            f"{kind} of {len(ranks)} ranks crosses"
        )
    return found


def _refused(one: Collective) -> float:
    raise EstimateError(f"{one.kind} is an operator of several ranks")


def _copies(func: Any) -> bool:
    return func._schema.name in {"aten::copy_", "aten::_copy_from", "aten::_to_copy"}
