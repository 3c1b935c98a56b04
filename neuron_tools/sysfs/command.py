"""The command `neuron-sysfs`: writes the driver's tree of counters below a directory.

    neuron-sysfs [--root DIR] [--period SECONDS]

Without a period it writes the tree once; with one it keeps it, until SIGINT or SIGTERM.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from neuron_tools.machine import ToolError, clock, machine, notes
from neuron_tools.sysfs.tree import Tree
from neuronxcc.environment.tools import NEURON_SYSFS_ROOT
from neuronxcc.unread import ends_quietly


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0.1 <= seconds <= 86400:
        raise argparse.ArgumentTypeError("must be from 0.1 to 86400")
    return seconds


@ends_quietly
def main(words: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="neuron-sysfs", description="Write the driver's tree of counters below a directory."
    )
    parser.add_argument("--root", type=Path, help="the directory; NEURON_SYSFS_ROOT if not given")
    parser.add_argument("--period", type=_seconds, help="keep it, updated so often, in seconds")
    options = parser.parse_args(words)
    root = options.root or NEURON_SYSFS_ROOT.get()
    if root is None:
        parser.error("say where: --root DIR, or set NEURON_SYSFS_ROOT")
    stop = threading.Event()
    if options.period is not None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
    tree = Tree(root, clock())
    try:
        while True:
            found = machine()
            tree.update(found)
            if options.period is None:
                for note in notes(found):
                    sys.stderr.write(f"neuron-sysfs: {note}\n")
                return 0
            if stop.wait(options.period):
                return 0
    except ToolError as error:
        sys.stderr.write(f"neuron-sysfs: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
