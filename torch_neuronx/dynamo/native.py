"""An imported graph to a loaded native program, through the compile cache."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from neuronxcc.compiler import compile_graph
from neuronxcc.ir.text import to_text
from neuronxcc.neff import Program, make_key, open_cache
from neuronxcc.options import Options, from_environment

from torch_neuronx.dynamo.executable import Executable
from torch_neuronx.dynamo.importer import Imported


@dataclass(slots=True)
class Report:
    """What became of one graph.

    Attributes:
        seconds: Time of each stage: "key", "compile" (or "load" from the cache), "kernels".
        hit: Whether the program came from the cache.
        neff: Its file, "" if it isn't kept.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    hit: bool = False
    neff: str = ""


class Native:
    """A compiled graph: call it with a list of tensors, which it empties."""

    def __init__(self, executable: Executable, report: Report) -> None:
        self.executable = executable
        self.report = report
        self.run = executable.run

    @property
    def program(self) -> Program:
        """What runs."""
        return self.executable.program

    def __call__(self, args: list[Any]) -> list[torch.Tensor]:
        results: list[torch.Tensor] = self.run(args)
        return results


def compile_native(imported: Imported, options: Mapping[str, Any]) -> Native:
    """Compile, or take from the cache, and load.

    Args:
        imported: The graph with the layouts of its parameters and results.
        options: Of `torch.compile(options=...)`; those of NEURON_CC_FLAGS come first.

    Raises:
        OptionError: An option is unknown or has a wrong value.
    """
    settings = from_environment(options)
    report = Report()
    program = _program(imported, settings, report)
    with _Timed(report, "kernels"):
        executable = Executable(program, imported.device)
    return Native(executable, report)


def _program(imported: Imported, settings: Options, report: Report) -> Program:
    def build() -> Program:
        return compile_graph(
            imported.graph, settings, imported.param_strides, imported.result_strides
        )

    cache = open_cache(settings.wrapper)
    with _Timed(report, "key"):
        layouts = f"{imported.param_strides} {imported.result_strides}"
        key = make_key(to_text(imported.graph), settings, layouts=layouts)
    with _Timed(report, "compile"):
        found = cache.compile(key, build, settings, name=imported.graph.name)
    report.hit = found.hit
    report.neff = "" if found.path is None else str(found.path)
    return found.program


class _Timed:
    """Adds the seconds of a block to the report."""

    def __init__(self, report: Report, stage: str) -> None:
        self._seconds, self._stage = report.seconds, stage

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._seconds[self._stage] = time.perf_counter() - self._start
