"""An imported graph to a loaded native program, through the compile cache."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from neuronxcc.cache.cache import CompileCache, Compiled, open_cache
from neuronxcc.compiler import compile_graph
from neuronxcc.ir.graph import Graph
from neuronxcc.ir.op import Op
from neuronxcc.options import Options, from_environment
from neuronxcc.program.program import Program
from neuronxcc.progress import Progress, report
from torch_neuronx._compile_only import OPEN, Collecting
from torch_neuronx.dynamo import dump, portable_cache
from torch_neuronx.dynamo.collect import collect
from torch_neuronx.dynamo.importer import Imported
from torch_neuronx.dynamo.keys import key_of
from torch_neuronx.dynamo.subject import current_subject, titled
from torch_neuronx.neuron_dynamo_backend import program_name
from torch_neuronx.program.dtypes import TO_TORCH
from torch_neuronx.program.executable import Executable, Run
from torch_neuronx.program.model_time import count_kept
from torch_neuronx.program.rounding import state_source


@dataclass(slots=True)
class Report:
    """The outcome of compiling one graph.

    Attributes:
        seconds: Time of each stage: "key", "compile" (or "load" from the cache), "kernels".
        hit: Whether the program came from the cache.
        neff: Its file, "" if it isn't kept.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    hit: bool = False
    neff: str = ""


class Native:
    """A compiled graph: call it with a list of tensors, which it empties.

    It is loaded at once, unless `compile_only` is open: then by the first call after that.
    """

    def __init__(self, imported: Imported, options: Mapping[str, Any]) -> None:
        self.imported = imported
        self.report = Report()
        self.run: Run = self._load_and_run
        self._options = dict(options)
        self._subject = current_subject()
        self._executable: Executable | None = None
        self._lock = threading.Lock()
        self._compiled_only: dict[Options, Compiled] = {}
        self._collected: set[Options] = set()
        if not OPEN:
            self.executable  # noqa: B018 - loads it

    @property
    def executable(self) -> Executable:
        """The executable, loaded if it isn't yet."""
        with self._lock:
            if self._executable is None:
                settings = from_environment(self._options)
                self._executable = self._load(settings)
                count_kept(self._executable)
                self.run = self._executable.run
                if settings.stochastic_rounding:
                    self.run = _with_state(self.run, state_source())
            return self._executable

    @property
    def program(self) -> Program:
        """The program."""
        return self.executable.program

    def __call__(self, args: list[Any]) -> list[torch.Tensor]:
        """Run it, or stand in for it while `compile_only` is open."""
        return self._stand_in(args) if OPEN else self.run(args)

    def _load(self, settings: Options) -> Executable:
        name = program_name(self.imported.graph.name, settings)
        for note in settings.notes:
            warnings.warn(f"compiler options: {note}", UserWarning, stacklevel=2)
        with Progress(f"compiling {titled(name, self._subject)}"):
            cache = open_cache(settings.wrapper)
            compiled = compile_imported(self.imported, settings, cache, self.report)
            report(f"machine code for {len(compiled.program.steps)} steps")
            with _Timed(self.report, "kernels"):
                return Executable(
                    compiled.program, self.imported.device, called(self.imported.graph)
                )

    def _load_and_run(self, args: list[Any]) -> list[torch.Tensor]:
        self.executable  # noqa: B018 - loads it
        return self.run(args)

    def _stand_in(self, args: list[Any]) -> list[torch.Tensor]:
        """Compile for `compile_only` and return results of zeros."""
        request = OPEN[-1]
        settings = request.options(self._options)
        name = program_name(self.imported.graph.name, settings)
        with self._lock:
            compiled = self._compiled_only.get(settings)
            if isinstance(request, Collecting):
                if settings not in self._collected:
                    collect(self.imported, settings, request.cache(settings))
                    self._collected.add(settings)
            elif compiled is None:
                title = titled(name, self._subject)
                with Progress(f"compiling {title} for {settings.target}"):
                    cache = request.cache(settings)
                    compiled = compile_imported(self.imported, settings, cache, Report())
                self._compiled_only[settings] = compiled
        if compiled is not None and not isinstance(request, Collecting):
            request.add(name, compiled)
        results = stand_ins(self.imported, args)
        args.clear()
        return results


def _with_state(run: Run, state: Callable[[], torch.Tensor]) -> Run:
    """Give a program with stochastic rounding a new state as last argument of every call."""

    def call(args: list[Any]) -> list[torch.Tensor]:
        args.append(state())
        return run(args)

    return call


def called(graph: Graph) -> frozenset[str]:
    """The library's operators that a graph calls, control flow included."""
    found: set[str] = set()
    for node in graph.nodes():
        if node.op in (Op.CUSTOM_CALL, Op.HOST_CALL):
            found.add(node["target"])
        for body in (node.get("body"), node.get("cond"), *(node.get("branches") or ())):
            if body is not None:
                found |= called(body)
    return frozenset(found)


def compile_native(imported: Imported, options: Mapping[str, Any]) -> Native:
    """Compile, or take from the cache, and load.

    Args:
        imported: The graph with the layouts of its parameters and results.
        options: Of `torch.compile(options=...)`; those of NEURON_CC_FLAGS come first.

    Raises:
        OptionError: An option is unknown or has a wrong value.
    """
    return Native(imported, options)


def stand_ins(imported: Imported, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Results of a graph that is not run: parameters that it would update, and zeros."""
    graph = imported.graph
    found: list[torch.Tensor] = []
    for number, result in enumerate(graph.results):
        if number in graph.aliases:
            found.append(args[graph.aliases[number]])
            continue
        strides = imported.result_strides[number]
        # Strides may repeat elements, so not simply zeros of that shape.
        reach = sum((n - 1) * s for n, s in zip(result.shape, strides, strict=True)) + 1
        host = imported.result_devices[number] == "cpu"
        flat = torch.zeros(
            0 if 0 in result.shape else reach,
            dtype=TO_TORCH[result.dtype],
            device="cpu" if host else imported.device,
        )
        found.append(flat.as_strided(result.shape, strides))
    return found


def compile_imported(
    imported: Imported,
    settings: Options,
    cache: CompileCache,
    outcome: Report,
    key_parts: Mapping[str, str] | None = None,
) -> Compiled:
    """The program of a graph, from the cache if it is there.

    Args:
        imported: The graph.
        settings: Options of the compilation.
        cache: Where to look, and where to keep it.
        outcome: Gets the times.
        key_parts: More that a program must have been compiled with, by label.
    """

    def build() -> Program:
        report("passes and lowering")
        return compile_graph(
            imported.graph,
            settings,
            imported.param_strides,
            imported.result_strides,
            dump.observer(imported.graph.name),
            constant_params=imported.constant_params,
        )

    with _Timed(outcome, "key"):
        key = key_of(imported, settings, key_parts)
    with _Timed(outcome, "compile"):
        name = program_name(imported.graph.name, settings)
        if dump.directory() is None:
            found = cache.compile(key, build, settings, name=name)
        else:  # a dump shows how a program comes about
            program = build()
            path = cache.store(key, program, settings, name)
            found = Compiled(program, hit=False, path=path)
    portable_cache.record(key, name, found.path)
    dump.leave_for_debugging(imported.graph, found.program, settings, key)
    outcome.hit = found.hit
    outcome.neff = "" if found.path is None else str(found.path)
    return found


class _Timed:
    """Adds the seconds of a block to the report."""

    def __init__(self, report: Report, stage: str) -> None:
        self._seconds, self._stage = report.seconds, stage

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._seconds[self._stage] = time.perf_counter() - self._start
