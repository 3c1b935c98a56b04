"""Running a function or a script as one rank of a job that isn't there."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from neuronxcc.environment.variable import changed
from torch_neuronx import neuron
from torch_neuronx.distributed.planning import ACTIVE
from torch_neuronx.distributed.planning.errors import PlanError
from torch_neuronx.distributed.planning.mode import PlanMode
from torch_neuronx.distributed.planning.placement import DEFAULT_INSTANCE, Placement
from torch_neuronx.distributed.planning.progress import Enough, Progress
from torch_neuronx.distributed.planning.report import Plan, make_plan


def launcher_variables(placement: Placement, rank: int, port: int) -> dict[str, str]:
    """The environment in which torchrun would start the rank, with a store on this machine."""
    local, host = rank % placement.ranks_per_instance, rank // placement.ranks_per_instance
    local_size = min(placement.ranks_per_instance, placement.world_size)
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(placement.world_size),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(local_size),
        "GROUP_RANK": str(host),
        "GROUP_WORLD_SIZE": str(placement.instances),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(placement.world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        # The store is the one that is made here, and nobody waits for the other ranks to join it.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RUN_ID": "plan",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        # A gloo group then connects to a peer when it first talks to it, which no plan does.
        "TORCH_GLOO_LAZY_INIT": "1",
        "TORCH_DISTRIBUTED_DEBUG": "OFF",
    }


@contextmanager
def _arguments(script: Path, arguments: Sequence[str]) -> Iterator[None]:
    before = sys.argv, list(sys.path)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = before


@contextmanager
def planning(
    *,
    world_size: int,
    rank: int = 0,
    instance: str = DEFAULT_INSTANCE,
    lnc: int | None = None,
    ranks_per_instance: int | None = None,
    steps: int | None = 2,
) -> Iterator[PlanMode]:
    """Make this process rank `rank` of a job of `world_size` for the duration of a `with` block.

    Takes the arguments of `plan`. The mode that it gives has what was noted so far.
    """
    placement = Placement.of(world_size, instance, lnc, ranks_per_instance)
    if not 0 <= rank < world_size:
        raise PlanError(f"rank {rank} is not one of 0 to {world_size - 1}")
    if dist.is_initialized():
        raise PlanError("this process has a process group already; plan before init_process_group")
    local = rank % placement.ranks_per_instance
    if local >= neuron.device_count():
        raise PlanError(
            f"rank {rank} is local rank {local}, and this process sees "
            f"{neuron.device_count()} cores; set NEURON_RT_NUM_CORES={local + 1} before Python "
            "starts, or use `python -m torch_neuronx.distributed.plan`, which does"
        )
    store = TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
    with ExitStack() as stack:
        stack.enter_context(changed(launcher_variables(placement, rank, store.port)))
        stack.callback(neuron.set_device, neuron.current_device())
        neuron.set_device(local)
        mode = PlanMode(Progress(steps))
        stack.callback(_leave)
        ACTIVE.append(mode)
        stack.enter_context(alone(mode))
        yield mode


@contextmanager
def alone(mode: PlanMode) -> Iterator[PlanMode]:
    """Let a mode follow what runs in a `with` block, with no job around it."""
    progress = mode.progress
    progress.open()
    try:
        with mode:
            yield mode
    finally:
        progress.close()


def _leave() -> None:
    ACTIVE.pop()
    if dist.is_initialized():
        dist.destroy_process_group()


def plan(
    program: Callable[..., object] | str | Path,
    *arguments: Any,
    world_size: int,
    rank: int = 0,
    instance: str = DEFAULT_INSTANCE,
    lnc: int | None = None,
    ranks_per_instance: int | None = None,
    steps: int | None = 2,
) -> Plan:
    """Run a training program as one rank of a job, without its memory and its other ranks.

    Args:
        program: A function, or the path of a script, which is run as `__main__`. Either initialises
            the process group as it would under torchrun, with any backend.
        arguments: What the function is called with, or the script's command line.
        world_size: Number of ranks of the job.
        rank: Which of them to run.
        instance: The instance type, such as `trn2.48xlarge`; says how much memory a core has, which
            cores share a chip, and which links lie between them.
        lnc: Physical cores of a logical one; the target's default if `None`.
        ranks_per_instance: `torchrun --nproc-per-node`; the instance's logical cores if `None`.
        steps: After how many optimizer steps the program is stopped, if it doesn't end by itself.
            The last step is the one that is reported as usual: the first does some things once.

    Returns:
        What the rank needs and does.

    Raises:
        PlanError: The job cannot be planned.
    """
    if steps is not None and steps < 1:
        raise PlanError(f"steps={steps}: a plan has at least one step")
    with planning(
        world_size=world_size,
        rank=rank,
        instance=instance,
        lnc=lnc,
        ranks_per_instance=ranks_per_instance,
        steps=steps,
    ) as mode:
        placement = Placement.of(world_size, instance, lnc, ranks_per_instance)
        run_program(program, arguments)
    return make_plan(mode, placement, rank)


def run_program(program: Callable[..., object] | str | Path, arguments: Sequence[Any]) -> None:
    """Run a function or a script until it ends, or has made its steps.

    Raises:
        PlanError: There is no such script, or it ended itself with an error.
    """
    try:
        if callable(program):
            program(*arguments)
            return
        script = Path(program)
        if not script.is_file():
            raise PlanError(f"{script} is not a file")
        with _arguments(script, [str(argument) for argument in arguments]):
            runpy.run_path(str(script), run_name="__main__")
    except Enough:
        pass
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            raise PlanError(f"the script ended itself with {leaving.code!r}") from leaving
