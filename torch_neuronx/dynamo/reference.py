"""Runs an imported graph in NumPy: slow, obvious, for tests and for finding out who is wrong.

All executors here have the interface of `executable.Executable`. TORCH_NEURONX_EXECUTOR=reference
runs the graph by the meaning of the tensor IR, before any pass. TORCH_NEURONX_EXECUTOR=program
compiles it and runs the Program step by step, in the memory that was planned: a wrong result that
it shares with `native` comes from passes or lowering, one that it doesn't share from machine code.
TORCH_NEURONX_EXECUTOR=device lowers it to instructions of a NeuronCore and runs these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from neuronxcc.compiler import compile_graph
from neuronxcc.ir import dtypes
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node, Operand
from neuronxcc.ir.reference import evaluate
from neuronxcc.options import from_environment
from neuronxcc.passes.stochastic import with_state
from neuronxcc.program.reference import run_program
from neuronxcc.program.steps.operator import AtenStep
from nki.device import lower
from torch_neuronx.dynamo.importer import Imported
from torch_neuronx.dynamo.registry import flat
from torch_neuronx.nki.launches import recording_of
from torch_neuronx.program.allowed import operator
from torch_neuronx.program.dtypes import TO_TORCH, from_numpy, to_numpy
from torch_neuronx.program.rounding import state_source

Arrays = list[np.ndarray]


class ReferenceExecutable:
    """Calls a graph with a list of tensors, in the order of its parameters.

    Returns the results in the order of the graph's, with the strides that PyTorch expects; those
    that are aliased to a parameter are written there and returned as that parameter.

    Attributes:
        imported: The graph with the layouts of its results.
        evaluate: Gives the results' arrays for those of the parameters. With stochastic rounding
            its last argument is the state of the generator.
    """

    def __init__(self, imported: Imported, evaluate: Callable[[Arrays], Arrays]) -> None:
        self.imported = imported
        self.evaluate = evaluate
        self.rounding = state_source() if from_environment().stochastic_rounding else None

    def __call__(self, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run once; a list of arguments is emptied, as the native executor does."""
        graph = self.imported.graph
        tensors = list(args)
        if isinstance(args, list):
            args.clear()
        state = () if self.rounding is None else (self.rounding(),)
        arrays = self.evaluate([to_numpy(t) for t in (*tensors, *state)])
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


def run_graph(imported: Imported, options: Mapping[str, Any]) -> ReferenceExecutable:
    """Return an evaluator of the graph itself, which options do not change."""
    del options
    rounds = from_environment().stochastic_rounding
    graph = with_state(imported.graph) if rounds else imported.graph
    return ReferenceExecutable(imported, lambda arrays: evaluate(graph, arrays, call_node))


def run_steps(imported: Imported, options: Mapping[str, Any]) -> ReferenceExecutable:
    """Compile the graph without a cache, and return what runs the steps of its program.

    Raises:
        OptionError: An option is unknown or has a wrong value.
    """
    program = compile_graph(
        imported.graph,
        from_environment(options),
        imported.param_strides,
        imported.result_strides,
        constant_params=imported.constant_params,
    )
    return ReferenceExecutable(imported, lambda arrays: run_program(program, arrays, call_step))


def run_device(imported: Imported, options: Mapping[str, Any]) -> ReferenceExecutable:
    """Lower the graph to instructions of a NeuronCore, and return what runs them.

    Operators without instructions are run as in the reference.

    Raises:
        OptionError: An option is unknown or has a wrong value.
    """
    program = lower(imported.graph, options=from_environment(options), kernels=recording_of)
    return ReferenceExecutable(imported, lambda arrays: program.run(arrays, call_node))


def call_node(node: Node, arrays: Sequence[np.ndarray]) -> Arrays:
    """Run a custom or host call of the IR."""

    def filled(value: Any) -> Any:
        if isinstance(value, Operand):
            return arrays[value.index]
        return tuple(map(filled, value)) if isinstance(value, tuple) else value

    kwargs = {name: filled(value) for name, value in node["kwargs"]}
    returned = _call(node["target"], filled(node["args"]), kwargs, on_core=bool(node.get("device")))
    places = node.get("outs", tuple(range(len(node.types))))
    chosen = {
        place: value for place, value in zip(places, returned, strict=False) if place is not None
    }
    return [to_numpy(chosen[i]) for i in range(len(node.types))]


def call_step(step: AtenStep, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arrays:
    """Run the operator of a step; results that nothing takes are empty arrays."""
    returned = _call(step.target, args, kwargs, on_core=step.device)
    # A step may leave out the last results of its operator.
    wanted = zip(step.outs, returned, strict=False)
    return [np.empty(0) if out is None else to_numpy(value) for out, value in wanted]


def _call(
    target: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, on_core: bool
) -> list[torch.Tensor]:
    """Run an operator as the native executor does: arrays stand for tensors."""
    device = "neuron" if on_core else "cpu"

    def thaw(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return from_numpy(value, TO_TORCH[dtypes.from_numpy(value.dtype)]).to(device)
        if isinstance(value, DType):
            return TO_TORCH[value]
        return [thaw(v) for v in value] if isinstance(value, tuple) else value

    called = operator(target)
    thawed = {name: thaw(value) for name, value in kwargs.items()}
    if any(a.name == "device" for a in called._schema.arguments):  # type: ignore[attr-defined]
        thawed["device"] = device
    # As the executor does: PyTorch computes linalg_pinv of complex numbers wrongly under a mode,
    # and AOTAutograd has one around the first call.
    with _disable_current_modes():
        return flat(called(*map(thaw, args), **thawed))
