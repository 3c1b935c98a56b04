"""The command `neuron_parallel_compile`: the graphs of a script, compiled ahead of its run.

    neuron_parallel_compile [options] RUN COMMAND...          collect graphs, then compile them
    neuron_parallel_compile --command collect RUN COMMAND...  a trial run: graphs go to the cache
    neuron_parallel_compile --command compile                 compile what was collected
    neuron_parallel_compile --command analyze RUN COMMAND...  which operators NeuronCores have
    neuron_parallel_compile --command clean | clear-locks     maintain the cache

Sources: `pytorch-neuron-parallel-compile.rst` and `neuron-caching.rst` of the Neuron SDK's
documentation. Exit codes: 0 done; 1 a graph could not be compiled, or the cache is of no use; 2
wrong words; that of the run command if that fails.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from neuron_tools import parallel_analysis, parallel_cache
from neuron_tools.parallel_messages import Speaker
from neuron_tools.parallel_workers import Outcome, compile_all
from neuronxcc import __version__, collected
from neuronxcc.cache.cache import CompileCache, open_cache
from neuronxcc.cache.local import LocalStore
from neuronxcc.environment.compilation import (
    NEURON_EXTRACT_GRAPHS_ONLY,
    NEURON_NUM_PARALLEL_COMPILE,
    NEURON_PARALLEL_COMPILE_DUMP_RESULTS,
    NEURON_PARALLEL_COMPILE_MAX_RETRIES,
)
from neuronxcc.environment.compilation import (
    NEURON_IGNORE_TRAINING_SCRIPT_ERROR_AND_COMPILE as IGNORE_ERROR,
)
from neuronxcc.environment.variable import VariableError
from neuronxcc.files import write_whole
from neuronxcc.host_limits import processors
from neuronxcc.options import OptionError, from_environment
from neuronxcc.unread import ends_quietly

DUMP_FILE = "neuron_parallel_compile_results.json"
_MOST_WORKERS = 8

_NEEDS_RUN = frozenset({"", "collect", "analyze"})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="neuron_parallel_compile",
        description="Compiles the graphs of a script ahead of its run, several at once.",
    )
    commands = ["collect", "compile", "clean", "clear-locks", "analyze"]
    parser.add_argument("--command", choices=commands, default="", help="default: collect, compile")
    parser.add_argument(
        "--num_parallel", "--num-parallel", type=_positive, metavar="N",
        help=f"graphs compiled at once (${NEURON_NUM_PARALLEL_COMPILE.name}, else one a processor, "
        "at most 8)",
    )  # fmt: skip
    parser.add_argument(
        "--analyze-output", type=Path, metavar="DIR", default=Path("model_analysis_result"),
        help="where analyze writes result.json (./%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--analyze-verbosity", type=int, choices=(1, 2), default=2,
        help="1: with the HLO instructions; 2: PyTorch's operators (the default)",
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.add_argument("run", nargs=argparse.REMAINDER, metavar="RUN COMMAND")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is no number of processes")
    return number


@ends_quietly
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: Its words, without the name; `sys.argv[1:]` if None.

    Returns:
        The exit code.
    """
    parser = _parser()
    options = parser.parse_args(argv)
    if options.command in _NEEDS_RUN and not options.run:
        parser.error("the command that runs the script is missing")
    say = Speaker()
    try:
        cache = open_cache(from_environment().wrapper)
        retries = NEURON_PARALLEL_COMPILE_MAX_RETRIES.get()
        workers = options.num_parallel or NEURON_NUM_PARALLEL_COMPILE.get() or _default_workers()
        if cache.local is None:
            say.error("PARALLEL_COMPILE", "there is no cache: remove --no_cache from its flags")
            return 1
        say.info("CACHE", f"Compile cache path: {cache.local.root}")
        return _run(options, cache, say, workers, retries)
    except BrokenPipeError:
        raise
    except (OptionError, VariableError, OSError) as error:
        say.error("PARALLEL_COMPILE", str(error))
        return 1


