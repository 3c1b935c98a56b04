"""Compiles collected graphs in several processes, and survives that one of them is killed."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

from neuron_tools.parallel_messages import Speaker
from neuronxcc import collected
from neuronxcc.cache.cache import open_cache
from neuronxcc.cache.local import (
    FAILED_NAME,
    FLAGS_NAME,
    LOG_NAME,
    MOST_TEXT_BYTES,
    NEFF_NAME,
    replace_file,
)
from neuronxcc.files import read_regular
from neuronxcc.frontends.hlo.errors import HloError
from neuronxcc.lowering.errors import LoweringUnsupportedError
from neuronxcc.options import from_environment
from neuronxcc.program.errors import NeffError

_KILLED = (
    "the process that compiled it was killed, perhaps for want of memory; compile fewer at once "
    "(--num_parallel) or set NEURON_PARALLEL_COMPILE_MAX_RETRIES"
)
#: Of the graph itself: it would fail in the same way again.
_LASTING = (HloError, LoweringUnsupportedError, NeffError, RecursionError)
_PASSING = (collected.CollectedError, OSError, MemoryError)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome for a graph.

    Attributes:
        folder: Its entry.
        error: What went wrong; "" if there is a program.
        seconds: The last attempt took.
        retries: Attempts after the first.
    """

    folder: Path
    error: str = ""
    seconds: float = 0.0
    retries: int = 0

    @property
    def ok(self) -> bool:
        """Return whether there is a program now."""
        return not self.error


def attempt(folder: Path) -> Outcome:
    """Compile a collected graph in this process; a lasting failure is kept beside it."""
    start = time.perf_counter()
    error = ""
    try:
        collected.compile_entry(folder, open_cache(from_environment().wrapper))
    except _LASTING as failure:
        error = f"{type(failure).__name__}: {failure}"
        replace_file(folder / LOG_NAME, f"{error}\nCompiler status ERROR\n".encode())
        replace_file(folder / FAILED_NAME, error.encode())
    except _PASSING as failure:
        error = f"{type(failure).__name__}: {failure}"
    return Outcome(folder, error, time.perf_counter() - start)


def compile_all(
    folders: Sequence[Path], say: Speaker, workers: int, most_retries: int
) -> Iterator[tuple[Outcome, int]]:
    """Compile collected graphs.

    Args:
        folders: Their entries.
        say: For messages.
        workers: Processes at once.
        most_retries: Further attempts for each that fails.

    Yields:
        The outcome of each, as they end, and how many are being compiled at that time.
    """
    for folder in folders:
        say.info("CC_WRAPPER", f"Call compiler with cmd: {command(folder)}")
    # A killed process breaks the pool for all. What did not end then is tried one at a time, so
    # that the next one that is killed is known to be the one to blame.
    left = list(folders)
    if workers > 1 and len(folders) > 1:
        for first, running in _together(folders, min(workers, len(folders))):
            left.remove(first.folder)
            yield _again(first, say, most_retries), running
    for folder in left:
        yield _again(_alone(folder), say, most_retries), 0


def command(folder: Path) -> str:
    """The command line that compiles a collected graph by hand."""
    try:
        flags = json.loads(read_regular(folder / FLAGS_NAME, MOST_TEXT_BYTES))
        words = [str(word) for word in flags]
    except (OSError, ValueError, TypeError, RecursionError):
        words = []  # compiling it will say what is wrong
    output = folder / NEFF_NAME
    model = folder / collected.HLO_NAME
    return shlex.join(["neuronx-cc", "compile", str(model), *words, "--output", str(output)])


def _again(outcome: Outcome, say: Speaker, most_retries: int) -> Outcome:
    """Try again what failed, as often as is allowed."""
    while not outcome.ok:
        text = f"{outcome.folder / collected.HLO_NAME}: {outcome.error}"
        say.error("PARALLEL_COMPILE", f"compilation failed: {text}")
        if outcome.retries >= most_retries:
            return outcome
        outcome = replace(_alone(outcome.folder), retries=outcome.retries + 1)
    say.info("CC_WRAPPER", f"{outcome.folder.name}: Compiler status PASS")
    return outcome


def _alone(folder: Path) -> Outcome:
    """Compile a graph in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return _result(pool.submit(attempt, folder)) or Outcome(folder, _KILLED)


def _together(folders: Sequence[Path], workers: int) -> Iterator[tuple[Outcome, int]]:
    """Compile graphs in a pool; ends early if one of its processes is killed."""
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(attempt, folder) for folder in folders}
        while waiting:
            ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in ended:
                outcome = _result(future)
                if outcome is not None:
                    yield outcome, min(workers, len(waiting))


def _result(future: Future[Outcome]) -> Outcome | None:
    """The outcome of an attempt, None if its process was killed."""
    try:
        return future.result()
    except BrokenProcessPool:
        return None
