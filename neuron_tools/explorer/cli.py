"""The command `neuron-explorer`.

    neuron-explorer capture -n FILE.neff [-s profile.ntff] [NAME FILE ...]
    neuron-explorer inspect -o DIR COMMAND ...
    neuron-explorer view -d DIR | -s FILE [--output-format FORMAT]
    neuron-explorer recommend -d DIR | -s FILE
    neuron-explorer show-session -s DIR [-j] [--show-errors]
    neuron-explorer --show-profile-schema

What is captured or inspected is measured on the host that emulates the cores, and says nothing
about hardware. `view` and `recommend` also read predictions of hardware: a directory of tables
(docs/performance.md), or the document of an estimate (docs/estimate.md). Everything they print says
which it is (`is_simulation`), and one is never mixed with the other.

Exit codes: 0 done, 1 a file is wrong or a command failed (one line on standard error), 2 wrong
words.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from neuron_tools.explorer import actions
from neuron_tools.explorer.session import SessionError
from neuron_tools.explorer.tables import rows_of, schema_rows
from neuronxcc import __version__
from neuronxcc.program.errors import NeffError
from neuronxcc.tables import VERSION
from neuronxcc.unread import ends_quietly

FORMATS = ("parquet", "perfetto", "json", "summary-json", "summary-text")
_TORCHRUN = "run the job by torchrun under `neuron-explorer inspect`"
_LINES = "lines have the paths by which Python imported them"
_ROWS = "rows are by process and core"
_SYSTRACE = "`neuron-explorer inspect` traces a system, and `view` filters what it shows"
#: Documented, and without a meaning here.
REFUSED = {
    "--terminology": "there is one set of words",
    "--framework-source-root": _LINES,
    "--nki-source-root": _LINES,
    "--show-perfetto-flows": "the trace has no flows",
    "--system-trace-primary-group": _ROWS,
    "--system-trace-secondary-group": _ROWS,
    "-F": "a profile has no usage of buffers that could be ignored",
    "--enable-dge-notifs": "an emulated core has no DMA engines",
    "--ignore-exec-errors": "an execution that fails has no profile",
    "--save-nth-output": "--save-output-npy writes the results of the last execution",
    "--single-io": "inputs are named one by one: NAME FILE",
    "--single-io-threshold": "inputs are named one by one: NAME FILE",
    "-m": "executions have the same inputs",
    "--multi-input": "executions have the same inputs",
    "-r": _TORCHRUN,
    "--collectives-workers-per-node": _TORCHRUN,
    "--collectives-worker-count": _TORCHRUN,
    "--collectives-worker-start-id": _TORCHRUN,
    "-i": _TORCHRUN,
    "--collectives-profile-id": _TORCHRUN,
    "--systrace-get-event-types": _SYSTRACE,
    "--systrace-event-filter": _SYSTRACE,
}

#: Values of documented options that have a meaning, of which not all are possible here.
_REFUSED_VALUES = {
    "systrace": _SYSTRACE,
    "async": "an execution ends before the next begins",
    "async-wait": "an execution ends before the next begins",
}


def _only(value: str) -> Callable[[str], str]:
    """Return what reads an option of which one documented value is possible."""

    def read(text: str) -> str:
        if text != value:
            reason = _REFUSED_VALUES.get(text)
            why = f"is documented, but not possible here: {reason}" if reason else "is none"
            raise argparse.ArgumentTypeError(f"{text!r} {why}; it is {value!r}")
        return text

    return read


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
    _capture_words(commands.add_parser("capture", help="run a NEFF and keep its profile"))
    _inspect_words(
        commands.add_parser("inspect", help="run a command and keep the profiles of its processes")
    )
    _view_words(commands.add_parser("view", help="show a profile or a prediction, or write it"))
    advise = commands.add_parser("recommend", help="say what rules find")
    _profile_words(advise)
    advise.set_defaults(run=actions.recommend)
    show = commands.add_parser("show-session", help="say what profiles a directory has")
    show.add_argument("-s", "--session-dir", type=Path, required=True)
    show.add_argument("-j", "--json", action="store_true", help="as JSON")
    show.add_argument("--show-errors", action="store_true", help="only those that are damaged")
    show.set_defaults(run=actions.show_session)
    return parser


def _capture_words(words: argparse.ArgumentParser) -> None:
    add = words.add_argument
    add("-n", "--neff", type=Path, required=True)
    add("-s", "--ntff", type=Path, default=Path("profile.ntff"))
    add("-t", "--capture-type", type=_only("profile"), default="profile",
        help="profile; `systrace` is what `inspect` does")  # fmt: skip
    add("--exec-mode", type=_only("sync"), default="sync",
        help="sync: one execution after the other")  # fmt: skip
    add("--num-exec", type=int, default=1, help="executions; the last is kept")
    add("--profile-nth-exec", type=int, help="keep this one, as NAME_exec_N.ntff")
    add("--disable-profile", action="store_true", help="run, and write no profile")
    add("--save-output", action="store_true", help="write the bytes of the results to files")
    add("--save-output-npy", action="store_true", help="write results as .npy files")
    add("--check-output-determinism", action="store_true",
        help="compare the CRC32 of the results of all executions; 1 if they differ")  # fmt: skip
    add("inputs", nargs="*", metavar="NAME FILE",
        help="a .npy file, or the bytes of the tensor; others are zeros")  # fmt: skip
    words.set_defaults(run=actions.capture)


def _inspect_words(words: argparse.ArgumentParser) -> None:
    words.add_argument("-o", "--output", type=Path, default=Path("output"))
    words.add_argument("-n", "--num-trace-events", type=int, help="of each core at most")
    words.add_argument("command", nargs=argparse.REMAINDER)
    words.set_defaults(run=actions.inspect)


def _profile_words(words: argparse.ArgumentParser) -> None:
    """The words that name a profile."""
    add = words.add_argument
    add("-d", "--session-dir", type=Path, help="the latest profile or prediction below it")
    add("-s", "--ntff", type=Path, help="what one core did; or an estimate, FILE.json")
    add("-n", "--neff", type=Path, help="accepted; a profile has all it needs")


def _view_words(words: argparse.ArgumentParser) -> None:
    _profile_words(words)
    add = words.add_argument
    add("--output-format", choices=FORMATS)
    add("--output-file", type=Path)
    add("--data-path", type=Path, default=Path("neuron-explorer-data"))
    add("--display-name", help="by default that of the directory or file")
    add("--ingest-only", action="store_true", help="write the page, serve nothing")
    add("--force", action="store_true", help="accepted; what was written is always replaced")
    add("--ignore-device-profile", action="store_true")
    add("--ignore-system-profile", action="store_true")
    add("--system-trace-filter-neuron-core", dest="core", type=int)
    add("--system-trace-filter-event-type", dest="event_type",
        help="kinds, names or sources, with commas between them")  # fmt: skip
    add("--system-trace-filter-instance-id", dest="instance", help="with commas between them")
    add("--port", type=int, default=3001)
    words.set_defaults(run=actions.view)


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
        # Tables of a prediction are the model's, which needs NumPy.
        from neuronxcc.perf.explorer.schema import SCHEMA as PREDICTED  # noqa: PLC0415

        document = {
            "profile_schema_version": VERSION,
            "fields": schema_rows(),
            "predicted_fields": rows_of(PREDICTED, {}),
        }
        actions.say(json.dumps(document, indent=1))
        return 0
    if options.name is None:
        parser.error("say what to do: capture, inspect, view, recommend or show-session")
    try:
        return int(options.run(options))
    except BrokenPipeError:
        raise
    except (SessionError, NeffError, OSError, ModuleNotFoundError) as error:
        actions.complain(f"neuron-explorer: error: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
