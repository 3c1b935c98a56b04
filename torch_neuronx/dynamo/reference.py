"""Runs an imported graph by the NumPy meaning of the IR: slow, obvious, for tests.

It has the interface of `executable.Executable`; TORCH_NEURONX_EXECUTOR=reference chooses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node, Operand
from neuronxcc.ir.reference import evaluate
from neuronxcc.options import from_environment
from neuronxcc.passes.stochastic import with_state
from torch_neuronx.dynamo.importer import Imported
from torch_neuronx.dynamo.literals import from_numpy, to_numpy
from torch_neuronx.dynamo.registry import flat
from torch_neuronx.program.allowed import operator
from torch_neuronx.program.dtypes import TO_TORCH
from torch_neuronx.program.rounding import state_source


class ReferenceExecutable:
    """Calls a graph with a list of tensors, in the order of its parameters.

    Returns the results in the order of the graph's, with the strides that PyTorch expects; those
    that are aliased to a parameter are written there and returned as that parameter.
    """

    def __init__(self, imported: Imported) -> None:
        self.imported = imported
        self.rounding = state_source() if from_environment().stochastic_rounding else None
        self.graph = with_state(imported.graph) if self.rounding else imported.graph

    def __call__(self, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run once; a list of arguments is emptied, as the native executor does."""
        graph = self.graph
        tensors = list(args)
        if isinstance(args, list):
            args.clear()
        state = () if self.rounding is None else (self.rounding(),)
        arrays = evaluate(graph, [to_numpy(t) for t in (*tensors, *state)], call_aten)
        layouts = zip(
            graph.results, self.imported.result_strides, self.imported.result_devices, strict=True
        )
        results = []
        for number, (array, (node, stride, device)) in enumerate(zip(arrays, layouts, strict=True)):
            value = from_numpy(array, TO_TORCH[node.dtype])
            parameter = graph.aliases.get(number)
            if parameter is None:
                target = torch.empty_strided(node.shape, stride, dtype=value.dtype, device=device)
            else:
                target = tensors[parameter].detach()
            target.copy_(value)
            results.append(target)
        return results


def call_aten(node: Node, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Run a custom or host call of the IR; what the executor's ATen step does."""
    device = "neuron" if node.get("device") else "cpu"
    tensors = [
        from_numpy(array, TO_TORCH[src.dtype]).to(device)
        for array, src in zip(arrays, node.srcs, strict=True)
    ]

    def thaw(value: Any) -> Any:
        if isinstance(value, Operand):
            return tensors[value.index]
        if isinstance(value, DType):
            return TO_TORCH[value]
        if isinstance(value, tuple):
            return [thaw(v) for v in value]
        return value

    target = operator(node["target"])
    kwargs = {name: thaw(value) for name, value in node["kwargs"]}
    if any(a.name == "device" for a in target._schema.arguments):  # type: ignore[attr-defined]
        kwargs["device"] = device
    # As the executor does: PyTorch computes linalg_pinv of complex numbers wrongly under a mode,
    # and AOTAutograd has one around the first call.
    with _disable_current_modes():
        returned = flat(target(*map(thaw, node["args"]), **kwargs))
    places = node.get("outs", tuple(range(len(node.types))))
    chosen: dict[int, torch.Tensor] = {
        place: value for place, value in zip(places, returned, strict=False) if place is not None
    }
    return [to_numpy(chosen[i]) for i in range(len(node.types))]
