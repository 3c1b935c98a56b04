"""Whether the machine was quiet: a benchmark reports nothing that was read on a busy one."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

LARGEST_LOAD = 1.0
# More than a tenth of a core taken by others shows in the ratios.
LARGEST_OTHER_WORK = 0.1


class BusyError(RuntimeError):
    """The machine does other work; the text says what was seen."""


class Watch:
    """Watches the machine from here to `facts`.

    Args:
        allow_load: Report on a busy machine all the same, marked as such.

    Raises:
        BusyError: The load over the last minute is above LARGEST_LOAD, and that is not allowed.
    """

    def __init__(self, allow_load: bool) -> None:
        self._allow_load = allow_load
        self._load = os.getloadavg()[0]
        if self._load > LARGEST_LOAD and not allow_load:
            raise BusyError(f"the machine's load is {self._load:.2f}, over {LARGEST_LOAD:g}")
        self._wall = time.monotonic()
        self._others = _others_seconds()

    def facts(self) -> dict[str, object]:
        """What was seen, for the report. Raises BusyError if others worked meanwhile."""
        elapsed = max(time.monotonic() - self._wall, 1e-9)
        others = max(0.0, (_others_seconds() - self._others) / elapsed)
        loaded = self._load > LARGEST_LOAD or others > LARGEST_OTHER_WORK
        if loaded and not self._allow_load:
            raise BusyError(f"other processes kept {others:.2f} cores busy meanwhile")
        if loaded:
            print("MEASURED ON A BUSY MACHINE: these numbers say little.")
        return {"load_at_start": self._load, "other_cores": round(others, 3), "loaded": loaded}


def _others_seconds() -> float:
    """CPU seconds used by all other processes since the machine started (proc(5), stat)."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = (
        int(ticks) for ticks in Path("/proc/stat").read_text().split()[1:9]
    )
    busy = user + nice + system + irq + softirq + steal
    own = os.times()
    mine = own.user + own.system + own.children_user + own.children_system
    return busy / os.sysconf("SC_CLK_TCK") - mine


def parser(description: str | None, repeats: int) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    options = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--only", default="", metavar="REGEX", help="rows whose name matches")
    options.add_argument("--repeats", type=int, default=repeats, help="samples (%(default)s)")
    options.add_argument("--threads", type=int, default=2, help="host threads (%(default)s)")
    options.add_argument(
        "--allow-load", action="store_true", help="measure on a busy machine, and say so"
    )
    return options


def main(options: argparse.Namespace, measure: Callable[[Watch], int]) -> int:
    """Run `measure` under a watch; exit code 2 if the machine was busy, else what it returns."""
    try:
        watch = Watch(options.allow_load)
        torch.set_num_threads(options.threads)
        return measure(watch)
    except BusyError as busy:
        print(f"not measured: {busy}. Wait, or use --allow-load.", file=sys.stderr)
        return 2
