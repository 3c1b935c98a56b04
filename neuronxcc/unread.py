"""The end of commands whose output nobody reads, as in `neuronx-cc compile --help | head -1`."""

from __future__ import annotations

import functools
import os
import select
import signal
import sys
from collections.abc import Callable
from typing import ParamSpec, TextIO

# What a shell reports of a command that SIGPIPE ended.
UNREAD = 128 + signal.SIGPIPE
Words = ParamSpec("Words")


def ends_quietly(main: Callable[Words, int]) -> Callable[Words, int]:
    """Let a command end quietly when the reader of its output is gone.

    Args:
        main: The command; returns its exit code. Where it handles `OSError` itself, it must let
            `BrokenPipeError` pass.

    Returns:
        A function that flushes what was printed, and returns `UNREAD` where that or a write before
        it failed. Python alone would print a traceback, or complain at its end. A pipe to somebody
        else that breaks is the command's own affair: that error passes.
    """

    @functools.wraps(main)
    def run(*args: Words.args, **kwargs: Words.kwargs) -> int:
        try:
            try:
                return main(*args, **kwargs)
            finally:  # also where argparse ends the process after `--help`
                for stream in _streams():
                    stream.flush()
        except SystemExit as ended:
            # Argparse has printed, and overlooks it if that failed.
            printed = sys.stderr if ended.code else sys.stdout
            if printed not in _lost():
                raise
            return UNREAD
        except BrokenPipeError:
            if not _lost():
                raise
            return UNREAD

    return run


def _lost() -> list[TextIO]:
    """Streams without a reader; what is still buffered for them goes nowhere when Python ends."""
    unread = [stream for stream in _streams() if _is_unread(stream)]
    for stream in unread:
        _lose(stream)
    return unread


def _streams() -> list[TextIO]:
    """Standard output and error; a process may have been started without them."""
    streams: list[TextIO | None] = [sys.stdout, sys.stderr]
    return [stream for stream in streams if stream is not None and not stream.closed]


def _is_unread(stream: TextIO) -> bool:
    try:
        descriptor = stream.fileno()
    except OSError:  # no file: somebody collects it in memory
        return False
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def _lose(stream: TextIO) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, stream.fileno())
    finally:
        os.close(nowhere)
