"""`python -m torch_neuronx.distributed.plan`: plan a script that torchrun starts."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from neuronxcc.environment.registry import VARIABLES
from neuronxcc.machine import LNC_VARIABLES, TARGET_VARIABLE
from neuronxcc.unread import ends_quietly
from torch_neuronx._config import (
    MAX_DEVICES,
    NUM_CORES_VARIABLE,
    VISIBLE_CORES_VARIABLE,
)
from torch_neuronx.distributed.planning.errors import PlanError
from torch_neuronx.distributed.planning.placement import DEFAULT_INSTANCE, Placement, instance_names
from torch_neuronx.distributed.planning.session import plan

MODULE = "torch_neuronx.distributed.plan"
# Exit codes; argparse leaves with 2 itself.
FITS, DOES_NOT_FIT, FAILED = 0, 1, 2


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog=f"python -m {MODULE}",
        description="Trace one rank of a job, without its memory and its other ranks, and report "
        "its memory and its collectives.",
        epilog=f"Ends with {FITS} if the rank's memory fits, {DOES_NOT_FIT} if it doesn't, "
        f"{FAILED} if the job cannot be planned. Instance types: {', '.join(instance_names())}.",
    )
    made.add_argument("--world-size", type=int, required=True, help="ranks of the job")
    made.add_argument("--rank", type=int, default=0, help="the rank to trace (default: 0)")
    made.add_argument("--instance", default=DEFAULT_INSTANCE, help=f"default: {DEFAULT_INSTANCE}")
    made.add_argument("--lnc", type=int, help="physical cores of a logical one")
    made.add_argument(
        "--nproc-per-node", type=int, help="ranks of an instance (default: its cores)"
    )
    made.add_argument("--steps", type=int, default=2, help="optimizer steps to trace (default: 2)")
    made.add_argument(
        "--json", type=Path, metavar="FILE", help="write everything there; - is stdout"
    )
    made.add_argument("--order", action="store_true", help="list every collective of the last step")
    made.add_argument("script", help="the training script")
    made.add_argument("arguments", nargs=argparse.REMAINDER, help="its own arguments")
    return made


def machine_variables(placement: Placement) -> dict[str, str]:
    """The environment that makes this process see the cores of one instance of the job."""
    values = {name: str(placement.lnc) for name in LNC_VARIABLES}
    values[TARGET_VARIABLE] = placement.target.name
    values[NUM_CORES_VARIABLE] = str(min(placement.ranks_per_instance, MAX_DEVICES))
    values[VISIBLE_CORES_VARIABLE] = ""
    return values


def _restart_with(values: Mapping[str, str], arguments: Sequence[str]) -> None:
    """Start again where the machine is another one: it is read once, when torch is imported."""
    if any(VARIABLES[name].text() != value for name, value in values.items()):
        sys.stdout.flush()
        os.execve(  # noqa: S606 - this interpreter, again
            sys.executable,
            [sys.executable, "-m", MODULE, *arguments],
            {**os.environ, **values},
        )


@ends_quietly
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    chosen = parser().parse_args(given)
    try:
        placement = Placement.of(
            chosen.world_size, chosen.instance, chosen.lnc, chosen.nproc_per_node
        )
        _restart_with(machine_variables(placement), given)
        found = plan(
            chosen.script,
            *chosen.arguments,
            world_size=chosen.world_size,
            rank=chosen.rank,
            instance=chosen.instance,
            lnc=chosen.lnc,
            ranks_per_instance=chosen.nproc_per_node,
            steps=chosen.steps,
        )
    except PlanError as error:
        print(f"cannot plan: {error}", file=sys.stderr)  # noqa: T201
        return FAILED
    if chosen.json == Path("-"):
        print(found.to_json())  # noqa: T201
    else:
        print(found)  # noqa: T201
        if chosen.order:
            print(found.order_text())  # noqa: T201
        if chosen.json is not None:
            chosen.json.write_text(found.to_json() + "\n")
    return FITS if found.fits else DOES_NOT_FIT
