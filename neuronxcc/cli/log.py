"""Messages of the command: a log file with all of them, the terminal with those of a level."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from neuronxcc.option_table import LEVELS

USER = 35  # between warning and error: what everybody should see, as the vendor's status line


class MessageLog:
    """A log file, and the terminal: debug and info go to standard output, the rest to the errors.

    Args:
        path: The log file; lines are added to what is there.
        level: The lowest level that the terminal shows, as in `logging`.
    """

    def __init__(self, path: Path, level: int) -> None:
        self._path, self._level = path, level
        self._file: TextIO | None = None

    def __enter__(self) -> Self:
        try:
            self._file = self._path.open("a", encoding="utf-8")
        except OSError as error:
            self._show("WARNING", LEVELS["warning"], f"there is no log file: {error}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()

    def debug(self, text: str) -> None:
        """For those who look for a defect."""
        self._say("DEBUG", LEVELS["debug"], text)

    def info(self, text: str) -> None:
        """Log progress."""
        self._say("INFO", LEVELS["info"], text)

    def warning(self, text: str) -> None:
        """Log something that a user should know."""
        self._say("WARNING", LEVELS["warning"], text)

    def error(self, text: str) -> None:
        """Log why the command failed."""
        self._say("ERROR", LEVELS["error"], text)

    def user(self, text: str) -> None:
        """The result, without a level in front, on standard output."""
        self._record("USER", text)
        if self._level <= USER:
            print(text)  # noqa: T201

    def _say(self, name: str, level: int, text: str) -> None:
        self._record(name, text)
        self._show(name, level, text)

    def _show(self, name: str, level: int, text: str) -> None:
        if level >= self._level:
            stream = sys.stdout if level <= LEVELS["info"] else sys.stderr
            print(f"[{name}] {text}", file=stream)

    def _record(self, name: str, text: str) -> None:
        if self._file is not None:
            stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            self._file.write(f"{stamp} {name} {text}\n")
            self._file.flush()
