"""Compare the performance model with public measurements, and fit it.

python -m nki.perf.calibration [--fit | --variants]
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
from nki.perf.calibration.rows import Row, predicted, rows, spearman, stream_for, variants

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


def _print_variants() -> None:
    """Print how variants of one kernel are ordered by hardware and by the model."""
    pairs = []
    print("| Variant | Measured us | Predicted us | Error |\n|---|---|---|---|")
    for row in sorted(variants(), key=lambda row: (row.arguments, row.kernel)):
        made = row.comparable(predicted(row, stream_for(row), Parameters()))
        pairs.append((row.measured, made))
        error = made / row.measured - 1
        print(f"| {row.name} | {row.measured:.0f} | {made:.0f} | {error:+.0%} |", flush=True)
    print(f"\nrank correlation: {spearman(pairs):.3f}")


def _summary(name: str, found: Sequence[float]) -> str:
    size, mean = statistics.fmean(map(abs, found)), statistics.fmean(found)
    return f"| {name} | {size:.0%} | {mean:+.0%} | {max(found, key=abs):+.0%} |"


@ends_quietly
def main() -> int:
    """Print what was asked for."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--fit", action="store_true", help="fit, and leave out each family")
    options.add_argument(
        "--variants", action="store_true", help="variants of a kernel alone: their order"
    )
    chosen = options.parse_args()
    if chosen.variants:
        _print_variants()
        return 0
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
