"""What the tests of lowering share: ATen's operators on arrays, and lower-and-run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from neuronxcc.ir import DType, Graph
from neuronxcc.ir.node import Node
from neuronxcc.ir.reference import evaluate
from neuronxcc.lowering import lower
from neuronxcc.lowering.reference import run_program
from neuronxcc.neff.check import check_program
from neuronxcc.neff.program import AtenStep, Program
from neuronxcc.options import Options
from torch_neuronx.dynamo.dtypes import TO_TORCH
from torch_neuronx.dynamo.literals import from_numpy, to_numpy
from torch_neuronx.dynamo.reference import call_aten, operator
from torch_neuronx.dynamo.registry import flat
from neuronxcc.ir.dtypes import from_numpy as dtype_of


def run_aten(
    step: AtenStep, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Sequence[np.ndarray]:
    """Call the operator of a step on arrays."""

    def thaw(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return from_numpy(value, TO_TORCH[dtype_of(value.dtype)])
        if isinstance(value, DType):
            return TO_TORCH[value]
        return [thaw(v) for v in value] if isinstance(value, tuple) else value

    returned = operator(step.target)(
        *map(thaw, args), **{name: thaw(value) for name, value in kwargs.items()}
    )
    return [to_numpy(value) for value in flat(returned)]


def lowered(graph: Graph, **layouts: Any) -> Program:
    """The checked program of a graph."""
    program = lower(graph, Options(), **layouts)
    check_program(program)
    return program


def run(graph: Graph, args: Sequence[np.ndarray], **layouts: Any) -> list[np.ndarray]:
    """Lower a graph and run the program in NumPy."""
    return run_program(lowered(graph, **layouts), args, run_aten)


def expected(graph: Graph, args: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results by the meaning of the IR."""

    def call(node: Node, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        return call_aten(node, arrays)

    return evaluate(graph, args, call)
