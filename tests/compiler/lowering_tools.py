"""What the tests of lowering share: ATen's operators on arrays, and lower-and-run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch

from neuronxcc.ir import DType, Graph, Node, Operand
from neuronxcc.ir.reference import evaluate
from neuronxcc.lowering import lower
from neuronxcc.options import Options
from neuronxcc.program.check import check_program
from neuronxcc.program.program import Program
from neuronxcc.program.reference import run_program
from neuronxcc.program.steps.operator import AtenStep

# Types that NumPy has from ml_dtypes: by way of integers of the same bits.
_BITS = {
    np.dtype(ml_dtypes.bfloat16): (np.int16, torch.bfloat16),
    np.dtype(ml_dtypes.float8_e4m3fn): (np.uint8, torch.float8_e4m3fn),
    np.dtype(ml_dtypes.float8_e5m2): (np.uint8, torch.float8_e5m2),
}
_DTYPES = {
    DType.F32: torch.float32,
    DType.F64: torch.float64,
    DType.BF16: torch.bfloat16,
    DType.F16: torch.float16,
    DType.S64: torch.int64,
    DType.S32: torch.int32,
    DType.U8: torch.uint8,
    DType.C64: torch.complex64,
}


def to_torch(array: np.ndarray) -> torch.Tensor:
    """A tensor of the same elements."""
    owned = np.array(array, order="C", copy=True)
    if owned.dtype in _BITS:
        bits, dtype = _BITS[owned.dtype]
        return torch.from_numpy(owned.view(bits)).view(dtype)
    return torch.from_numpy(owned)


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """An array of the same elements."""
    for numpy, (_, dtype) in _BITS.items():
        if tensor.dtype == dtype:
            width = torch.int16 if numpy.itemsize == 2 else torch.uint8
            return np.asarray(tensor.contiguous().view(width).numpy()).view(numpy)
    return np.asarray(tensor.resolve_conj().resolve_neg().numpy())


def _call(target: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[np.ndarray]:
    def thaw(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return to_torch(value)
        if isinstance(value, DType):
            return _DTYPES[value]
        return [thaw(v) for v in value] if isinstance(value, tuple) else value

    space, name = target.split("::")
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(getattr(torch.ops, space), packet), overload or "default")
    returned = operator(*map(thaw, args), **{name: thaw(v) for name, v in kwargs.items()})
    return [to_numpy(v) for v in (returned if isinstance(returned, tuple | list) else (returned,))]


def run_aten(
    step: AtenStep, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Sequence[np.ndarray]:
    """Call the operator of a step on arrays."""
    return _call(step.target, args, kwargs)


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
        def filled(value: Any) -> Any:
            if isinstance(value, Operand):
                return arrays[value.index]
            return tuple(map(filled, value)) if isinstance(value, tuple) else value

        kwargs = {name: filled(value) for name, value in node["kwargs"]}
        return _call(node["target"], filled(node["args"]), kwargs)

    return evaluate(graph, args, call)
