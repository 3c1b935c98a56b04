"""Compare the performance model with public measurements, and fit it.

python -m nki.perf.calibration [--fit] [--kernel NAME]
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import replace

from neuronxcc.perf import Parameters
from nki.perf.calibration.fit import FITTED, HELD_OUT, PRIOR, errors, fit
from nki.perf.calibration.rows import Row, rows, stream_for


def _table(found: list[list[tuple[Row, float, float]]]) -> list[str]:
    lines = [
        "| Kernel | Used by the fit | Measured us | Before the fit us | Error | Now us | Error |",
        "|---|---|---|---|---|---|---|",
    ]
    for (row, before, off), (_, after, now) in zip(*found, strict=True):
        used = "no" if row.kernel in HELD_OUT else "yes"
        lines.append(
            f"| {row.name} | {used} | {row.measured:.0f} | {before:.0f} | {off:+.0%} "
            f"| {after:.0f} | {now:+.0%} |"
        )
    return lines


def _summary(found: list[list[tuple[Row, float, float]]]) -> list[str]:
    lines = [
        "| Rows | Number | Before: mean of sizes | Worst | Now: mean of sizes | Mean | Worst |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, held in (("used by the fit", False), ("not used", True)):
        both = [[off for row, _, off in run if (row.kernel in HELD_OUT) == held] for run in found]
        before, now = both
        lines.append(
            f"| {name} | {len(now)} | {statistics.fmean(map(abs, before)):.0%} "
            f"| {max(before, key=abs):+.0%} | {statistics.fmean(map(abs, now)):.0%} "
            f"| {statistics.fmean(now):+.0%} | {max(now, key=abs):+.0%} |"
        )
    return lines


def main() -> int:
    """Print what was asked for."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--fit", action="store_true", help="fit, and print the parameters")
    options.add_argument("--kernel", help="only this one, by its name in kernels.py")
    chosen = options.parse_args()
    streams = [(row, stream_for(row)) for row in rows() if chosen.kernel in {None, row.kernel}]
    now = Parameters()
    if chosen.fit:
        used = [(row, stream) for row, stream in streams if row.kernel not in HELD_OUT]
        now = fit(used, lambda text: print(text, file=sys.stderr, flush=True))
        print("\n".join(f"{name} = {getattr(now, name):.3g}" for name in FITTED) + "\n")
    found = [errors(streams, parameters) for parameters in (replace(now, **PRIOR), now)]
    print("\n".join(_table(found)))
    if chosen.kernel is None:
        print("\n" + "\n".join(_summary(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
