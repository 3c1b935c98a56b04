"""The command `neuron-explorer`.

    neuron-explorer capture -n FILE.neff [-s profile.ntff] [NAME FILE ...]
    neuron-explorer inspect -o DIR COMMAND ...
    neuron-explorer view -d DIR | -s profile.ntff [--output-format FORMAT]
    neuron-explorer recommend -d DIR | -s profile.ntff
    neuron-explorer --show-profile-schema

Times are measured on the host that emulates the cores; they say nothing about hardware. A kernel's
predicted time on hardware is `nki`'s to tell (docs/performance.md).

Exit codes: 0 done, 1 a file is wrong or a command failed (one line on standard error), 2 wrong
words.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from neuron_tools.explorer import formats, session
from neuron_tools.explorer.advice import advice
from neuron_tools.explorer.session import Session, SessionError
from neuron_tools.explorer.tables import schema_rows
from neuronxcc import __version__
from neuronxcc.files import write_whole
from neuronxcc.program.errors import NeffError
from neuronxcc.tables import VERSION
from neuronxcc.unread import ends_quietly

FORMATS = ("parquet", "perfetto", "json", "summary-json", "summary-text")
# Documented, and without a meaning here.
REFUSED = {
    "--terminology": "there is one set of words",
    "--framework-source-root": "lines have the paths by which Python imported them",
    "--nki-source-root": "lines have the paths by which Python imported them",
    "--show-perfetto-flows": "the trace has no flows",
    "--system-trace-primary-group": "rows are by process and core",
    "--system-trace-secondary-group": "rows are by process and core",
    "--enable-dge-notifs": "an emulated core has no DMA engines",
    "--collectives-workers-per-node": "run the job by torchrun under `neuron-explorer inspect`",
    "--collectives-worker-count": "run the job by torchrun under `neuron-explorer inspect`",
    "--collectives-profile-id": "run the job by torchrun under `neuron-explorer inspect`",
}


def _say(text: object) -> None:
    sys.stdout.write(f"{text}\n")


def _complain(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _capture(options: argparse.Namespace) -> int:
    # What runs a NEFF needs PyTorch, which takes seconds to import.
    from neuron_tools.explorer.capture import capture  # noqa: PLC0415

    if len(options.inputs) % 2:
        raise SessionError("inputs are pairs of a name and a file")
    pairs = dict(zip(options.inputs[::2], map(Path, options.inputs[1::2]), strict=True))
    for path in capture(
        options.neff,
        options.ntff,
        pairs,
        executions=options.num_exec,
        kept=options.profile_nth_exec,
        outputs=options.save_output_npy,
    ):
        _say(path)
    return 0


def _inspect(options: argparse.Namespace) -> int:
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


def _read(options: argparse.Namespace) -> Session:
    """Read what the options name, without what they leave out."""
    if (options.ntff is None) == (options.session_dir is None):
        raise SessionError("give a directory with -d or a file with -s, and not both")
    if options.ntff is not None:
        found = Session(events=session.read_events(options.ntff))
    else:
        folders = session.find(options.session_dir)
        found = session.read(folders[-1])
        if len(folders) > 1:
            others = f"{len(folders)} profiles are in {options.session_dir}; this is {folders[-1]}"
            _complain(others)
    if getattr(options, "ignore_device_profile", False):
        found.events = [event for event in found.events if event.source != "neuron_hw"]
    if getattr(options, "ignore_system_profile", False):
        found.events = [event for event in found.events if event.source == "neuron_hw"]
    if (core := getattr(options, "core", None)) is not None:
        found.events = [event for event in found.events if event.core in {core, -1}]
    if (kind := getattr(options, "event_type", None)) is not None:
        wanted = frozenset(kind.split(","))
        found.events = [e for e in found.events if wanted & {e.kind, e.name, e.source}]
    return found


def _view(options: argparse.Namespace) -> int:
    found = _read(options)
    name = options.display_name or (options.session_dir or options.ntff).stem
    if options.output_format == "parquet":
        folder = options.output_file or Path(options.data_path, "profiles", "global",
                                             f"{name}@latest")  # fmt: skip
        for path in formats.save_tables(found, folder):
            _say(path)
        return 0
    if options.output_format is None:
        from neuron_tools.explorer.page import serve, write_page  # noqa: PLC0415

        page = write_page(found, Path(options.data_path, f"{name}.html"), name)
        _say(page)
        return 0 if options.ingest_only else serve(page, options.port)
    text = {
        "summary-json": lambda: formats.summary_json(found),
        "summary-text": lambda: formats.summary_text(found),
        "perfetto": lambda: formats.perfetto(found),
        "json": lambda: (
            formats.system_json(found)
            if options.session_dir is not None
            else formats.device_json(found.events)
        ),
    }[options.output_format]()
    target = options.output_file
    if target is None and options.output_format == "perfetto":
        target = Path("system_profile.pftrace" if options.session_dir else "device_profile.pftrace")
    if target is None:
        _say(text)
    else:
        write_whole(target, text.encode())
        _say(target)
    return 0


def _recommend(options: argparse.Namespace) -> int:
    found = advice(_read(options).events)
    if not any(found.values()):
        _say("The rules find nothing to recommend.")
    for core, items in found.items():
        for item in items:
            _say(f"nc_idx {core}: {item.rule}: {item.found}\n  {item.remedy}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "neuron-explorer",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"TorchNeuron {__version__}")
    parser.add_argument(
        "--show-profile-schema",
        action="store_true",
        help="print the tables that `view --output-format parquet` writes",
    )
    commands = parser.add_subparsers(dest="name")

    one = commands.add_parser("capture", help="run a NEFF and keep its profile")
    one.add_argument("-n", "--neff", type=Path, required=True)
    one.add_argument("-s", "--ntff", type=Path, default=Path("profile.ntff"))
    one.add_argument("--num-exec", type=int, default=1, help="executions; the last is kept")
    one.add_argument("--profile-nth-exec", type=int, help="keep this one, as NAME_exec_N.ntff")
    one.add_argument("--save-output-npy", action="store_true", help="write results as .npy files")
    one.add_argument("inputs", nargs="*", metavar="NAME FILE",
                     help="a .npy file, or the bytes of the tensor; others are zeros")  # fmt: skip
    one.set_defaults(run=_capture)

    two = commands.add_parser(
        "inspect", help="run a command and keep the profiles of its processes"
    )
    two.add_argument("-o", "--output", type=Path, default=Path("output"))
    two.add_argument("-n", "--num-trace-events", type=int, help="of each core at most")
    two.add_argument("command", nargs=argparse.REMAINDER)
    two.set_defaults(run=_inspect)

    for name, what, run in (
        ("view", "show a profile, or write it in another format", _view),
        ("recommend", "say what rules find in a profile", _recommend),
    ):
        each = commands.add_parser(name, help=what)
        each.add_argument("-d", "--session-dir", type=Path, help="the latest profile below it")
        each.add_argument("-s", "--ntff", type=Path, help="what one core did")
        each.add_argument("-n", "--neff", type=Path, help="accepted; a profile has all it needs")
        each.set_defaults(run=run)
        if run is _recommend:
            continue
        each.add_argument("--output-format", choices=FORMATS)
        each.add_argument("--output-file", type=Path)
        each.add_argument("--data-path", type=Path, default=Path("neuron-explorer-data"))
        each.add_argument("--display-name", help="by default that of the directory or file")
        each.add_argument(
            "--ingest-only", action="store_true", help="write the page, serve nothing"
        )
        each.add_argument("--ignore-device-profile", action="store_true")
        each.add_argument("--ignore-system-profile", action="store_true")
        each.add_argument("--system-trace-filter-neuron-core", dest="core", type=int)
        each.add_argument("--system-trace-filter-event-type", dest="event_type",
                          help="kinds, names or sources, with commas between them")  # fmt: skip
        each.add_argument("--port", type=int, default=3001)
    return parser


@ends_quietly
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = _parser()
    before = words[: words.index("inspect")] if "inspect" in words else words
    for word in before:
        if (reason := REFUSED.get(word.partition("=")[0])) is not None:
            parser.error(f"{word} is documented for neuron-explorer, but not here: {reason}")
    options = parser.parse_args(words)
    if options.show_profile_schema:
        _say(json.dumps({"profile_schema_version": VERSION, "fields": schema_rows()}, indent=1))
        return 0
    if options.name is None:
        parser.error("say what to do: capture, inspect, view or recommend")
    try:
        return int(options.run(options))
    except BrokenPipeError:
        raise
    except (SessionError, NeffError, OSError, ModuleNotFoundError) as error:
        _complain(f"neuron-explorer: error: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
