"""Device programs: sections of instructions, how long they take, and what they compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from neuronxcc.ir.graph import Graph
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.ir.operators.collectives import alone
from neuronxcc.ir.operators.definition import Exchange
from neuronxcc.ir.reference import Caller, evaluate_node
from neuronxcc.options import Options
from neuronxcc.perf import Parameters
from neuronxcc.targets import Target, get_target
from nki.device.exchanges import Job
from nki.device.groups import Use
from nki.device.kernel_calls import results_of
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
Known = dict[tuple[Node, int], Array]  # by node and number of its result


@dataclass(eq=False)
class DeviceProgram:
    """A graph as instructions of a NeuronCore.

    Attributes:
        graph: after the compiler's passes.
        target: what it is for.
        options: of the compiler.
        sections: in the order in which they run.
        views: of each result, what it is a view of.
        lnc: physical cores of the logical core that it is for.
        notes: what the user should be told: options without effect here.
    """

    graph: Graph
    target: Target
    options: Options
    sections: tuple[Section, ...]
    views: Mapping[Node, Use]
    lnc: int = 1
    notes: tuple[str, ...] = ()
    _launches: dict[int, Launch] = field(default_factory=dict)

    @property
    def instructions(self) -> int:
        """How many instructions run each time; those of loading the program are not counted."""
        return sum(section.instructions for section in self.sections if not section.once)

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
        self,
        target: str | Target | None = None,
        parameters: Parameters | None = None,
        *,
        job: Job | None = None,
    ) -> ProgramPrediction:
        """Return how long the program would take: its sections on one timeline.

        Each section is timed behind the one before it, whose end it overlaps with: engines go on
        as soon as they can, and weights are loaded ahead.

        Args:
            target: by default that which the program was lowered for.
            parameters: of the performance model.
            job: whose rank the program is, for the times of its collectives; without it these count
                by the bytes that they read and write.
        """
        chip = self.target if target is None else target
        chip = get_target(chip) if isinstance(chip, str) else chip
        beside = bool(self.options.distribution_strategy)
        return predicted(self.sections, self.graph.name, chip, parameters, job, beside=beside)

    def run(
        self,
        inputs: Sequence[Array],
        call: Caller | None = None,
        *,
        by: str | None = None,
        exchange: Exchange = alone,
    ) -> list[Array]:
        """Return the results that the instructions give; what has none is the reference's.

        Random numbers are those that `call` draws, so that a seed means the same here as anywhere;
        without it the instructions draw them.

        Args:
            inputs: one array for each parameter of the graph, of its type.
            call: runs custom and host calls.
            by: "native" or "reference": who runs NKI kernels; by default what
                TORCH_NEURONX_NKI_EXECUTOR says.
            exchange: how this rank meets the others in collectives.
        """
        known: Known = {
            (param, 0): value for param, value in zip(self.graph.params, inputs, strict=True)
        }
        for section in self.sections:
            self._section(section, known, call, by, exchange)
        return [self._value(node, known) for node in self.graph.results]

    def _section(
        self, section: Section, known: Known, call: Caller | None, by: str | None,
        exchange: Exchange,
    ) -> None:  # fmt: skip
        drawn = section.kind == "random" and call is not None
        # Who exchanges values with other ranks is the caller's affair.
        if section.recording is None or drawn or section.kind == "collective":
            for node in section.nodes:
                self._evaluate(node, known, call, exchange)
            return
        launch = self._launch(section.recording)
        if section.kind == "kernel":
            self._kernel(section.nodes[0], launch, known, by)
            return
        arrays = [held(self._value(node, known), node.dtype) for node in section.inputs]
        found = launch.made(executor(by))(arrays)
        for node, flat in zip(section.outputs, found, strict=True):
            key = (node.srcs[0], node["index"]) if node.op is Op.GET else (node, 0)
            known[key] = returned(flat.reshape(-1), node.type)

    def _kernel(self, node: Node, launch: Launch, known: Known, by: str | None) -> None:
        """Run a kernel that the graph calls."""
        given = [self._value(src, known) for src in node.srcs]
        made = results_of(node, launch, given, launch.made(executor(by)))
        for number, (flat, type_) in enumerate(zip(made, node.types, strict=True)):
            known[node, number] = returned(flat, type_)

    def _evaluate(self, node: Node, known: Known, call: Caller | None, exchange: Exchange) -> None:
        """Compute a node by its meaning in NumPy."""
        operands = [self._value(src, known) for src in node.srcs]
        values = evaluate_node(node, operands, call, exchange)
        for index, value in enumerate(values):
            known[node, index] = value

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

    def _value(self, node: Node, known: Known) -> Array:
        key = (node.srcs[0], node["index"]) if node.op is Op.GET else (node, 0)
        if key in known:
            return known[key]
        if node.op is Op.CONSTANT:
            return np.asarray(node["literal"].array)
        use = self.views.get(node)
        if use is not None and use.source is not node:
            return shown(self._value(use.source, known), use.view)
        return np.zeros(node.shape, node.dtype.numpy)  # of no elements


def shown(array: Array, view: View) -> Array:
    """Return a view of an array's elements in C order."""
    flat = np.ascontiguousarray(array).reshape(-1)
    size = flat.itemsize
    made = np.lib.stride_tricks.as_strided(
        flat[view.offset :], view.shape, [stride * size for stride in view.strides]
    )
    return np.array(made)
