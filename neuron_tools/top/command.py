"""The command `neuron-top`.

It paints with curses, which is there wherever Python is, works over ssh and without colours, and
starts at once. Keys: arrows and x for the tree, F for TFLOPS, 1-9 and a, d for the tabs, q to end.
"""

from __future__ import annotations

import contextlib
import curses
import locale
import sys
import time
from collections.abc import Callable, Sequence

from neuron_tools.machine import ToolError, clock, machine
from neuron_tools.monitor import config
from neuron_tools.monitor.collect import Collector
from neuron_tools.top.screen import BAR, CURSOR, SELECTED, TITLE, Document, View, render, tabs, tree
from neuron_tools.top.tree import every, visible
from neuronxcc.unread import ends_quietly

_PERIOD = 1.0  # seconds
_CONTROL_C = 3
_USAGE = "neuron-top takes no arguments; neuron-monitor prints the same data for scripts\n"


def _step(view: View, document: Document, step: int) -> None:
    names = [tab for tab, _ in tabs(document)]
    now = names.index(view.tab) if view.tab in names else 0
    view.tab, view.cursor = names[(now + step) % len(names)], 0


def _pick(view: View, document: Document, number: int) -> None:
    names = [tab for tab, _ in tabs(document)]
    if number <= len(names):
        view.tab, view.cursor = names[number - 1], 0


def press(key: int, view: View, document: Document) -> bool:
    """Do what a key asks for; False if it ends the program."""
    if key in {ord("q"), ord("Q"), _CONTROL_C}:
        return False
    if key in {ord("f"), ord("F")}:
        view.flops = not view.flops
    elif key in {ord("a"), ord("d")}:
        _step(view, document, 1 if key == ord("d") else -1)
    elif ord("1") <= key <= ord("9"):
        _pick(view, document, key - ord("0"))
    else:
        _move(key, view, document)
    return True


def _move(key: int, view: View, document: Document) -> None:
    """Do what a key asks for in the tree."""
    nodes = tree(document, view)
    rows = [node for _, node in visible(nodes, view.opened)]
    if not rows:
        return
    at = rows[min(view.cursor, len(rows) - 1)]
    if key == curses.KEY_UP:
        view.cursor = max(0, view.cursor - 1)
    elif key == curses.KEY_DOWN:
        view.cursor = min(len(rows) - 1, view.cursor + 1)
    elif key == curses.KEY_RIGHT and at.children:
        view.opened.add(at.key)
    elif key == curses.KEY_LEFT and at.key in view.opened:
        view.opened.discard(at.key)
    elif key == curses.KEY_LEFT:
        parent = at.key.rpartition("/")[0]  # a key begins with that of the parent
        keys = [node.key for node in rows]
        view.cursor = keys.index(parent) if parent in keys else view.cursor
    elif key in {ord("x"), ord("X")}:
        parents = {node.key for node in every(nodes) if node.children}
        view.opened = set() if parents <= view.opened else view.opened | parents


def _styles() -> dict[str, int]:
    """Attributes of the styles; without colours too."""
    styles = {TITLE: curses.A_BOLD, SELECTED: curses.A_BOLD, CURSOR: curses.A_REVERSE, BAR: 0}
    if curses.has_colors():
        curses.start_color()
        with contextlib.suppress(curses.error):  # a terminal whose background can't be kept
            curses.use_default_colors()
        curses.init_pair(1, curses.COLOR_GREEN, -1 if curses.can_change_color() else 0)
        curses.init_pair(2, curses.COLOR_CYAN, -1 if curses.can_change_color() else 0)
        styles[SELECTED] |= curses.color_pair(1)
        styles[BAR] |= curses.color_pair(2)
    return styles


def _paint(screen: curses.window, document: Document, view: View, styles: dict[str, int]) -> None:
    height, width = screen.getmaxyx()
    screen.erase()
    for row, line in enumerate(render(document, view, width, height)[:height]):
        column = 0
        for text, style in line:
            room = width - column - (row == height - 1)  # the last place of the screen scrolls it
            if room <= 0 or not text:
                continue
            with contextlib.suppress(curses.error):  # the window has become smaller meanwhile
                screen.addstr(row, column, text[:room], styles.get(style, 0))
            column += len(text)
    screen.refresh()


def _run(screen: curses.window, collector: Collector) -> None:
    with contextlib.suppress(curses.error):  # a terminal that can't hide its cursor
        curses.curs_set(0)
    styles, view = _styles(), View()
    document = collector.start()
    due = time.monotonic() + _PERIOD / 4  # the first values soon
    while True:
        _paint(screen, document, view, styles)
        screen.timeout(max(1, round(1000 * (due - time.monotonic()))))
        key = screen.getch()
        if key >= 0 and not press(key, view, document):
            return
        if time.monotonic() >= due:
            document = collector.collect(everything=True)
            due = time.monotonic() + _PERIOD


def _full_screen(run: Callable[[curses.window], None]) -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ToolError("needs a terminal; neuron-monitor prints the same data for scripts")
    try:
        curses.wrapper(run)
    except curses.error as error:
        raise ToolError(f"this terminal cannot be used: {error}") from error


@ends_quietly
def main(words: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    if list(sys.argv[1:] if words is None else words):
        sys.stdout.write(_USAGE)
        return 1
    try:
        collector = Collector(config.default(), machine, clock())
        machine()  # what is wrong is said before the screen is cleared
        locale.setlocale(locale.LC_ALL, "")
        with contextlib.suppress(KeyboardInterrupt):
            _full_screen(lambda screen: _run(screen, collector))
    except ToolError as error:
        sys.stderr.write(f"neuron-top: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
