"""A line on standard error for work that takes more than two seconds.

    with Progress("compiling gpt2"):
        report("fusing", 3, 12)      # wherever the work is done, in the same thread

On a terminal it is one line that is drawn again and again and wiped in the end; elsewhere a line
every few seconds. Short work, and all work under TORCH_NEURONX_PROGRESS=0, shows nothing.
"""

from __future__ import annotations

import contextvars
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self, TextIO

from neuronxcc.environment.compilation import TORCH_NEURONX_PROGRESS
from neuronxcc.environment.machine import LOCAL_RANK

PATIENCE_SECONDS = 2.0
_REDRAW_SECONDS = 0.2
_LINE_SECONDS = 5.0
_BAR = 20

# What the compiler tells where it is: a stage, how much is done, and of how much (0: unknown).
Reporter = Callable[[str, int, int], None]


def enabled(environ: Mapping[str, str] | None = None) -> bool:
    """Return whether progress may be shown: TORCH_NEURONX_PROGRESS=0 forbids it, 1 asks for it.

    Otherwise it is shown by one process of those that a launcher started on this machine.
    """
    asked = TORCH_NEURONX_PROGRESS.get(environ)
    return LOCAL_RANK.text(environ) in {"", "0"} if asked is None else asked


class Progress:
    """A piece of work that may take long; a context manager.

    Args:
        title: What is done, "compiling gpt2".
        stream: Where to show it; standard error as it is when the work starts, if None.
        patience: Seconds before anything is shown.
        show: Whether anything is; by `enabled` if None.
    """

    def __init__(
        self,
        title: str,
        stream: TextIO | None = None,
        *,
        patience: float = PATIENCE_SECONDS,
        show: bool | None = None,
    ) -> None:
        self.title = title
        self._stream = stream
        self._patience = patience
        self._show = show
        self._state = ("", 0, 0)
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._token: contextvars.Token[Progress | None] | None = None

    def report(self, stage: str, done: int = 0, total: int = 0) -> None:
        """Say where the work is; costs next to nothing."""
        self._state = (stage, done, total)

    def __enter__(self) -> Self:
        self._token = _current.set(self)
        if enabled() if self._show is None else self._show:
            stream = sys.stderr if self._stream is None else self._stream
            line = _Line(self.title, stream, time.monotonic())
            arguments = (line, self._patience)
            self._thread = threading.Thread(
                target=self._watch, args=arguments, name="neuron-progress", daemon=True
            )
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()
        if self._token is not None:
            _current.reset(self._token)

    def _watch(self, line: _Line, patience: float) -> None:
        if self._done.wait(patience):
            return
        # Several threads may compile; the one line there is shows one of them.
        while not _screen.acquire(timeout=_REDRAW_SECONDS):
            if self._done.is_set():
                return
        try:
            wait = 0.0
            while not self._done.wait(wait):
                wait = line.draw(*self._state)
            line.finish()
        finally:
            _screen.release()


class _Line:
    """How progress looks on one kind of stream."""

    def __init__(self, title: str, stream: TextIO, start: float) -> None:
        self.title, self.stream, self.start = title, stream, start
        try:
            self.terminal = stream.isatty()
        except ValueError:  # closed
            self.terminal = False
        self.drawn = False

    def draw(self, stage: str, done: int, total: int) -> float:
        """Show a state and return after how many seconds to do so again."""
        counted = f" {done}/{total}" if total else ""
        seconds = f"{time.monotonic() - self.start:.0f} s"
        if not self.terminal:
            self._write(f"[neuron] {self.title}: {stage or 'starting'}{counted}, {seconds}\n")
            return _LINE_SECONDS
        filled = min(_BAR * done // total, _BAR) if total else 0
        bar = f" [{'#' * filled}{'.' * (_BAR - filled)}]" if total else ""
        text = f"[neuron] {self.title}{bar}{counted} {stage} {seconds}"
        width = shutil.get_terminal_size().columns - 1
        self._write("\r" + text[:width] + "\x1b[K")
        return _REDRAW_SECONDS

    def finish(self) -> None:
        """Wipe the line, or say how long it took."""
        if not self.drawn:
            return
        seconds = f"{time.monotonic() - self.start:.1f} s"
        done = f"[neuron] {self.title}: done after {seconds}\n"
        self._write("\r\x1b[K" if self.terminal else done)

    def _write(self, text: str) -> None:
        try:
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError):  # nobody listens any more: no reason to stop compiling
            return
        self.drawn = True


_current: contextvars.ContextVar[Progress | None] = contextvars.ContextVar(
    "neuron_progress", default=None
)
_screen = threading.Lock()


def report(stage: str, done: int = 0, total: int = 0) -> None:
    """Say where the innermost `Progress` of this thread is; nothing without one."""
    progress = _current.get()
    if progress is not None:
        progress.report(stage, done, total)
