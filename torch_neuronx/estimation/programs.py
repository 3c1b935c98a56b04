"""The sections of a graph as the compiler's device programs have them, with the times of these."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from neuronxcc.ir.graph import Graph
from neuronxcc.ir.operators.checks import ShapeError
from neuronxcc.options import Options
from neuronxcc.perf.graphs import SIMULATED, Machine, Section, cost_section
from nki.device import SectionTime, lower
from nki.device.record import InstructionLimitError
from nki.errors import NkiError
from torch_neuronx.nki.launches import recording_of

__all__ = ["simulated"]


def simulated(
    graph: Graph, machine: Machine, settings: Options, weights: Collection[int]
) -> tuple[Graph, list[Section]] | str:
    """Lower a graph to instructions and time them.

    Args:
        graph: after the compiler's passes.
        machine: a logical core.
        settings: the compiler's options.
        weights: numbers of the parameters that never change.

    Returns:
        The graph whose nodes the sections have, and these; or why there is no program.
    """
    try:
        program = lower(
            graph, machine.target, settings, passes=False, weights=weights, kernels=recording_of
        )
        found = program.predict(parameters=machine.known)
    except (ShapeError, NkiError, NotImplementedError, InstructionLimitError) as error:
        return str(error).strip().splitlines()[0]
    return program.graph, [_section(one, machine) for one in found.sections]


def _section(time: SectionTime, machine: Machine) -> Section:
    made = cost_section(time.section.nodes, time.section.outputs, machine)
    if time.prediction is None:
        if time.section.recording is not None:
            return made  # a collective
        made.notes = (f"{time.section.operator} has no instructions: {time.section.reason}",)
        return made
    known = time.prediction
    made.busy = {name: us for name, us in known.busy_us.items() if us}
    # A section overlaps with the one before it, so that it may add less than it works.
    made.latency_us = max(0.0, time.device_us - max(made.busy.values(), default=0.0))
    made.simulated_us = time.device_us
    made.how = SIMULATED
    # Bytes go to the nodes as they would by bytes and flops.
    hbm = known.hbm_bytes
    whole = sum(made.of)
    made.of = _split(hbm, made.of, whole)
    made.written = min(hbm, made.written)
    made.read = hbm - made.written
    made.spilled = known.spilled_bytes
    return made


def _split(total: int, weights: Sequence[int], whole: int) -> list[int]:
    """Divide a number by weights, so that the parts add up to it."""
    if not weights:
        return []
    parts = [total * weight // whole for weight in weights] if whole else [0] * len(weights)
    parts[0] += total - sum(parts)
    return parts
