"""`torch_neuronx.estimate`: a program runs on fake tensors, and what it did is timed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Never

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves, tree_map

from neuronxcc import progress
from neuronxcc.perf import Parameters
from neuronxcc.perf.graphs import GraphParameters, Machine
from neuronxcc.perf.graphs.collectives import DEFAULT_ERA, ERAS
from neuronxcc.perf.graphs.host import HostParameters
from neuronxcc.perf.graphs.parameters import (
    CALIBRATED,
    CALIBRATED_ON,
    MODEL_VERSION,
    STATED_ERROR,
    STATED_ERROR_OF_TRAINING,
)
from neuronxcc.targets import DEFAULT_TARGET, get_target
from torch_neuronx._compile_only import settings_of
from torch_neuronx.distributed.planning.collectives import Collective
from torch_neuronx.distributed.planning.mode import REAL_DEVICE_BYTES, PlanMode
from torch_neuronx.distributed.planning.placement import Placement
from torch_neuronx.distributed.planning.progress import Progress
from torch_neuronx.distributed.planning.session import alone, planning, run_program
from torch_neuronx.estimation.advice import advise
from torch_neuronx.estimation.errors import EstimateError
from torch_neuronx.estimation.operators import exchange_us
from torch_neuronx.estimation.recorder import Recorder, Region, Tape
from torch_neuronx.estimation.result import Estimate
from torch_neuronx.estimation.schedule import Mode, run
from torch_neuronx.estimation.segments import Graphs, Timer
from torch_neuronx.nki.frontend import recording_for

__all__ = ["Recorded", "estimate", "placed", "record", "time_of"]

MakesOptimizer = Callable[[Sequence[Tensor]], torch.optim.Optimizer]
Loss = Callable[[Any], Tensor]


def estimate(
    program: Callable[..., Any] | str | Path,
    *inputs: Any,
    target: str | None = None,
    lnc: int | None = None,
    mode: Mode = "compiled",
    training: bool = False,
    loss: Loss | None = None,
    optimizer: MakesOptimizer | None = torch.optim.AdamW,
    kwargs: Mapping[str, Any] | None = None,
    world_size: int = 1,
    rank: int = 0,
    instance: str | None = None,
    ranks_per_instance: int | None = None,
    steps: int = 2,
    tokens: int | None = None,
    price_per_hour: float = 0.0,
    era: str = DEFAULT_ERA,
    options: Mapping[str, Any] | None = None,
    programs: bool = False,
    parameters: Parameters | None = None,
    graph_parameters: GraphParameters | None = None,
    host: HostParameters | None = None,
    **unknown: Never,
) -> Estimate:
    """Say how long a PyTorch program would take on hardware, without running its arithmetic.

    Weights and activations are fake tensors, so that a model may be larger than this computer; a
    module's own parameters are left alone, wherever they are (also on "meta").

    Args:
        program: A module or a function of `inputs`; or the path of a script, whose command line
            they are. With more than one rank a function or a script, which initialises the process
            group and makes its model itself.
        inputs: Its arguments. Tensors may be on any device; only small integers keep their values.
        target: "trn1", "trn1n", "inf2", "trn2" or "trn3"; by default the one that the instance
            has, or "trn2".
        lnc: Physical cores of a logical one; the target's default if `None`.
        mode: "compiled": forward, backward and the optimizer are a program each; "eager": every
            operator is one.
        training: Forward, backward and a step of the optimizer; of a module or a function.
        loss: Makes a number of what the program returns; by default its `loss`, or the sum of what
            it returns.
        optimizer: Makes the optimizer of a module's parameters; `None`: gradients alone.
        kwargs: The program's arguments by name.
        world_size: Ranks of the job.
        rank: Which of them to time.
        instance: Type of the instances that the job is on; the target's largest if `None`.
        ranks_per_instance: `torchrun --nproc-per-node`; the instance's logical cores if `None`.
        steps: Steps of a training script that are traced; the last one is timed.
        tokens: That a step of the whole job handles; by default the elements of the first tensor of
            integers that the model is given. 0: no tokens.
        price_per_hour: Of an instance, in dollars.
        era: Which collectives' times: a name in `neuronxcc.perf.graphs.collectives.ERAS`.
        options: The compiler's, as for `torch.compile`.
        programs: Take the times of this compiler's device programs where there are some, instead of
            those by bytes and flops.
        parameters: Of the model of kernels.
        graph_parameters: Of graphs.
        host: Of the host.
        unknown: None; those who name the program's arguments here are told about `kwargs`.

    Returns:
        The time and where it goes; `print` shows a summary.

    Raises:
        EstimateError: The program cannot be timed.
        PlanError: It cannot be run without memory or the other ranks; see docs/planning.md.
        TypeError: There is no option of a name.
        ValueError: An argument is not one of those that are allowed.
    """
    for name in unknown:
        raise TypeError(
            f"estimate() has no option {name!r}; arguments that the program takes by name are "
            f"given as kwargs={{{name!r}: ...}}"
        )
    placement = placed(target, lnc, world_size, instance, ranks_per_instance)
    if mode not in ("compiled", "eager"):
        raise ValueError(f"mode={mode!r}: 'compiled' and 'eager' are the modes")
    if era not in ERAS:
        raise ValueError(f"era={era!r}: known are {', '.join(map(repr, ERAS))}")
    with progress.Progress(f"estimating {_name(program)}") as shown:
        shown.report("recording")
        recorded = record(
            program,
            *inputs,
            placement=placement,
            training=training,
            loss=loss,
            optimizer=optimizer,
            kwargs=kwargs,
            rank=rank,
            steps=steps,
        )
        shown.report("timing")
        return time_of(
            recorded,
            mode=mode,
            tokens=tokens,
            price_per_hour=price_per_hour,
            era=era,
            options=options,
            programs=programs,
            parameters=parameters,
            graph_parameters=graph_parameters,
            host=host,
        )


@dataclass(frozen=True, slots=True)
class Recorded:
    """A program that was run on fake tensors.

    Attributes:
        name: of it.
        tape: what it did.
        regions: those of the step that is timed, with their names.
        trains: gradients belong to it.
        rank: the one that was run.
        placement: of the job.
        tokens: of its inputs; 0 if nobody knows.
        hbm_in_use: bytes at the peak.
        graphs: what its segments were made into so far.
    """

    name: str
    tape: Tape
    regions: Mapping[Region, str]
    trains: bool
    rank: int
    placement: Placement
    tokens: int
    hbm_in_use: int
    graphs: Graphs


def record(
    program: Callable[..., Any] | str | Path,
    *inputs: Any,
    placement: Placement,
    training: bool = False,
    loss: Loss | None = None,
    optimizer: MakesOptimizer | None = torch.optim.AdamW,
    kwargs: Mapping[str, Any] | None = None,
    rank: int = 0,
    steps: int = 2,
) -> Recorded:
    """Run a program on fake tensors; takes the arguments of `estimate`."""
    if steps < 1:
        raise ValueError(f"steps={steps}: an estimate has at least one step")
    # Scripts and the programs of jobs do all by themselves, their setup too.
    whole = not callable(program) or placement.world_size > 1
    if whole and (training or kwargs):
        raise ValueError(
            "training and kwargs are about a module or a function on one core; a script, or the "
            "program of a job, trains by itself"
        )
    with (
        recording_for(placement.target),
        _fake(placement, rank, steps if whole else None) as following,
    ):
        recorder = Recorder(following.progress)
        following.watchers.append(recorder)
        if whole:
            run_program(program, inputs)
        else:
            assert callable(program)
            _Called(program, loss, optimizer, training=training).run(
                inputs, kwargs or {}, following
            )
    tape = recorder.tape
    regions, trains = _regions(tape, following.progress.steps, several=whole)
    if not regions:
        raise EstimateError(f"{_name(program)} ran no operator on the device neuron")
    return Recorded(
        name=_name(program),
        tape=tape,
        regions=regions,
        trains=trains,
        rank=rank,
        placement=placement,
        tokens=_tokens(tape, regions, () if whole else inputs),
        hbm_in_use=following.progress.memory.peak("neuron").bytes,
        graphs=Graphs(),
    )


def time_of(
    recorded: Recorded,
    *,
    mode: Mode = "compiled",
    tokens: int | None = None,
    price_per_hour: float = 0.0,
    era: str = DEFAULT_ERA,
    options: Mapping[str, Any] | None = None,
    programs: bool = False,
    parameters: Parameters | None = None,
    graph_parameters: GraphParameters | None = None,
    host: HostParameters | None = None,
) -> Estimate:
    """Time what was recorded; takes the arguments of `estimate`."""
    placement = recorded.placement
    chip = placement.target
    machine = Machine.of(chip, placement.lnc, parameters, graph_parameters)
    settings = dataclasses.replace(settings_of(options or {}), target=chip.name, lnc=placement.lnc)
    timer = Timer(
        recorded.tape, machine, settings, training=recorded.trains, graphs=recorded.graphs,
        programs=programs,
    )  # fmt: skip

    def network(one: Collective) -> float:
        return exchange_us(one.kind, one.bytes, one.ranks, placement, machine, era)

    clock = run(recorded.tape, recorded.regions, timer, network, host or HostParameters(), mode)
    ranked = placement.world_size > 1
    return Estimate(
        name=recorded.name,
        target=chip.name,
        lnc=placement.lnc,
        mode=mode,
        training=recorded.trains,
        world_size=placement.world_size,
        rank=recorded.rank,
        instance=placement.instance.name if ranked else "",
        instances=placement.instances if ranked else 0,
        era=era,
        model=MODEL_VERSION,
        calibrated=chip.name in CALIBRATED,
        calibrated_on=CALIBRATED_ON,
        step_us=clock.us,
        error=STATED_ERROR_OF_TRAINING if recorded.trains else STATED_ERROR,
        rows=tuple(clock.rows),
        sections=clock.sections,
        busy_us=clock.busy,
        bound_us=clock.bound,
        read_bytes=clock.read,
        written_bytes=clock.written,
        flops=sum(row.flops for row in clock.rows),
        peak_tflops=machine.spec("tensor").peak_tflops["bfloat16"] * machine.lnc,
        hbm_gbps=machine.hbm_gbps,
        hbm_in_use=recorded.hbm_in_use,
        hbm_bytes=placement.hbm_bytes,
        programs=clock.programs,
        tokens=recorded.tokens if tokens is None else tokens,
        price_per_hour=price_per_hour,
        advice=advise(clock, mode),
        notes=tuple(sorted(clock.notes)),
    )


def _name(program: object) -> str:
    if isinstance(program, (str, Path)):
        return Path(program).name
    named = getattr(program, "__name__", None)
    return named if isinstance(named, str) else type(program).__name__


def placed(
    target: str | None,
    lnc: int | None = None,
    world_size: int = 1,
    instance: str | None = None,
    ranks_per_instance: int | None = None,
) -> Placement:
    """Place a job; takes the arguments of `estimate`.

    Raises:
        PlanError: The instances do not hold it.
        ValueError: There is no such target, or it is not that of the instance.
    """
    if instance is None:
        chip = get_target(DEFAULT_TARGET if target is None else target)
        instance = max(chip.instances, key=lambda one: one.chips).name
    made = Placement.of(world_size, instance, lnc, ranks_per_instance)
    if target is not None and get_target(target).name != made.target.name:
        raise ValueError(f"target={target!r}, but {instance} has chips of {made.target.name}")
    return made


@contextmanager
def _fake(placement: Placement, rank: int, steps: int | None) -> Iterator[PlanMode]:
    """Run one rank without memory: alone, or of a job."""
    if placement.world_size == 1:
        with alone(PlanMode(Progress(steps))) as mode:
            yield mode
        return
    with planning(
        world_size=placement.world_size,
        rank=rank,
        instance=placement.instance.name,
        lnc=placement.lnc,
        ranks_per_instance=placement.ranks_per_instance,
        steps=steps,
    ) as mode:
        yield mode


# ---- a module or a function ---------------------------------------------------------------------


class _Called:
    """A module or a function on one core.

    Args:
        program: it.
        loss: of what it returns; None for its own.
        optimizer: makes the one of its parameters; None for gradients alone.
        training: forward, backward and the optimizer's step, twice: the first makes its state.
    """

    def __init__(
        self,
        program: Callable[..., Any],
        loss: Loss | None,
        optimizer: MakesOptimizer | None,
        *,
        training: bool,
    ) -> None:
        self.program, self.training = program, training
        self.loss, self.optimizer = loss or _sum, optimizer

    def run(self, inputs: Sequence[Any], kwargs: Mapping[str, Any], mode: PlanMode) -> None:
        """Call it with fake tensors."""
        memory = mode.progress.memory
        held = self._held(mode)
        given, named = tree_map(_on_core, (tuple(inputs), dict(kwargs)))
        memory.phase, memory.step = "forward", 0
        # Who wrote a model for the host makes tensors without saying where; here that is the core.
        with torch.device("neuron"):
            if not self.training:
                with torch.no_grad():
                    self._forward(held, given, named)
                return
            trained = [tensor for tensor in held.values() if tensor.requires_grad]
            stepping = self.optimizer(trained) if self.optimizer and trained else None
            for _ in range(1 if stepping is None else 2):
                self.loss(self._forward(held, given, named)).backward()
                if stepping is not None:
                    stepping.step()
                    stepping.zero_grad()

    def _held(self, mode: PlanMode) -> dict[str, Tensor]:
        """The tensors that stand for a module's own."""
        held: dict[str, Tensor] = {}
        if not isinstance(self.program, nn.Module):
            return held
        for role, tensors in (
            ("parameters", self.program.named_parameters()),
            ("buffers", self.program.named_buffers()),
        ):
            for name, tensor in tensors:
                held[name] = _on_core(tensor)
                mode.progress.memory.name(held[name], role, name)
        return held

    def _forward(self, held: dict[str, Tensor], given: Any, named: Any) -> Any:
        if isinstance(self.program, nn.Module):
            return torch.func.functional_call(self.program, held, given, named)
        return self.program(*given, **named)


