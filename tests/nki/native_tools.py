"""Runs recordings by the native executor on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from neuronxcc.program.program import Program
from nki.lowering import lower
from nki.recording import Recording
from torch_neuronx.program.executable import Executable

Array = npt.NDArray[Any]


def run_natively(program: Program, arrays: Sequence[Array]) -> list[Array]:
    """Return the results of a program; those that NumPy has no type for as unsigned items."""
    executable = Executable(program, "cpu")
    results = executable(tuple(torch.from_numpy(np.array(array)) for array in arrays))
    return [_array(result) for result in results]


def _array(tensor: torch.Tensor) -> Array:
    known = tensor.dtype is not torch.bfloat16
    array: Array = (tensor if known else tensor.view(torch.uint16)).numpy()
    return array


def natively(recording: Recording, arrays: Sequence[Array]) -> list[Array]:
    """Run a recording of a kernel; a runner of `tests.nki.lowering_tools.check`."""
    return run_natively(lower(recording), arrays)
