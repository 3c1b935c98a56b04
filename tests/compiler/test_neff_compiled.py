"""Programs that the compiler makes of random graphs go through a NEFF unchanged."""

from __future__ import annotations

import dataclasses

from hypothesis import HealthCheck, given, settings

from neuronxcc.cache.key import make_key
from neuronxcc.codegen.check import check_kernel, check_scalar
from neuronxcc.codegen.loop import scalars
from neuronxcc.compiler import compile_graph
from neuronxcc.ir.graph import Graph
from neuronxcc.neff import NeffInfo, read_neff, write_neff
from neuronxcc.options import parse
from neuronxcc.program.program import Program
from neuronxcc.program.text import program_to_text
from tests.compiler.graphs import Case, graphs
from tests.compiler.loop_kernels import Case as KernelCase
from tests.compiler.loop_kernels import kernels
from tests.compiler.neff_programs import same

OPTIONS = parse(environ={})


SLOW = settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much], max_examples=50
)


def compiled(case: Case) -> Program:
    program = compile_graph(case.graph, OPTIONS)
    meta = {name: value for name, value in program.meta.items() if name != "seconds"}
    return dataclasses.replace(program, meta=meta)


@SLOW
@given(graphs())
def test_round_trip(case: Case) -> None:
    program = compiled(case)
    read = read_neff(write_neff(program, NeffInfo(program.name))).program
    assert same(read, program)
    assert program_to_text(read) == program_to_text(program)


def creation(graph: Graph) -> list[int]:
    """Which of a graph's nodes was made first, second...: the order in which the steps are tried.

    Graphs share nodes, so one that another graph had already comes early, whatever its place.
    """
    serials = [node.serial for node in graph.nodes()]
    return sorted(range(len(serials)), key=serials.__getitem__)


@SLOW
@given(graphs(), graphs())
def test_equal_keys_mean_equal_programs(a: Case, b: Case) -> None:
    if make_key(a.graph, OPTIONS) != make_key(b.graph, OPTIONS):
        return
    if creation(a.graph) != creation(b.graph):
        return  # the programs do the same, but not step by step
    first, second = (write_neff(compile_graph(c.graph, OPTIONS), NeffInfo()) for c in (a, b))
    assert first == second


@SLOW
@given(kernels())
def test_every_kernel_of_the_code_generator_is_accepted(case: KernelCase) -> None:
    for scalar in scalars(case.kernel):
        check_scalar(scalar)
    check_kernel(case.kernel)
