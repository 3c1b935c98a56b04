"""`neuronx-cc compile`: model files to NEFFs, with a log, messages and exit codes."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import astuple, dataclass, replace
from multiprocessing import get_context
from pathlib import Path

from neuronxcc.cli.explain import explanation
from neuronxcc.cli.log import MessageLog
from neuronxcc.collector import paused
from neuronxcc.compiler import compile_graph
from neuronxcc.files import write_whole
from neuronxcc.frontends.hlo.errors import HloError
from neuronxcc.frontends.model import load_model
from neuronxcc.host_limits import processors
from neuronxcc.lowering.errors import LoweringUnsupportedError, StepOrderError
from neuronxcc.neff.container import NeffInfo, neff_parts
from neuronxcc.option_table import Value, find
from neuronxcc.options import OptionError, Options, parse
from neuronxcc.program.errors import NeffError
from neuronxcc.program.footprint import memory_of
from neuronxcc.program.interface import with_supplied
from neuronxcc.program.program import Program
from neuronxcc.progress import Progress, report
from neuronxcc.targets.spec import GIB

#: What is wrong with a model or with files: printed without a traceback.
EXPECTED = (HloError, LoweringUnsupportedError, NeffError, OSError, StepOrderError)
INTERNAL = "NCC_IDRV001"
MOST_BYTES = 1 << 34  # of a model file
_DEFAULT_JOBS = 8  # documented, of --enable-experimental-O1


_KILLED = (
    "the process that compiled it, or one beside it, was killed, perhaps for want of memory\n"
    "  remedy: compile fewer at once (--num-parallel-jobs)"
)
_Result = tuple[str, tuple[str, ...], str]  # the error, warnings, an explanation


@dataclass(frozen=True, slots=True)
class Job:
    """One model file to compile.

    Attributes:
        source: The model file.
        output: Where the NEFF goes.
        options: Of the compilation.
        explain: Print what was done.
    """

    source: Path
    output: Path
    options: Options
    explain: bool


def compile_command(words: Sequence[str]) -> int:
    """Run the subcommand.

    Returns:
        0 if every file was compiled; 1 after an error that was printed and logged.
    """
    try:
        files, flags, explain = _split(words)
        options = parse(flags)
    except OptionError as error:
        print(f"[ERROR] {error}", file=sys.stderr)  # noqa: T201 - a command prints
        return 1
    with MessageLog(Path(options.logfile), options.verbose) as messages:
        messages.info(f"neuronx-cc compile {shlex.join(words)}")
        for note in options.notes:
            messages.warning(note)
        if not files:
            messages.error("no model file was given. Write neuronx-cc compile <file> ...")
            return 1
        jobs = [Job(f, _output(f, options, len(files)), options, explain) for f in files]
        written: dict[Path, Path] = {}
        for job in jobs:
            other = written.setdefault(job.output.absolute(), job.source)
            if other is not job.source:
                messages.error(
                    f"{other} and {job.source} would both be written to {job.output}\n"
                    "  remedy: rename one, or compile them one after the other with --output"
                )
                return 1
        return _run(jobs, messages)


def _split(words: Sequence[str]) -> tuple[list[Path], list[str], bool]:
    """Model files, flags with their values, and whether to explain."""
    files: list[Path] = []
    flags: list[str] = []
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        if word == "--explain":
            continue
        if not word.startswith("-"):
            files.append(Path(word))
            continue
        flags.append(word)
        flag = find(word)
        takes_one = flag is not None and flag.value not in {Value.ON, Value.OFF, Value.MANY}
        if takes_one and position < len(words):
            flags.append(words[position])
            position += 1
        elif flag is not None and flag.value is Value.MANY:
            while position < len(words) and not words[position].startswith("-"):
                flags.append(words[position])
                position += 1
    return files, flags, "--explain" in words


def _output(source: Path, options: Options, count: int) -> Path:
    return Path(options.output) if count == 1 else source.with_suffix(".neff")


def _jobs_at_once(options: Options, count: int) -> int:
    given = dict(options.recorded).get("--num-parallel-jobs", "")
    wanted = int(given) if given else _DEFAULT_JOBS
    return max(1, min(wanted, count, processors()))


def _run(jobs: Sequence[Job], messages: MessageLog) -> int:
    """Compile all, several files at once in processes of their own."""
    at_once = _jobs_at_once(jobs[0].options, len(jobs))
    if at_once == 1:
        results = [_attempt(job, messages.info) for job in jobs]
    else:
        with ProcessPoolExecutor(at_once, mp_context=get_context("spawn")) as pool:
            results = [_result(future) for future in [pool.submit(_attempt, job) for job in jobs]]
    several = len(jobs) > 1
    for job, (error, warnings, text) in zip(jobs, results, strict=True):
        for warning in warnings:
            messages.warning(f"{job.source}: {warning}" if several else warning)
        if text:
            print(f"{job.source}:\n{text}" if several else text)  # noqa: T201 - asked for
        if error:
            messages.error(f"{job.source}: {error}" if several else error)
        else:
            messages.info(f"wrote {job.output}")
    failed = [str(job.source) for job, (error, *_) in zip(jobs, results, strict=True) if error]
    if failed and several:
        messages.error(f"{len(failed)} of {len(jobs)} files failed: {', '.join(failed)}")
    messages.user(f"Compiler status {'ERROR' if failed else 'PASS'}")
    return 1 if failed else 0


def _result(future: Future[_Result]) -> _Result:
    """The outcome of an attempt in another process."""
    try:
        return future.result()
    except BrokenProcessPool:
        return _KILLED, (), ""


def _attempt(job: Job, tell: Callable[[str], None] | None = None) -> _Result:
    """Compile one file: what went wrong ("" if nothing), warnings, the explanation."""
    try:
        return "", *compile_file(job, tell)
    except BrokenPipeError:  # of what is told, which nobody reads: no mistake of the file
        raise
    except EXPECTED as error:
        return str(error), (), ""
    except RecursionError:
        return f"[{INTERNAL}] {job.source}: the module is nested too deeply", (), ""


def compile_file(
    job: Job, tell: Callable[[str], None] | None = None
) -> tuple[tuple[str, ...], str]:
    """Compile one model file.

    Args:
        job: What and where to.
        tell: Called with lines for the messages.

    Returns:
        Warnings about losses on the target, and the explanation if the job asks for one.

    Raises:
        HloError: The file is no model that the target takes.
        LoweringUnsupportedError: It has an operation that no program can run.
        OSError: A file can't be read or written.
    """
    tell = tell or (lambda _line: None)
    with Progress(f"compiling {job.source.name}"), paused():
        start = time.perf_counter()
        report("reading", 0, 0)
        if job.source.stat().st_size > MOST_BYTES:
            raise OSError(f"{job.source} has more than {MOST_BYTES} bytes")
        model = load_model(job.source.read_bytes(), job.options)
        read = time.perf_counter()
        tell(f"read {job.source} in {read - start:.3f} s: {len(model.imported.where)} operations")
        temps = _Temps(job) if job.options.saves_temps else None
        program = with_supplied(
            compile_graph(model.imported.graph, job.options, observe=temps),
            by_rank=model.imported.by_rank,
            rounding=job.options.stochastic_rounding,
        )
        _check_memory(program, job.options)
        compiled = time.perf_counter()
        tell(f"compiled in {compiled - read:.3f} s: {len(program.steps)} steps")
        told = replace(job.options, output="file.neff", logfile="log-neuron-cc.txt", verbose=30)
        info = NeffInfo(program.name, told.target, told.lnc, told.flags())
        compress = not job.options.enable_fast_loading_neuron_binaries
        write_whole(job.output, *neff_parts(program, info, compress=compress))
    text = explanation(program, job.options, read - start) if job.explain else ""
    return model.warnings, text


class _Temps:
    """Writes what the compiler has after every stage: `--pipeline compile SaveTemps`.

    The files are `<model>-<number>-<stage>.txt` in --workdir, or where the compiler was started.
    """

    def __init__(self, job: Job) -> None:
        self.folder = Path(job.options.workdir or ".")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.stem = job.source.stem
        self.count = 0

    def __call__(self, stage: str, text: Callable[[], str]) -> None:
        name = f"{self.stem}-{self.count:02}-{stage.replace(' ', '-')}.txt"
        self.count += 1
        write_whole(self.folder / name, text().encode())


def _check_memory(program: Program, options: Options) -> None:
    """Refuse what a logical core of the target has no memory for."""
    have = options.target_spec.hbm_bytes_per_logical_core(options.lnc)
    need = sum(astuple(memory_of(program)))
    if need > have:
        raise HloError(
            "NCC_EOOM001",
            f"combined memory needed for the model tensors exceeds the HBM limit: {need / GIB:.2f} "
            f"GiB are needed, a logical core of {options.target} has {have / GIB:.0f} GiB",
            "use a smaller batch, or tensor or pipeline parallelism",
        )
