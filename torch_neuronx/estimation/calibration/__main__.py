"""Compare estimates with published times of models, and fit them.

python -m torch_neuronx.estimation.calibration [--fit | --programs]
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Mapping, Sequence

from neuronxcc.perf.graphs.parameters import GraphParameters
from neuronxcc.unread import ends_quietly
from torch_neuronx.estimation.calibration.fit import (
    GRID,
    PRIOR,
    best,
    estimated,
    left_out,
    line,
    tabulated,
)
from torch_neuronx.estimation.calibration.models import recorded
from torch_neuronx.estimation.calibration.rows import Row, rows


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _summary(name: str, found: Sequence[float]) -> str:
    size, mean = statistics.fmean(map(abs, found)), statistics.fmean(found)
    return f"| {name} | {size:.0%} | {mean:+.0%} | {max(found, key=abs):+.0%} |"


def _table(
    found: Mapping[str, Sequence[tuple[Row, float]]], apart: Mapping[str, float]
) -> list[str]:
    """A line for each row: published, as the documents say, and with the model's parameters."""
    lines = [
        "| Row | Published ms | Documents ms | Error | Fitted ms | Error | Without its family |",
        "|---|---|---|---|---|---|---|",
    ]
    for (row, before), (_, now) in zip(found["prior"], found["now"], strict=True):
        alone = f"{apart[row.name]:+.0%}" if row.name in apart else ""
        times = [
            f"{row.us * math.exp(log) / 1e3:.3f} | {math.expm1(log):+.0%}" for log in (before, now)
        ]
        lines.append(f"| {row.name} | {row.us / 1e3:.3f} | {times[0]} | {times[1]} | {alone} |")
    return lines


def _programs() -> None:
    """Print what device programs of encoders take, and the same by bytes and flops."""
    print("| Row | Device programs | Bytes and flops |\n|---|---|---|")
    found = []
    for row in (row for row in rows() if row.compared and row.family == "encoder"):
        program = recorded(row)
        found.append([estimated(row, program, programs=p) / row.us - 1 for p in (True, False)])
        print(f"| {row.name} | {found[-1][0]:+.0%} | {found[-1][1]:+.0%} |", flush=True)
    means = [statistics.fmean(map(abs, column)) for column in zip(*found, strict=True)]
    print(f"| mean of sizes | {means[0]:.0%} | {means[1]:.0%} |")


@ends_quietly
def main() -> int:
    """Print what was asked for."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--fit", action="store_true", help="fit, and leave out each family")
    options.add_argument(
        "--programs", action="store_true", help="compare device programs with encoders' times"
    )
    chosen = options.parse_args()
    if chosen.programs:
        _programs()
        return 0
    now = tuple(getattr(GraphParameters(), name) for name in GRID)
    prior, apart = tuple(PRIOR.values()), {}
    efficiencies = GRID["product_efficiency"] if chosen.fit else (1.0, now[0])
    lines = []
    for row in (row for row in rows() if row.compared):
        lines.append(line(row, efficiencies))
        _say(row.name)
    if chosen.fit:
        table = tabulated(lines)
        point = best(table)
        print("\n".join(f"{name} = {x:g}" for name, x in zip(GRID, point, strict=True)) + "\n")
        apart = left_out(table)
    else:
        point = now
        axes = zip(GRID, prior, now, strict=True)
        table = tabulated(lines, {name: (before, x) for name, before, x in axes})
    found = {"prior": table[prior], "now": table[point]}
    print("\n".join(_table(found, apart)))
    print("\n| Errors | Mean of sizes | Mean | Worst |\n|---|---|---|---|")
    fitted = [one.row for one in lines if one.row.fitted]
    for name, logs in zip(("as the documents say", "fitted"), found.values(), strict=True):
        print(_summary(name, [math.expm1(log) for row, log in logs if row.fitted]))
    if apart:
        held = [apart[row.name] for row in fitted]
        print(_summary("fitted without the row's family", held))
        worst = max(abs(math.log1p(error)) for error in held)
        print(f"\nworst factor without its family: {math.exp(worst):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
