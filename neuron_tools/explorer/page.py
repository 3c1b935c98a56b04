"""A profile as one HTML page that needs nothing else: a timeline with zoom, totals, advice."""

from __future__ import annotations

import http.server
import json
import sys
from collections import defaultdict
from contextlib import suppress
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from neuron_tools.explorer.advice import recommendations
from neuron_tools.explorer.formats import group_of, row_name
from neuron_tools.explorer.session import Event, Session
from neuronxcc.files import write_whole

#: Events that a page has at most: the longest.
MOST: Final = 100_000
_MOST_TOTALS = 60


def write_page(session: Session, path: Path, title: str) -> Path:
    """Write the page; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, render(session, title).encode())
    return path


def render(session: Session, title: str) -> str:
    """Return the page's text."""
    # "</script>" in a name must not end the script that holds it.
    data = json.dumps(contents(session, title)).replace("<", "\\u003c")
    page = files("neuron_tools.explorer").joinpath("page.html").read_text(encoding="utf-8")
    return page.replace("@DATA@", data)


def contents(session: Session, title: str) -> dict[str, Any]:
    """Return what the page knows; times are nanoseconds from the first event."""
    events = session.events
    if len(events) > MOST:
        kept = sorted(events, key=lambda e: e.end - e.start, reverse=True)[:MOST]
        title += f": the longest {MOST} of {len(events)} events"
        events = sorted(kept, key=lambda e: e.start)
    first = session.start
    names: dict[str, int] = {}
    rows: dict[tuple[str, int, str], list[list[Any]]] = {}
    for event in events:
        number = names.setdefault(event.name, len(names))
        key = group_of(session, event), event.row, row_name(session, event)
        time = event.end - event.start
        rows.setdefault(key, []).append([event.start - first, time, number, 0, event.facts])
    return {
        "title": title,
        "source": session.time_source,
        "end": max((event.end - first for event in events), default=1),
        "names": list(names),
        "rows": [
            {"name": f"{group} {name}", "events": sorted(found, key=lambda e: (e[0], -e[1]))}
            for (group, _, name), found in sorted(rows.items())
        ],
        "totals": _totals(events),
        "advice": [
            *(" ".join(lines) for lines in recommendations(session)),
            *(f"not modelled: {note}" for note in session.notes),
        ],
    }


def _totals(events: list[Event]) -> list[list[Any]]:
    """Names with how often they ran, their nanoseconds, and their share of those of all."""
    totals: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    for event in events:
        if event.source == "neuron_hw" and event.kind != "program":
            totals[event.name][0] += 1
            totals[event.name][1] += event.end - event.start
    whole = sum(total for _, total in totals.values()) or 1
    largest = sorted(totals.items(), key=lambda item: -item[1][1])[:_MOST_TOTALS]
    return [[name, count, total, total / whole] for name, (count, total) in largest]


class _Page(http.server.BaseHTTPRequestHandler):
    def __init__(self, content: bytes, *args: Any) -> None:
        self.content = content
        super().__init__(*args)

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/" else 404)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        if self.path == "/":
            self.wfile.write(self.content)

    def log_message(self, *_: Any) -> None:
        """Say nothing of requests."""


def serve(page: Path, port: int) -> int:
    """Serve the page to this machine until Ctrl-C; returns the exit code."""
    handler = partial(_Page, page.read_bytes())
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        sys.stdout.write(f"http://localhost:{server.server_port}/\n")
        sys.stdout.flush()
        with suppress(KeyboardInterrupt):  # how one ends it
            server.serve_forever()
    return 0
