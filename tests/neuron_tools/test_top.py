"""neuron-top: what is on the screen, what keys do, and the program in a real terminal."""

import curses
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from neuron_tools.machine import machine
from neuron_tools.monitor import config
from neuron_tools.monitor.collect import Collector
from neuron_tools.top import command
from neuron_tools.top.screen import Document, View, render, size_text, texts, tree
from neuron_tools.top.tree import every
from tests.neuron_tools.registry_files import Core, Process

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
_TMUX = shutil.which("tmux") or ""
JOB = Process(
    header={"tag": "trainer", "pinned_bytes": 3 * MIB},
    cores=[
        Core(0, {"reserved_bytes": 10 * MIB, "allocated_bytes": 7 * MIB,
                 "scratchpad_bytes": 2 * MIB, "constant_bytes": MIB}),
        Core(1, {"reserved_bytes": 4 * MIB, "allocated_bytes": 4 * MIB}), Core(2), Core(3),
    ],
    programs=[("step", 0, MIB)],
)  # fmt: skip


@pytest.fixture
def document(folder: Path) -> Document:
    JOB.write(folder)
    collector = Collector(config.default(), machine)
    collector.start()
    busy = Core(0, JOB.cores[0].values | {"busy_ticks": 10**12, "flops": 3 * 10**12})
    Process(JOB.header, [busy, *JOB.cores[1:]], JOB.programs).write(folder)
    return collector.collect(everything=True)


def screen(document: Document, view: View, width: int = 80, height: int = 24) -> list[str]:
    return list(texts(render(document, view, width, height)))


def test_the_parts(document: Document) -> None:
    lines = screen(document, View())
    text = "\n".join(lines)
    assert "emulated  trn2.3xlarge  (this host's time)" in lines[0]
    order = ["NeuronCore v3d Utilization (%", "VCPU Utilization", "Memory Usage Summary",
             "Memory Usage Details"]  # fmt: skip
    assert [text.index(part) for part in order] == sorted(text.index(part) for part in order)
    assert " 100.00%  ND0 NC1 " in next(line for line in lines if line.startswith("ND0 NC0"))
    for label in ("System vCPU usage", "Runtime vCPU usage", "Host Used Memory", "DMA Buffers",
                  "App. Memory", "Device Used Memory", "Model Code", "Runtime Memory",
                  "Model Scratchpad", "Model ID", "Host Memory", "Device Memory"):  # fmt: skip
        assert label in text
    assert lines[-1].split() == [">1:all<", "2:trainer"]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 12), (20, 5), (200, 60), (1, 1)])
