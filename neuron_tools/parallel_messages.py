"""Messages of `neuron_parallel_compile` in the documented shape."""

from __future__ import annotations

import datetime as dt
import os
import sys


class Speaker:
    """Prints lines such as `2026-11-22 04:45:45.000091:  4711  INFO ||NEURON_CACHE||: ...`."""

    def info(self, part: str, text: str) -> None:
        """Log progress; `part` is "CACHE", "CC_WRAPPER" or "PARALLEL_COMPILE"."""
        self._say("INFO", f"NEURON_{part}", text)

    def warning(self, part: str, text: str) -> None:
        """Log something that a user should know."""
        self._say("WARNING", f"NEURON_{part}", text)

    def error(self, part: str, text: str) -> None:
        """Log an error."""
        self._say("ERROR", f"NEURON_{part}", text)

    def analysis(self, text: str) -> None:
        """Log the progress of `analyze`."""
        self._say("INFO", "ANALYZE", text)

    @staticmethod
    def _say(level: str, part: str, text: str) -> None:
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
        stream = sys.stdout if level == "INFO" else sys.stderr
        stream.write(f"{now}:  {os.getpid()}  {level} ||{part}||: {text}\n")
        stream.flush()
