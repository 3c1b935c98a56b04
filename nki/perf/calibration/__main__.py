"""Compare the performance model with public measurements, and fit it.

python -m nki.perf.calibration [--fit]
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace

from neuronxcc.perf import Parameters
from neuronxcc.unread import ends_quietly
from nki.perf.calibration.fit import GRID, PRIOR, best, errors, left_out, tabulated
from nki.perf.calibration.rows import Row, rows, stream_for

Errors = Sequence[tuple[Row, float, float]]


def _table(before: Errors, now: Errors) -> list[str]:
    lines = [
        "| Kernel | Measured us | Documents us | Error | Fitted us | Error |",
        "|---|---|---|---|---|---|",
    ]
    for (row, first, off), (_, made, error) in zip(before, now, strict=True):
        lines.append(
            f"| {row.name} | {row.measured:.0f} | {first:.0f} | {off:+.0%} "
            f"| {made:.0f} | {error:+.0%} |"
        )
    return lines


def _summary(name: str, found: Sequence[float]) -> str:
    size, mean = statistics.fmean(map(abs, found)), statistics.fmean(found)
    return f"| {name} | {size:.0%} | {mean:+.0%} | {max(found, key=abs):+.0%} |"


@ends_quietly
def main() -> int:
    """Print what was asked for."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--fit", action="store_true", help="fit, and leave out each family")
    chosen = options.parse_args()
    streams = [(row, stream_for(row)) for row in rows()]
    now = Parameters()
    summaries = []
    if chosen.fit:
        table = tabulated(streams, lambda text: print(text, file=sys.stderr, flush=True))
        point = dict(zip(GRID, best(table), strict=True))
        now = replace(now, **point)
        print("\n".join(f"{name} = {value:g}" for name, value in point.items()) + "\n")
        apart = left_out(table)
        print("\n".join(f"{name}, its family left out: {off:+.0%}" for name, off in apart.items()))
        print()
        summaries = [_summary("fitted without the row's family", list(apart.values()))]
    before, after = errors(streams, replace(now, **PRIOR)), errors(streams, now)
    print("\n".join(_table(before, after)))
    print("\n| Errors | Mean of sizes | Mean | Worst |\n|---|---|---|---|")
    print(_summary("as the documents say", [off for _, _, off in before]))
    print(_summary("fitted", [off for _, _, off in after]))
    print("\n".join(summaries))
    return 0


if __name__ == "__main__":
    sys.exit(main())
