"""What a program is predicted to take, as its compiler leaves it in the program and in its NEFF.

The prediction is that of `torch_neuronx.estimate` by bytes and flops. It is made where the graph
still is, so that a program which comes from a file has it, too. Collectives take no time in it,
because who takes part in them is not known yet; a loop whose length a run decides counts once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from neuronxcc.ir.graph import Graph
from neuronxcc.options import Options
from neuronxcc.perf.graphs.machine import Machine
from neuronxcc.perf.graphs.parameters import MODEL_VERSION
from neuronxcc.perf.graphs.sections import sections_of
from neuronxcc.targets import get_target

__all__ = ["ENTRY", "NoPredictionError", "entry_of", "predicted_us", "prediction_of"]

#: The entry of `Program.meta`: {"us": microseconds, "model": version}, or {"error": reason}.
ENTRY: Final = "predicted"


class NoPredictionError(ValueError):
    """A program has no predicted time; the text says why."""


def prediction_of(
    graph: Graph, options: Options, constant_params: Collection[int] | None
) -> dict[str, Any]:
    """Return the entry for a graph that has passed the compiler's passes.

    Args:
        graph: of tensor IR.
        options: for which chip, and how many physical cores of it.
        constant_params: numbers of the parameters that are weights, as `sections_of` has them.
    """

    def us() -> float:
        machine = Machine.of(get_target(options.target), options.lnc)
        sections = sections_of(graph, machine, constant_params=constant_params)
        return float(sum(section.us for section in sections))

    return entry_of(us)


def entry_of(us: Callable[[], float]) -> dict[str, Any]:
    """Return the entry, by what says how many microseconds a program takes, or raises.

    It never fails: a compilation is not worth less because nobody knows how long its program takes.
    """
    try:
        return {"us": us(), "model": MODEL_VERSION}
    except Exception as error:  # noqa: BLE001 - whoever asks for the time is told why there is none
        return {"error": f"{type(error).__name__}: {error}"}


def predicted_us(meta: Mapping[str, Any]) -> float:
    """Return the microseconds that a program is predicted to take, by its `meta`.

    That may come from a file of anybody's.

    Raises:
        NoPredictionError: there is no prediction; the text says why.
    """
    entry = meta.get(ENTRY)
    if entry is None:
        raise NoPredictionError("it was not compiled from a graph, or by an earlier version")
    if isinstance(entry, Mapping):
        us = entry.get("us")
        if isinstance(us, float) and math.isfinite(us) and us >= 0:
            return us
        if isinstance(entry.get("error"), str):
            raise NoPredictionError(str(entry["error"])[:500])
    raise NoPredictionError("its file has no number where the prediction should be")
