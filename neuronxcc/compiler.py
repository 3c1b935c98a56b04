"""The compiler: a graph of tensor IR to a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from neuronxcc.ir.graph import Graph
from neuronxcc.lowering.lower import lower
from neuronxcc.neff.program import Program
from neuronxcc.neff.text import program_to_text
from neuronxcc.options import Options

# Told of every stage: its name, and how to get its text.
Observer = Callable[[str, Callable[[], str]], None]


def compile_graph(
    graph: Graph,
    options: Options,
    param_strides: Sequence[tuple[int, ...]] | None = None,
    result_strides: Sequence[tuple[int, ...]] | None = None,
    observe: Observer | None = None,
) -> Program:
    """Compile a graph.

    Args:
        graph: As a front end made it.
        options: Of the compilation.
        param_strides: Strides of the parameters in elements; None: all are contiguous.
        result_strides: Strides that the results must have; None: all are contiguous.
        observe: Called with every stage.
    """
    program = lower(graph, options, param_strides, result_strides)
    if observe is not None:
        observe("program", lambda: program_to_text(program))
    return program
