"""Calls of NKI's kernels in graphs: their recordings are sections as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from neuronxcc.ir.graph import Loc
from neuronxcc.ir.node import Node, Operand
from nki.device.groups import Group
from nki.device.sections import Section, count
from nki.device.types import HELD, held
from nki.dtypes import info
from nki.launch import Launch
from nki.recording import Recording

__all__ = ["Kernels", "results_of", "section_of"]

Array = npt.NDArray[Any]
Run = Callable[[list[Array]], Sequence[Array]]
#: What a call in a graph runs; None for calls of other things.
Kernels = Callable[[Node], Recording | None]


def section_of(group: Group, recording: Recording, locs: Mapping[Node, Loc]) -> Section:
    """Return the section of a call of a kernel.

    Its inputs are the arguments that the call gives, and its outputs the results that others need;
    the places of both in the recording are those of the call.
    """
    (call,) = group.nodes
    inputs = tuple(use.source for use in group.uses[call])
    known = {call: locs[call]} if call in locs else {}
    return Section(
        (call,), "kernel", inputs, tuple(group.outputs), recording,
        locs=known, instructions=count(recording),
    )  # fmt: skip


def results_of(call: Node, launch: Launch, given: list[Array], run: Run) -> list[Array]:
    """Run a kernel, and return its results: outputs, then what it wrote of arguments; flat.

    Args:
        call: the node.
        launch: of its recording.
        given: the arrays of the call's operands.
        run: runs the launch on arrays, which it may write.
    """
    places = call["args"][0]
    arrays = []
    for place, (shape, dtype) in zip(places, launch.arguments, strict=True):
        if isinstance(place, Operand):
            node = call.srcs[place.index]
            assert HELD[node.dtype] == dtype, (node, dtype)
            arrays.append(held(given[place.index], node.dtype).reshape(shape))
        else:  # undefined until the kernel has written it
            arrays.append(np.zeros(shape, info(dtype).numpy))
    found = [*run(arrays), *(arrays[number] for number in sorted(launch.written))]
    return [array.reshape(-1) for array in found]
