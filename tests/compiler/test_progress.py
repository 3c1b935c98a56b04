"""The progress line: silent for short work, redrawn on a terminal, some lines in a file."""

from __future__ import annotations

import io
import re
import threading
import time
from typing import Any

import pytest

from neuronxcc import progress
from neuronxcc.environment.compilation import TORCH_NEURONX_PROGRESS
from neuronxcc.progress import Progress, enabled, report


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_short_work_is_silent() -> None:
    for stream in (io.StringIO(), Terminal()):
        with Progress("compiling x", stream, show=True) as work:
            report("a", 1, 2)
            assert work._state == ("a", 1, 2)
        assert stream.getvalue() == ""


def until(stream: io.StringIO, text: str) -> None:
    deadline = time.monotonic() + 30
    while text not in stream.getvalue():
        assert time.monotonic() < deadline, f"{text!r} is not in {stream.getvalue()!r}"
        time.sleep(0.005)


def test_a_file_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_LINE_SECONDS", 0.02)
    stream = io.StringIO()
    with Progress("compiling gpt2", stream, patience=0.0, show=True):
        until(stream, "[neuron] compiling gpt2: starting, 0 s\n")
        report("fusing", 3, 12)
        until(stream, "[neuron] compiling gpt2: fusing 3/12, ")
        report("writing")
        until(stream, "[neuron] compiling gpt2: writing, ")
    last = stream.getvalue().splitlines()[-1]
    assert re.fullmatch(r"\[neuron\] compiling gpt2: done after \d+\.\d s", last)


def test_a_terminal_gets_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_REDRAW_SECONDS", 0.02)
    monkeypatch.setenv("COLUMNS", "60")
    stream = Terminal()
    line = "[neuron] compiling gpt2 [#####...............] 3/12 fusing loops of"[:59]
    with Progress("compiling gpt2", stream, patience=0.0, show=True):
        report("fusing loops of many names", 3, 12)
        until(stream, "\r" + line + "\x1b[K")
    assert "\n" not in stream.getvalue()
    assert stream.getvalue().endswith("\r\x1b[K")  # wiped


def failing_work(stream: io.StringIO) -> None:
    with Progress("x", stream, patience=0.0, show=True):
        until(stream, "[neuron] x")
        raise KeyError


def test_work_that_fails_is_wiped_too() -> None:
    stream = Terminal()
    with pytest.raises(KeyError):
        failing_work(stream)
    assert stream.getvalue().endswith("\r\x1b[K")
    report("nobody listens")


def test_work_beside_other_work_does_not_wait_for_it() -> None:
    first, second = Terminal(), Terminal()
    with Progress("a", first, patience=0.0, show=True):
        until(first, "[neuron] a")
        with Progress("b", second, patience=0.0, show=True):
            time.sleep(0.01)
    assert second.getvalue() == ""


def test_nested_work_reports_to_the_inner() -> None:
    with Progress("outer", show=False) as outer, Progress("inner", show=False) as inner:
        report("a")
        assert (outer._state[0], inner._state[0]) == ("", "a")
    with outer:
        report("b")
    assert outer._state[0] == "b"


def test_threads_have_their_own() -> None:
    with Progress("main", show=False) as work:
        thread = threading.Thread(target=report, args=("other",))
        thread.start()
        thread.join()
        assert work._state[0] == ""


def test_a_stream_that_fails_stops_nothing() -> None:
    class Closed(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    with Progress("x", Closed(), patience=0.0, show=True):
        time.sleep(0.02)
    gone = io.StringIO()
    gone.close()
    with Progress("x", gone, patience=0.0, show=True):
        time.sleep(0.02)


def test_two_seconds_are_the_patience(capsys: pytest.CaptureFixture[str]) -> None:
    assert progress.PATIENCE_SECONDS == 2.0
    with Progress("x", show=True):
        time.sleep(0.1)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("environ", "shown"),
    [
        ({}, True),
        ({TORCH_NEURONX_PROGRESS.name: "0"}, False),
        ({TORCH_NEURONX_PROGRESS.name: "1"}, True),
        ({"LOCAL_RANK": "0"}, True),
        ({"LOCAL_RANK": "3"}, False),
        ({"LOCAL_RANK": "3", TORCH_NEURONX_PROGRESS.name: "1"}, True),
        ({"LOCAL_RANK": "0", TORCH_NEURONX_PROGRESS.name: "0"}, False),
    ],
)
def test_the_switch(environ: dict[str, str], shown: bool) -> None:
    assert enabled(environ) is shown


def test_the_switch_is_read(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv(TORCH_NEURONX_PROGRESS.name, "0")
    with Progress("x", patience=0.0):
        time.sleep(0.05)
    assert capsys.readouterr().err == ""
