"""The command `neuron-monitor`: a JSON document in a line on standard output, period by period.

    neuron-monitor [--verbose 0..4] [-c|--config-file FILE]

The first document comes at once. Exit codes: 0 after SIGINT or SIGTERM, 1 what was asked for is not
possible, 2 wrong words.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from neuron_tools.machine import Machine, ToolError, clock, machine, notes
from neuron_tools.monitor import config
from neuron_tools.monitor.collect import Collector
from neuron_tools.sysfs.tree import keep
from neuronxcc.environment.tools import NEURON_SYSFS_ROOT
from neuronxcc.unread import ends_quietly

_NOTES, _DOCUMENTS = 1, 3  # levels of --verbose


class _Log:
    """What is said on standard error."""

    def __init__(self, verbose: int) -> None:
        self._verbose = verbose
        self._said: set[str] = set()

    def once(self, text: str) -> None:
        if self._verbose >= _NOTES and text not in self._said:
            self._said.add(text)
            self.write(_NOTES, text)

    def write(self, level: int, text: str) -> None:
        if self._verbose >= level:
            now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
            sys.stderr.write(f"{now} neuron-monitor: {text}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="neuron-monitor",
        description="Write what the emulated machine and its users do, as JSON, period by period.",
    )
    parser.add_argument(
        "--verbose", type=int, choices=range(5), default=0,
        help="how much is said on standard error: 0 nothing (default) to 4",
    )  # fmt: skip
    parser.add_argument(
        "-c", "--config-file", type=Path, metavar="FILE",
        help="which groups of metrics, how often, of which processes; all every 5 s if not given",
    )  # fmt: skip
    return parser


def _config(path: Path | None) -> config.Config:
    if path is None:
        return config.default()
    try:
        return config.load(path)
    except config.ConfigError as error:
        raise ToolError(f"{path}: {error}") from error


def _run(collector: Collector, log: _Log, stop: threading.Event) -> None:
    document = collector.start()
    while True:
        sys.stdout.write(json.dumps(document, separators=(",", ":")) + "\n")
        sys.stdout.flush()
        log.write(_DOCUMENTS, f"{len(document['neuron_runtime_data'])} processes")
        if stop.wait(max(0.0, collector.due - time.monotonic())):
            return
        document = collector.collect()


@ends_quietly
def main(words: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    options = _parser().parse_args(words)
    log = _Log(options.verbose)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    root = NEURON_SYSFS_ROOT.get()

    def look() -> Machine:
        found = machine()
        for note in notes(found):
            log.once(note)
        if root is not None:
            keep(found, root, clock())
        return found

    try:
        _run(Collector(_config(options.config_file), look, clock()), log, stop)
    except ToolError as error:
        sys.stderr.write(f"neuron-monitor: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
