"""Runs lowered recordings as machine code."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from nki.lowering import lower
from nki.recording import Recording
from tests.nki.lowering_tools import Array
from torch_neuronx.program.dtypes import TO_TORCH
from torch_neuronx.program.executable import Executable


def native(recording: Recording, arrays: Sequence[Array]) -> list[Array]:
    """Return the storages that a recording returns, by the lowered program run natively."""
    program = lower(recording)
    kinds = {b.index: b.dtype for b in program.buffers if b.kind == "input"}
    inputs = []
    for i, array in enumerate(arrays):
        flat = torch.from_numpy(np.ascontiguousarray(array).view(np.uint8).reshape(-1).copy())
        kind = kinds.get(i)
        typed = flat if kind is None else flat.view(TO_TORCH.get(kind, torch.uint8))
        inputs.append(typed.reshape(array.shape))
    outputs = Executable(program, "cpu")(inputs)
    results = []
    for tensor, number in zip(outputs, program.results, strict=True):
        buffer = program.buffers[number]
        data = tensor.contiguous().view(torch.uint8).numpy()
        results.append(data.reshape(-1).view(buffer.dtype.numpy).reshape(buffer.shape))
    return results
