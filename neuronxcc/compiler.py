"""The compiler: a graph of tensor IR to a program."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Sequence

from neuronxcc.collector import paused
from neuronxcc.environment.development import TORCH_NEURONX_VERIFY_PASSES
from neuronxcc.ir.graph import Graph
from neuronxcc.lowering.lower import lower
from neuronxcc.options import Options
from neuronxcc.passes import pipeline
from neuronxcc.perf.graphs.kept import ENTRY, prediction_of
from neuronxcc.program.program import Program
from neuronxcc.program.text import program_to_text

# Told of every stage: its name, and how to get its text.
Observer = Callable[[str, Callable[[], str]], None]


def compile_graph(
    graph: Graph,
    options: Options,
    param_strides: Sequence[tuple[int, ...]] | None = None,
    result_strides: Sequence[tuple[int, ...]] | None = None,
    observe: Observer | None = None,
    *,
    constant_params: Collection[int] | None = None,
) -> Program:
    """Compile a graph.

    Args:
        graph: As a front end made it. With `stochastic_rounding` the program takes one parameter
            more than the graph, the state of the run (`passes.stochastic`).
        options: Of the compilation.
        param_strides: Strides of the parameters in elements; None: all are contiguous.
        result_strides: Strides that the results must have; None: all are contiguous.
        observe: Called with every stage.
        constant_params: Numbers of the parameters that callers pass unchanged many times; None:
            all that the graph does not update. See `lowering.lower`.
    """
    with paused():
        return _compile(graph, options, param_strides, result_strides, observe, constant_params)


def _compile(
    graph: Graph,
    options: Options,
    param_strides: Sequence[tuple[int, ...]] | None,
    result_strides: Sequence[tuple[int, ...]] | None,
    observe: Observer | None,
    constant_params: Collection[int] | None,
) -> Program:
    start = time.perf_counter()
    records: list[pipeline.PassRecord] = []
    verify_all = TORCH_NEURONX_VERIFY_PASSES.get()
    graph = pipeline.run(graph, options, verify_all=verify_all, observe=observe, records=records)
    if param_strides is not None and options.stochastic_rounding:
        param_strides = (*param_strides, (1,))  # the state, which the passes have added
    passed = time.perf_counter()
    prediction = prediction_of(graph, options, constant_params)
    predicted = time.perf_counter()
    program = lower(graph, options, param_strides, result_strides, constant_params)
    seconds = {f"pass {n}: {record.name}": record.seconds for n, record in enumerate(records)}
    seconds |= {"passes": passed - start, "lowering": time.perf_counter() - predicted}
    seconds["prediction"] = predicted - passed
    if observe is not None:
        observe("program", lambda: program_to_text(program))
    return dataclasses.replace(
        program, meta={**program.meta, ENTRY: prediction, "seconds": seconds}
    )
