"""An explanation of what the compiler made of a function, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from neuronxcc.program.program import Program, all_steps
from neuronxcc.program.steps.operator import AtenStep
from torch_neuronx.dynamo import backend
from torch_neuronx.dynamo.native import Native
from torch_neuronx.tools.backward import run_backward


@dataclass(frozen=True, slots=True)
class Break:
    """Where Dynamo left the graph: the function went on in Python."""

    reason: str
    where: str  # the user's line, "" if Dynamo doesn't say


@dataclass(frozen=True, slots=True)
class GraphReport:
    """One compiled graph.

    Attributes:
        name: "graph0.forward" and so on.
        operators: ATen operators in it, after decomposition.
        host: Operators without a lowering, with the user's line.
        steps: How many steps of each kind the program has.
        groups: The fused loop kernels and the epilogues of products, with what they compute.
        library: ATen kernels that carry out steps of ours, with their number.
        memory: Bytes of inputs, outputs, constants, scratchpad.
        seconds: Time of each stage of the compilation.
        cached: Whether the program came from the compile cache.
        neff: Its file, "" if it is not kept.
    """

    name: str
    operators: int
    host: tuple[str, ...]
    steps: dict[str, int]
    groups: tuple[str, ...]
    library: dict[str, int]
    memory: dict[str, int]
    seconds: dict[str, float]
    cached: bool
    neff: str

    def __str__(self) -> str:
        def counts(items: dict[str, int]) -> str:
            return ", ".join(f"{n} {name}" for name, n in items.items()) or "none"

        origin = "from the cache" if self.cached else "compiled"
        lines = [
            f"{self.name}: {self.operators} operators -> {counts(self.steps)}; {origin}",
            "  memory: " + ", ".join(f"{k} {v / 2**20:.1f} MiB" for k, v in self.memory.items()),
            "  time: " + ", ".join(f"{k} {1000 * v:.0f} ms" for k, v in self.seconds.items()),
            f"  ATen kernels used: {counts(self.library)}",
            f"  on the host: {', '.join(self.host) or 'none'}",
            f"  fused groups: {len(self.groups)}",
        ]
        lines += [f"    {group}" for group in self.groups]
        return "\n".join(lines)


@dataclass(slots=True)
class Explanation:
    """The result of `explain`; print it."""

    graphs: list[GraphReport] = field(default_factory=list)
    breaks: list[Break] = field(default_factory=list)

    def __str__(self) -> str:
        forward = sum(not g.name.endswith("backward") for g in self.graphs)
        head = f"{forward} graphs, {len(self.breaks)} graph breaks"
        breaks = [f"  break at {b.where or 'an unknown line'}: {b.reason}" for b in self.breaks]
        return "\n".join([head, *breaks, *map(str, self.graphs)])


@contextmanager
def _listening(found: Explanation) -> Iterator[None]:
    def compiled(graph: backend.CompiledGraph) -> None:
        found.graphs.append(report_of(graph))

    def captured(gm: torch.fx.GraphModule) -> None:
        reason = getattr(gm, "compile_subgraph_reason", None)
        if reason is not None and reason.graph_break:
            stack = reason.user_stack
            where = f"{stack[-1].filename}:{stack[-1].lineno}" if stack else ""
            found.breaks.append(Break(str(reason.reason).strip().splitlines()[0], where))

    backend.OBSERVERS.append(compiled)
    backend.CAPTURES.append(captured)
    try:
        yield
    finally:
        backend.OBSERVERS.remove(compiled)
        backend.CAPTURES.remove(captured)


def report_of(graph: backend.CompiledGraph) -> GraphReport:
    """The report of a graph that the native compiler compiled.

    Raises:
        TypeError: It is run by the reference executor, which makes no program.
    """
    native = graph.executable
    if not isinstance(native, Native):
        raise TypeError("explain needs the native executor; unset TORCH_NEURONX_EXECUTOR")
    facts = native.executable.memory
    return GraphReport(
        name=graph.name,
        operators=sum(node.op == "call_function" for node in graph.gm.graph.nodes),
        host=tuple(f"{call.op} ({call.loc})" for call in graph.imported.host_calls),
        steps=dict(Counter(type(s).__name__.removesuffix("Step") for s in native.program.steps)),
        groups=tuple(groups_of(native.program)),
        library=dict(Counter(s.target for s in native.program.steps if isinstance(s, AtenStep))),
        memory={
            "inputs": facts.inputs,
            "outputs": facts.outputs,
            "constants": facts.constants,
            "scratchpad": facts.scratch,
        },
        seconds=dict(native.report.seconds),
        cached=native.report.hit,
        neff=native.report.neff,
    )


def groups_of(program: Program) -> Iterator[str]:
    """A line for every loop kernel, product, convolution and tape."""
    return filter(None, (step.summary() for step in all_steps(program.steps)))


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Compile a function for these arguments and say what became of it.

    The function runs once, compiled. If its results need gradients the backward graph is compiled
    and run, too; `.grad` of parameters is left alone.

    Args:
        function: A function or module.
        *args: Its arguments.
        **kwargs: Its keyword arguments.

    Returns:
        Graphs and graph breaks, operators that run on the host, fused groups, memory, and the time
        of each stage.
    """
    found = Explanation()
    torch.compiler.reset()
    with _listening(found):
        run_backward(torch.compile(function, backend="neuron")(*args, **kwargs))
    return found
