"""Device programs: sections of instructions, how long they take, and what they compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from neuronxcc.ir.graph import Graph
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.ir.reference import Caller, apply
from neuronxcc.options import Options
from neuronxcc.perf import Parameters
from neuronxcc.targets import Target, get_target
from nki.device.groups import Use
from nki.device.prediction import ProgramPrediction, predicted
from nki.device.sections import Section
from nki.device.types import held, returned
from nki.device.views import View
from nki.frontends import executor
from nki.launch import Launch, facts_of
from nki.lowering import lower as lower_recording
from nki.recording import Recording

__all__ = ["DeviceProgram"]

Array = npt.NDArray[Any]


@dataclass(eq=False)
class DeviceProgram:
    """A graph as instructions of a NeuronCore.

    Attributes:
        graph: after the compiler's passes.
        target: what it is for.
        options: of the compiler.
        sections: in the order in which they run.
        views: of each result, what it is a view of.
        notes: what the user should be told: options without effect here.
    """

    graph: Graph
    target: Target
    options: Options
    sections: tuple[Section, ...]
    views: Mapping[Node, Use]
    notes: tuple[str, ...] = ()
    _launches: dict[int, Launch] = field(default_factory=dict)
    _predictions: dict[Any, Any] = field(default_factory=dict)

    @property
    def instructions(self) -> int:
        """How many instructions run."""
        return sum(section.instructions for section in self.sections)

    @property
    def coverage(self) -> float:
        """The share of operators that have instructions; movement that costs nothing left out."""
        nodes = sum(len(section.nodes) for section in self.sections)
        found = sum(len(s.nodes) for s in self.sections if s.recording is not None)
        return found / nodes if nodes else 1.0

    @property
    def missing(self) -> tuple[Section, ...]:
        """Sections without instructions."""
        return tuple(section for section in self.sections if section.recording is None)

    def predict(
        self, target: str | Target | None = None, parameters: Parameters | None = None
    ) -> ProgramPrediction:
        """Return how long the program would take: sections one after the other, their times summed.

        A section begins when the one before has ended, so that nothing is loaded ahead from one
        to the next.

        Args:
            target: by default that which the program was lowered for.
            parameters: of the performance model.
        """
        chip = self.target if target is None else target
        chip = get_target(chip) if isinstance(chip, str) else chip
        return predicted(self.sections, self.graph.name, chip, parameters)

    def run(
        self,
        inputs: Sequence[Array],
        call: Caller | None = None,
        *,
        by: str | None = None,
    ) -> list[Array]:
        """Return the results that the instructions give; what has none is the reference's.

        Args:
            inputs: one array for each parameter of the graph, of its type.
            call: runs custom and host calls.
            by: "native" or "reference": who runs NKI kernels; by default what
                TORCH_NEURONX_NKI_EXECUTOR says.
        """
        known: dict[Node, Array] = dict(zip(self.graph.params, inputs, strict=True))
        for section in self.sections:
            self._section(section, known, call, by)
        return [self._value(node, known) for node in self.graph.results]

    def _section(
        self, section: Section, known: dict[Node, Array], call: Caller | None, by: str | None
    ) -> None:
        if section.recording is None:
            evaluate_nodes(section.nodes, known, call)
            return
        launch = self._launch(section.recording)
        arrays = [held(self._value(node, known), node.dtype) for node in section.inputs]
        found = launch.made(_executor(by))(arrays)
        for node, flat in zip(section.outputs, found, strict=True):
            known[node] = returned(flat.reshape(-1), node.type)

    def _launch(self, recording: Recording) -> Launch:
        found = self._launches.get(id(recording))
        if found is None:
            found = Launch(
                facts_of(recording),
                lambda: recording,
                lambda: lower_recording(recording),
                recording.name,
            )
            self._launches[id(recording)] = found
        return found

    def _value(self, node: Node, known: dict[Node, Array]) -> Array:
        if node in known:
            return known[node]
        if node.op is Op.CONSTANT:
            return np.asarray(node["literal"].array)
        use = self.views.get(node)
        if use is not None and use.source is not node:
            return shown(self._value(use.source, known), use.view)
        return np.zeros(node.shape, node.dtype.numpy)  # of no elements


def _executor(by: str | None) -> Callable[[Launch], Any]:
    from nki.frontends import _native, _reference  # noqa: PLC0415

    if by is None:
        return executor()
    return _reference if by == "reference" else _native()


def shown(array: Array, view: View) -> Array:
    """Return a view of an array's elements in C order."""
    flat = np.ascontiguousarray(array).reshape(-1)
    size = flat.itemsize
    made = np.lib.stride_tricks.as_strided(
        flat[view.offset :], view.shape, [stride * size for stride in view.strides]
    )
    return np.array(made)


def evaluate_nodes(nodes: Sequence[Node], known: dict[Node, Array], call: Caller | None) -> None:
    """Compute nodes by their meaning in NumPy."""
    from neuronxcc.ir.reference import _Rank  # noqa: PLC0415
    from neuronxcc.ir.table import info  # noqa: PLC0415

    rank = _Rank(call)
    for node in nodes:
        operands = [_operand(src, known) for src in node.srcs]
        evaluate = info(node).evaluate
        if evaluate is None:
            values: Sequence[Array] = apply(node, operands)
        else:
            values = evaluate(rank, node, operands)
        if len(values) == 1:
            known[node] = values[0]
        known.update({_Part(node, i): value for i, value in enumerate(values)})  # type: ignore[misc]


def _operand(node: Node, known: dict[Node, Array]) -> Array:
    if node in known:
        return known[node]
    if node.op is Op.CONSTANT:
        return np.asarray(node["literal"].array)
    if node.op is Op.GET:
        return known[_Part(node.srcs[0], node["index"])]  # type: ignore[index]
    value = apply(node, [_operand(src, known) for src in node.srcs])[0]
    known[node] = value
    return value


@dataclass(frozen=True, slots=True)
class _Part:
    """One of several results."""

    node: Node
    index: int
