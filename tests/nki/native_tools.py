"""Runs recordings by the native executor on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from neuronxcc.neff.program import Program
from nki.lowering import lower
from nki.recording import Recording
from torch_neuronx.dynamo.executable import Executable

Array = npt.NDArray[Any]


def run_natively(program: Program, arrays: Sequence[Array]) -> list[Array]:
    """Return the results of a program as unsigned items; arguments are unsigned items too."""
    executable = Executable(program, "cpu")
    results = executable(tuple(torch.from_numpy(np.array(array)) for array in arrays))
    return [result.numpy() for result in results]


def natively(recording: Recording, arrays: Sequence[Array]) -> list[Array]:
    """Run a recording of a kernel; a runner of `tests.nki.lowering_tools.check`."""
    return run_natively(lower(recording), arrays)
