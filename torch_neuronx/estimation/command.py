"""`python -m torch_neuronx.estimate`: time a script that torchrun or Python starts."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from neuronxcc.environment.registry import VARIABLES
from neuronxcc.perf.graphs.collectives import DEFAULT_ERA, ERAS
from neuronxcc.targets import DEFAULT_TARGET, target_argument
from neuronxcc.unread import ends_quietly
from torch_neuronx.distributed.planning.command import machine_variables
from torch_neuronx.distributed.planning.errors import PlanError
from torch_neuronx.distributed.planning.placement import instance_names
from torch_neuronx.estimation.errors import EstimateError
from torch_neuronx.estimation.session import estimate, placed

MODULE = "torch_neuronx.estimate"
FINE, FAILED = 0, 2  # argparse leaves with 2 itself


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog=f"python -m {MODULE}",
        description="Say how long a script's step, or each of its forwards, takes on hardware, "
        "without running its arithmetic.",
        epilog=f"Instance types: {', '.join(instance_names())}.",
    )
    made.add_argument("--target", type=target_argument, help=f"default: {DEFAULT_TARGET}")
    made.add_argument("--lnc", type=int, help="physical cores of a logical one")
    made.add_argument(
        "--mode", choices=("compiled", "eager"), default="compiled", help="default: compiled"
    )
    made.add_argument("--world-size", type=int, default=1, help="ranks of the job (default: 1)")
    made.add_argument("--rank", type=int, default=0, help="the rank to time (default: 0)")
    made.add_argument("--instance", help="default: the target's largest")
    made.add_argument(
        "--nproc-per-node", type=int, help="ranks of an instance (default: its cores)"
    )
    made.add_argument("--steps", type=int, default=2, help="training steps to trace (default: 2)")
    made.add_argument("--tokens", type=int, help="that a step of the job handles")
    made.add_argument(
        "--price-per-hour", type=float, default=0.0, metavar="DOLLARS", help="of an instance"
    )
    made.add_argument(
        "--era", choices=tuple(ERAS), default=DEFAULT_ERA, help="of the collectives' times"
    )
    made.add_argument("--programs", action="store_true", help="take the times of device programs")
    made.add_argument(
        "--json", type=Path, metavar="FILE", help="write everything there; - is stdout"
    )
    made.add_argument("script", help="the script")
    made.add_argument("arguments", nargs=argparse.REMAINDER, help="its own arguments")
    return made


@ends_quietly
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    chosen = parser().parse_args(given)
    try:
        placement = placed(
            chosen.target, chosen.lnc, chosen.world_size, chosen.instance, chosen.nproc_per_node
        )
        values = machine_variables(placement)
        # The machine is read once, when torch is imported.
        if any(VARIABLES[name].text() != value for name, value in values.items()):
            sys.stdout.flush()
            os.execve(  # noqa: S606 - this interpreter, again
                sys.executable,
                [sys.executable, "-m", MODULE, *given],
                {**os.environ, **values},
            )
        found = estimate(
            Path(chosen.script),
            *chosen.arguments,
            lnc=chosen.lnc,
            mode=chosen.mode,
            world_size=chosen.world_size,
            rank=chosen.rank,
            instance=placement.instance.name,
            ranks_per_instance=chosen.nproc_per_node,
            steps=chosen.steps,
            tokens=chosen.tokens,
            price_per_hour=chosen.price_per_hour,
            era=chosen.era,
            programs=chosen.programs,
        )
    except (EstimateError, PlanError, ValueError) as error:
        print(f"cannot estimate: {error}", file=sys.stderr)  # noqa: T201
        return FAILED
    if chosen.json == Path("-"):
        print(found.to_json())  # noqa: T201
        return FINE
    print(found)  # noqa: T201
    if chosen.json is not None:
        chosen.json.write_text(found.to_json() + "\n")
    return FINE