@pytest.mark.parametrize("instance", ["", "trn2.48xlarge", "inf2.48xlarge"])
def test_it_fits_any_window(
    width: int, height: int, instance: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_EMULATED_INSTANCE_TYPE", instance)
    JOB.write(folder)
    document = Collector(config.default(), machine).start()
    for flops in (False, True):
        view = View(flops=flops)
        command.press(ord("x"), view, document)
        lines = render(document, view, width, height)
        assert len(lines) == max(1, height)
        if width >= 80 and height >= 24:
            assert max(len(line) for line in texts(lines)) <= width


def test_all_cores_of_the_largest_machine_fit(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_EMULATED_INSTANCE_TYPE", "trn2.48xlarge")
    JOB.write(folder)
    text = "\n".join(screen(Collector(config.default(), machine).start(), View(), 160, 60))
    assert all(f"ND{device} NC{core}" in text for device in range(16) for core in range(4))


def test_flops(document: Document) -> None:
    view = View()
    command.press(ord("F"), view, document)
    lines = screen(document, view)
    assert any("Utilization (TFLOPS" in line for line in lines)
    assert "TFLOPS" in next(line for line in lines if line.startswith("ND0 NC0"))


def test_parents_are_sums(document: Document) -> None:
    nodes = tree(document, View())
    (job,) = nodes
    assert (job.host, job.device) == (3 * MIB, 14 * MIB)
    for node in every(nodes):
        if node.children:
            assert node.host == sum(child.host for child in node.children)
            assert node.device == sum(child.device for child in node.children)
    core = job.children[1]
    assert (core.name, core.device) == ("ND 0 NC 0", 10 * MIB)
    step = core.children[0]
    assert (step.name, step.model, step.device) == ("step", "1", MIB)
    assert len({node.key for node in every(nodes)}) == len(list(every(nodes)))


def test_keys_of_the_tree(document: Document) -> None:
    view = View()

    def rows() -> list[str]:
        return [line for line in screen(document, view, 80, 60) if "ND 0 NC" in line]

    assert not rows()
    command.press(curses.KEY_RIGHT, view, document)
    assert len(rows()) == 2
    for _ in range(2):
        command.press(curses.KEY_DOWN, view, document)
    command.press(curses.KEY_RIGHT, view, document)
    assert any("step" in line for line in screen(document, view, 80, 60))
    command.press(curses.KEY_LEFT, view, document)  # closes the core
    command.press(curses.KEY_LEFT, view, document)  # goes to the process
    assert view.cursor == 0
    command.press(curses.KEY_LEFT, view, document)
    assert not rows()
    command.press(ord("x"), view, document)
    assert any("step" in line for line in screen(document, view, 80, 60))
    command.press(ord("x"), view, document)
    assert not rows()
    command.press(curses.KEY_UP, view, document)
    assert view.cursor == 0


def test_tabs(document: Document) -> None:
    view = View()
    command.press(ord("d"), view, document)
    assert view.tab == str(os.getpid())
    assert screen(document, view)[-1].split() == ["1:all", ">2:trainer<"]
    command.press(ord("d"), view, document)
    assert view.tab == "all"
    command.press(ord("a"), view, document)
    assert view.tab == str(os.getpid())
    command.press(ord("1"), view, document)
    command.press(ord("9"), view, document)
    assert view.tab == "all"
    view.tab = "123456"  # a process that has ended
    assert screen(document, view)[-1].split() == [">1:all<", "2:trainer"]


def test_sizes() -> None:
    assert [size_text(s) for s in (0, 1023, 1024, 24 << 30, 5 << 50)] == [
        "0B", "1023B", "1.0KB", "24.0GB", "5120.0TB",
    ]  # fmt: skip


def test_unknown_words_end_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--interval", "1"]) == 1
    assert capsys.readouterr().out.startswith("neuron-top takes no arguments")


def test_without_a_terminal(folder: Path) -> None:
    assert not folder.exists()
    done = subprocess.run(
        [sys.executable, "-m", "neuron_tools.top.command"], cwd=ROOT, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "neuron-top: needs a terminal; neuron-monitor prints the same data for scripts\n"
    )


class Terminal:
    """neuron-top in tmux, in a window of 80 x 24."""

    def __init__(self, folder: Path, term: str) -> None:
        self.socket = str(folder / "tmux")
        program = f"{sys.executable} -m neuron_tools.top.command; echo ended $?; sleep 60"
        environ = {
            **os.environ, "PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8", "SHELL": "/bin/sh",
        }  # fmt: skip
        environ.pop("TMUX", None)
        subprocess.run(
            [_TMUX, "-S", self.socket, "-f", "/dev/null", "new-session", "-d", "-x", "80", "-y",
             "24", f"TERM={term} sh -c '{program}'"],
            env=environ, cwd=ROOT, check=True,
        )  # fmt: skip

    def run(self, *words: str) -> str:
        done = subprocess.run(
            [_TMUX, "-S", self.socket, *words], capture_output=True, text=True, check=True
        )
        return done.stdout

    def until(self, good: Callable[[str], bool]) -> str:
        for _ in range(300):
            shown = self.run("capture-pane", "-p")
            if good(shown):
                return shown
            time.sleep(0.1)
        raise AssertionError(shown)


@pytest.mark.skipif(not _TMUX, reason="tmux is not installed")
@pytest.mark.parametrize("term", ["screen-256color", "vt100"])
def test_in_a_terminal(folder: Path, term: str) -> None:
    JOB.write(folder)
    terminal = Terminal(folder, term)
    try:
        shown = terminal.until(lambda text: "2:trainer" in text)
        lines = shown.splitlines()
        assert len(lines) <= 24
        assert "neuron-top" in lines[0]
        assert ">1:all<" in lines[-1]
        terminal.run("send-keys", "F")
        terminal.until(lambda text: "TFLOPS" in text)
        terminal.run("send-keys", "x")
        terminal.until(lambda text: "Tensors" in text and "- trainer" in text)
        terminal.run("send-keys", "d")
        terminal.until(lambda text: ">2:trainer<" in text)
        terminal.run("send-keys", "q")
        terminal.until(lambda text: "ended 0" in text)
    finally:
        terminal.run("kill-server")
