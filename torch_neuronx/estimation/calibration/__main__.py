"""Compare estimates with published times of models, and fit them.

python -m torch_neuronx.estimation.calibration [--fit]
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from neuronxcc.perf.graphs.parameters import GraphParameters
from neuronxcc.unread import ends_quietly
from torch_neuronx.estimation.calibration.fit import (
    GRID,
    PRIOR,
    best,
    estimated,
    left_out,
    tabulated,
)
from torch_neuronx.estimation.calibration.models import recorded
from torch_neuronx.estimation.calibration.rows import Row, rows


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _summary(name: str, found: Sequence[float]) -> str:
    size, mean = statistics.fmean(map(abs, found)), statistics.fmean(found)
    return f"| {name} | {size:.0%} | {mean:+.0%} | {max(found, key=abs):+.0%} |"


def _table(made: Mapping[Row, tuple[float, float]], apart: Mapping[str, float]) -> list[str]:
    lines = [
        "| Row | Published ms | Documents ms | Error | Fitted ms | Error | Without its family |",
        "|---|---|---|---|---|---|---|",
    ]
    for row, (before, now) in made.items():
        alone = f"{apart[row.name]:+.0%}" if row.name in apart else ""
        lines.append(
            f"| {row.name} | {row.us / 1e3:.3f} | {before / 1e3:.3f} | {before / row.us - 1:+.0%} "
            f"| {now / 1e3:.3f} | {now / row.us - 1:+.0%} | {alone} |"
        )
    return lines


@ends_quietly
def main() -> int:
    """Print what was asked for."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--fit", action="store_true", help="fit, and leave out each family")
    chosen = options.parse_args()
    compared = [row for row in rows() if row.compared]
    now, apart = GraphParameters(), {}
    if chosen.fit:
        table = tabulated(compared, _say)
        point = dict(zip(GRID, best(table), strict=True))
        now = replace(now, **point)
        print("\n".join(f"{name} = {value:g}" for name, value in point.items()) + "\n")
        apart = left_out(table)
    made = {}
    for row in compared:
        program = recorded(row)
        before = estimated(row, program, replace(now, **PRIOR))
        made[row] = before, estimated(row, program, now)
        _say(row.name)
    print("\n".join(_table(made, apart)))
    print("\n| Errors | Mean of sizes | Mean | Worst |\n|---|---|---|---|")
    fitted = [row for row in compared if row.fitted]
    print(_summary("as the documents say", [made[row][0] / row.us - 1 for row in fitted]))
    print(_summary("fitted", [made[row][1] / row.us - 1 for row in fitted]))
    if apart:
        held = [apart[row.name] for row in fitted]
        print(_summary("fitted without the row's family", held))
        worst = max(abs(math.log1p(error)) for error in held)
        print(f"\nworst factor without its family: {math.exp(worst):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
