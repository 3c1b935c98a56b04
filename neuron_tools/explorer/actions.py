"""What the words of `neuron-explorer` do; `cli` reads them."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from neuron_tools.explorer import formats, session
from neuron_tools.explorer.advice import recommendations
from neuron_tools.explorer.session import Event, Session, SessionError
from neuron_tools.explorer.tables import cores_of, place_of
from neuronxcc.files import write_whole


def say(text: object) -> None:
    """Print a line."""
    sys.stdout.write(f"{text}\n")


def complain(text: str) -> None:
    """Print a line to standard error."""
    sys.stderr.write(f"{text}\n")


def capture(options: argparse.Namespace) -> int:
    """Run a NEFF, keep its profile, and check what was asked for."""
    # What runs a NEFF needs PyTorch, which takes seconds to import.
    from neuron_tools.explorer.capture import capture as run  # noqa: PLC0415

    if len(options.inputs) % 2:
        raise SessionError("inputs are pairs of a name and a file")
    done = run(
        options.neff,
        None if options.disable_profile else options.ntff,
        dict(zip(options.inputs[::2], map(Path, options.inputs[1::2]), strict=True)),
        executions=options.num_exec,
        kept=options.profile_nth_exec,
        outputs=(".npy",) * options.save_output_npy + ("",) * options.save_output,
        checksums=options.check_output_determinism,
    )
    if done.profile is not None:
        say(done.profile)
    for name, path in done.outputs:
        say(f'saved output "{name}" as "{path}"')
    for name, sums in done.checksums.items():
        same = "equal in all executions" if len(set(sums)) == 1 else "DIFFERENT"
        say(f'output "{name}": {same}, CRC32 {", ".join(f"{s:08x}" for s in dict.fromkeys(sums))}')
    return 1 if any(len(set(sums)) > 1 for sums in done.checksums.values()) else 0


def inspect(options: argparse.Namespace) -> int:
    """Run a command whose processes write profiles; returns its exit code."""
    words = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not words:
        raise SessionError("inspect takes the command that is to be observed")
    asked = {
        "NEURON_RT_INSPECT_ENABLE": "1",
        "NEURON_RT_INSPECT_OUTPUT_DIR": str(options.output.absolute()),
    }
    if options.num_trace_events is not None:
        asked["NEURON_RT_INSPECT_SYS_TRACE_MAX_EVENTS_PER_NC"] = str(options.num_trace_events)
    environment = {**os.environ, **asked}
    return subprocess.run(words, env=environment, check=False).returncode  # noqa: S603 - the user's


def read(options: argparse.Namespace) -> Session:
    """Read what the options name.

    Raises:
        SessionError: They name nothing, or both of a directory and a file.
    """
    if (options.ntff is None) == (options.session_dir is None):
        raise SessionError("give a directory with -d or a file with -s, and not both")
    return _file(options.ntff) if options.ntff is not None else _folder(options.session_dir)


def _filtered(found: Session, options: argparse.Namespace) -> Session:
    """Leave out what the options leave out."""
    kept: list[Callable[[Event], bool]] = []
    if options.ignore_device_profile:
        kept.append(lambda event: event.source != "neuron_hw")
    if options.ignore_system_profile:
        kept.append(lambda event: event.source == "neuron_hw")
    if options.core is not None:
        kept.append(lambda event: event.core in {options.core, -1})
    if options.event_type is not None:
        wanted = frozenset(options.event_type.split(","))
        kept.append(lambda event: bool(wanted & {event.kind, event.name, event.source}))
    if options.instance is not None and place_of(found)[0] not in options.instance.split(","):
        kept.append(lambda _: False)
    found.events = [event for event in found.events if all(test(event) for test in kept)]
    return found


def _file(path: Path) -> Session:
    """Read what one core did, or an estimate."""
    if path.suffix != ".json":
        return Session(events=session.read_events(path))
    from neuron_tools.explorer import predicted  # noqa: PLC0415 - it needs NumPy

    return predicted.read_estimate(path)


def _folder(folder: Path) -> Session:
    """Read the latest profile below a directory; if there is none, the latest prediction."""
    measured = session.profiles(folder)
    tables = [] if (folder / session.INFO_FILE).exists() else session.predictions(folder)
    if len(measured) + len(tables) > 1:
        kinds = f"{len(measured)} profiles and {len(tables)} predictions are in {folder}"
        complain(f"{kinds}; this is {(measured or tables)[-1]}")
    if measured:
        return session.read(measured[-1])
    if not tables:
        raise SessionError(
            f"no profile is in {folder}: a directory of one has a file {session.INFO_FILE}, one of "
            f"a prediction {session.ABOUT_FILE}. No metadata found for system profile"
        )
    from neuron_tools.explorer import predicted  # noqa: PLC0415 - it needs NumPy

    return predicted.read_tables(tables[-1])


def view(options: argparse.Namespace) -> int:
    """Show a profile or a prediction, or write it in another format."""
    found = _filtered(read(options), options)
    name = options.display_name or (options.session_dir or options.ntff).stem
    kind, target = options.output_format, options.output_file
    if kind == "parquet":
        ingested = Path(options.data_path, "profiles", "global", f"{name}@latest")
        for path in formats.save_tables(found, target or ingested):
            say(path)
        return 0
    if kind is None:
        from neuron_tools.explorer.page import serve, write_page  # noqa: PLC0415

        page = write_page(found, Path(options.data_path, f"{name}.html"), name)
        say(page)
        return 0 if options.ingest_only else serve(page, options.port)
    # A prediction is of a device alone.
    system = options.session_dir is not None and not found.is_simulation
    text = {
        "summary-json": formats.summary_json,
        "summary-text": formats.summary_text,
        "perfetto": formats.perfetto,
        "json": formats.system_json if system else formats.device_json,
    }[kind](found)
    if target is None and kind == "perfetto":
        target = Path(f"{'system' if system else 'device'}_profile.pftrace")
    if target is None:
        say(text)
    else:
        write_whole(target, text.encode())
        say(target)
    return 0


def recommend(options: argparse.Namespace) -> int:
    """Say what rules find."""
    found = read(options)
    say(f"# {found.time_source}")
    said = recommendations(found)
    if not said:
        say("The rules find nothing to recommend.")
    for lines in said:
        say("\n  ".join(lines))
    return 0


def show_session(options: argparse.Namespace) -> int:
    """Say what profiles and predictions a directory has."""
    rows: list[dict[str, Any]] = []
    for folder in (
        *session.profiles(options.session_dir),
        *session.predictions(options.session_dir),
    ):
        simulated = (folder / session.ABOUT_FILE).exists()
        row: dict[str, Any] = {"session": str(folder), "is_simulation": simulated, "error": ""}
        try:
            found = _folder(folder)
            row |= {"events": len(found.events), "cores": cores_of(found),
                    "target": found.info.get("target", ""),
                    "dropped_events": found.info.get("dropped_events", 0)}  # fmt: skip
        except (SessionError, OSError, ModuleNotFoundError) as error:
            row["error"] = str(error)
        rows.append(row)
    if options.show_errors:
        rows = [row for row in rows if row["error"]]
    if options.json:
        say(json.dumps(rows, indent=2))
        return 0
    for row in rows:
        kind = "predicted" if row["is_simulation"] else "measured"
        counted = f"{row.get('events', 0)} events on cores {row.get('cores', [])}"
        say(f"{row['session']}: {row['error'] or f'{kind}, {counted}'}")
    return 0