def _on_core(value: Any) -> Any:
    """A tensor of the device without memory; small integers keep their values."""
    if not isinstance(value, Tensor) or isinstance(value, (FakeTensor, DTensor)):
        return value
    exact = not value.dtype.is_floating_point and not value.dtype.is_complex
    if exact and value.nbytes <= REAL_DEVICE_BYTES and value.device.type != "meta":
        return value.detach().to("neuron")
    made = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="neuron")
    return made.zero_() if exact else made.requires_grad_(value.requires_grad)


def _sum(outcome: Any) -> Tensor:
    """The loss of a program that doesn't say its own: `loss`, or the sum of what it returns."""
    found = getattr(outcome, "loss", None)
    if isinstance(found, Tensor):
        return found
    leaves = [
        leaf.float().sum()
        for leaf in tree_leaves(outcome)
        if isinstance(leaf, Tensor) and leaf.requires_grad
    ]
    if not leaves:
        raise EstimateError(
            "training=True, and nothing that the program returns needs a gradient: give it "
            "parameters or inputs with requires_grad, or a loss"
        )
    return sum(leaves[1:], leaves[0])


# ---- what counts --------------------------------------------------------------------------------


def _regions(tape: Tape, steps: int, *, several: bool) -> tuple[dict[Region, str], bool]:
    """The regions of the step that is reported, with their names; whether it trains.

    Of what made steps of an optimizer that is the last one; of `several` forwards each has its
    name, and the forwards of one call of a function are one.
    """
    seen: dict[Region, None] = dict.fromkeys(call.region for call in tape.calls)
    running = [region for region in seen if region.phase != "setup"]
    if steps:
        last = max(region.step for region in running if region.phase == "optimizer")
        return {r: r.phase for r in running if r.step == last}, True
    if not running:
        return dict.fromkeys(seen, "script"), False
    backward = any(region.phase == "backward" for region in running)
    forwards = sorted({region.forward for region in running})
    numbers = {number: f" {at + 1}" for at, number in enumerate(forwards)}
    if not several or len(forwards) < 2:
        numbers = dict.fromkeys(numbers, "")
    # Without a step, what follows backward is no optimizer's.
    phases = {"forward": "forward", "backward": "backward", "optimizer": "after backward"}
    return {r: phases[r.phase] + numbers[r.forward] for r in running}, backward


def _tokens(tape: Tape, regions: Mapping[Region, str], inputs: Sequence[Any]) -> int:
    """Of the forwards that count, what the first tensor of integers of each holds."""
    for leaf in tree_leaves(list(inputs)):
        if isinstance(leaf, Tensor) and not leaf.dtype.is_floating_point and leaf.dim():
            return leaf.numel()
    return sum(tape.tokens.get(number, 0) for number in {region.forward for region in regions})