def _run(
    options: argparse.Namespace, cache: CompileCache, say: Speaker, workers: int, retries: int
) -> int:
    store = cache.local
    assert store is not None
    if options.command == "clean":
        return parallel_cache.clean(store, say)
    if options.command == "clear-locks":
        return parallel_cache.clear_locks(store, say)
    if options.command == "analyze":
        run: Callable[[dict[str, str]], int] = lambda more: _trial(options.run, say, more)  # noqa: E731
        return parallel_analysis.analyze(options, say, run)
    failed = 0
    if options.command in {"", "collect"}:
        failed = _trial(options.run, say, {})
        if failed and IGNORE_ERROR.get():
            say.warning(
                "PARALLEL_COMPILE", f"the error of the script is ignored ({IGNORE_ERROR.name})"
            )
            failed = 0
    if failed or options.command == "collect":
        return failed
    return _compile(store, say, workers, retries)


def _trial(command: Sequence[str], say: Speaker, more: dict[str, str]) -> int:
    """Run the script without computing anything; returns its exit code."""
    words = [word for n, word in enumerate(command) if n or word != "--"]
    text = f"trial run, in which graphs compute nothing and give zeros: {shlex.join(words)}"
    say.info("PARALLEL_COMPILE", text)
    environment = {**os.environ, NEURON_EXTRACT_GRAPHS_ONLY.name: "1", **more}
    try:
        code = subprocess.run(words, env=environment, check=False).returncode  # noqa: S603 - asked for
    except OSError as error:
        say.error("PARALLEL_COMPILE", f"the script cannot be run: {error}")
        return 127
    if code:
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        say.error(
            "PARALLEL_COMPILE",
            f"the script failed with {how}. Set {IGNORE_ERROR.name}=1 to compile what was "
            "collected",
        )
    return 128 - code if code < 0 else code


def _compile(store: LocalStore, say: Speaker, workers: int, retries: int) -> int:
    """Compile what is collected and has no program yet; returns the exit code."""
    again = from_environment().wrapper.retry_failed_compilation
    folders = collected.entries(store)
    wanted = []
    skipped = 0
    for folder in folders:
        if collected.is_done(folder):
            continue
        reason = "" if again else collected.failure(folder)
        if reason:
            skipped += 1
            say.info(
                "CC_WRAPPER",
                f"Got a cached failed neff at {folder / 'model.neff'}. Will skip compilation, "
                "please set --retry_failed_compilation for recompilation. It failed with: "
                + reason.strip().splitlines()[0],
            )
        else:
            wanted.append(folder)
    done = len(folders) - len(wanted) - skipped
    outcomes: list[Outcome] = []

    def tell(locked: int) -> None:
        bad = skipped + sum(not o.ok for o in outcomes)
        good = done + sum(o.ok for o in outcomes)
        say.info(
            "CACHE",
            f"Current remaining items are {len(folders) - bad - good}, locked are {locked}, failed "
            f"are {bad}, done are {good}, total is {len(folders)}",
        )

    tell(0)
    if wanted:
        paths = [str(folder / collected.HLO_NAME) for folder in wanted]
        say.info("PARALLEL_COMPILE", f"master grab hlos to compile: {paths}")
    for outcome, running in compile_all(wanted, say, workers, retries):
        outcomes.append(outcome)
        tell(running)
    _summarise(outcomes, say)
    return 1 if skipped or not all(o.ok for o in outcomes) else 0


def _summarise(outcomes: Sequence[Outcome], say: Speaker) -> None:
    dumped = NEURON_PARALLEL_COMPILE_DUMP_RESULTS.get()
    timed = dumped not in {"", "0"}
    report = {}
    for outcome in sorted(outcomes, key=lambda o: o.folder):
        entry: dict[str, object] = {"status": outcome.ok, "retry": outcome.retries}
        if timed:
            entry["compile_time"] = round(outcome.seconds, 3)
        report[str(outcome.folder / collected.HLO_NAME)] = entry
    good = sum(o.ok for o in outcomes)
    counts = {"true": good, "false": len(outcomes) - good}
    summary = {
        "compilation_summary": {name: count for name, count in counts.items() if count},
        "compilation_report": report,
    }
    text = json.dumps(summary, indent=4)
    for line in (
        text,
        f"Total graphs: {len(outcomes)}",
        f"Total successful compilations: {good}",
        f"Total failed compilations: {len(outcomes) - good}",
    ):
        say.info("PARALLEL_COMPILE", line)
    if timed:
        path = Path(dumped if dumped.endswith(".json") else DUMP_FILE)
        write_whole(path, f"{text}\n".encode())
        say.info("PARALLEL_COMPILE", f"The summary is written to {path.absolute()}")


def _default_workers() -> int:
    return min(processors(), _MOST_WORKERS)


if __name__ == "__main__":
    sys.exit(main())
