"""What the benchmarks of compiled programs have in common: their options, and how a run ends."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from benchmarks import quiet, report

if TYPE_CHECKING:
    import argparse


class Named(Protocol):
    """An entry of a table of workloads or checks."""

    @property
    def name(self) -> str:
        """What `--only` and `--list` know it by."""


class Judged(Protocol):
    """A row of a report: a dataclass of whatever was read."""

    @property
    def met(self) -> bool:
        """Whether its targets are reached."""


N = TypeVar("N", bound=Named)
J = TypeVar("J", bound=Judged)


def tell(
    header: str,
    rows: Iterable[J],
    line: Callable[[J], str],
    options: argparse.Namespace,
    watch: quiet.Watch,
) -> int:
    """Print rows as they come and write the file of the run; exit code 0 if all targets are met.

    Args:
        header: the line above them.
        rows: measured as they are asked for.
        line: the text of one; what misses its target is marked here.
        options: those of `quiet.parser`.
        watch: begun before the first was measured.

    Raises:
        BusyError: The machine was busy meanwhile.
    """
    print(header)
    found = []
    for row in rows:
        found.append(row)
        print(f"{line(row)}{'' if row.met else ' NO'}", flush=True)
    return finish(found, options, watch)


def finish(rows: Sequence[Any], options: argparse.Namespace, watch: quiet.Watch) -> int:
    """Write the file of a run; exit code 0 if all rows (dataclasses with `met`) meet their targets.

    Raises:
        BusyError: The machine was busy meanwhile.
    """
    facts = {**report.machine(), **watch.facts(), "repeats": options.repeats}
    print(f"written to {report.write(rows, facts)}")
    return 0 if all(row.met for row in rows) else 1


def main(
    parser: argparse.ArgumentParser,
    table: Iterable[N],
    run: Callable[[list[N], argparse.Namespace, quiet.Watch], int],
) -> int:
    """Run the entries that `--only` names, or list them; returns the exit code."""
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    options = parser.parse_args()
    chosen = [entry for entry in table if re.search(options.only, entry.name)]
    if options.list:
        print("\n".join(entry.name for entry in chosen))
        return 0
    return quiet.main(options, lambda watch: run(chosen, options, watch))
