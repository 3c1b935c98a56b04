"""Runs launches of kernels on tensors: the native program, or the reference on copies."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy.typing as npt
import torch

from neuronxcc.environment.kernels import TORCH_NEURONX_NKI_EXECUTOR
from nki.dtypes import info
from nki.errors import NkiIndexError
from nki.launch import Launch
from nki.reference import run as run_reference
from torch_neuronx.nki.types import host_array, tensor_of
from torch_neuronx.program.dtypes import HELD

__all__ = ["numpy_executor", "run"]


Array = npt.NDArray[Any]
Tensors = Sequence[torch.Tensor]
Run = Callable[[Tensors], list[torch.Tensor]]


def run(launch: Launch, tensors: Tensors, device: torch.device) -> list[torch.Tensor]:
    """Run a launch; arguments that the kernel writes are changed in place.

    Args:
        launch: what to run.
        tensors: the array arguments, contiguous, all on `device`.
        device: where the outputs are made.

    Returns:
        The outputs, whole, as `nki.returned` numbers them.

    Raises:
        ValueError: `TORCH_NEURONX_NKI_EXECUTOR` names no executor.
    """
    made: Run = launch.made(_MAKERS[TORCH_NEURONX_NKI_EXECUTOR.get()], device)
    return made(tensors)


def _native(launch: Launch, device: torch.device) -> Run:
    from torch_neuronx.program.executable import Executable  # noqa: PLC0415 - it loads LLVM
    from torch_neuronx.program.model_time import count  # noqa: PLC0415 - imports the above

    executable = Executable(launch.program, device)
    count(executable, launch.predicted_us)
    native = executable.run

    def on_tensors(tensors: Tensors) -> list[torch.Tensor]:
        try:
            return native(tuple(tensors))
        except IndexError as error:
            raise _refused(error) from None

    return on_tensors


# What the native executor says of an index: what, where, what to do, and the code.
_INDEX = re.compile(r"(.+?); ([^;]+):(\d+); (.+?) \[(NKI\d{3})\]", re.DOTALL)


def _refused(error: IndexError) -> IndexError:
    """Return the error of `nki` that an error of the native core stands for."""
    match = _INDEX.match(str(error))
    if match is None:
        return error
    what, file, line, remedy, code = match.groups()
    return NkiIndexError(code, what, remedy, (file, int(line)))


def _reference(launch: Launch, device: torch.device) -> Run:
    recording = launch.recording

    def on_copies(tensors: Tensors) -> list[torch.Tensor]:
        arrays = [host_array(tensor) for tensor in tensors]
        usable = [array if array.flags.writeable else array.copy() for array in arrays]
        outputs = run_reference(recording, usable)
        for i in launch.written:
            tensors[i].copy_(tensor_of(usable[i], launch.arguments[i][1]))
        kinds = [dtype for _, dtype in launch.outputs]
        return [tensor_of(a, k).to(device) for a, k in zip(outputs, kinds, strict=True)]

    return on_copies


_MAKERS: dict[str, Callable[[Launch, torch.device], Run]] = {
    "native": _native,
    "reference": _reference,
}


def numpy_executor(launch: Launch) -> Callable[[Sequence[Array]], list[Array]]:
    """Make a launch run natively on NumPy arrays: the entry of the group ``nki.executors``."""
    native = _native(launch, torch.device("cpu"))
    dtypes = _input_dtypes(launch)

    def on_arrays(arrays: Sequence[Array]) -> list[Array]:
        outputs = native([_over(array, d) for array, d in zip(arrays, dtypes, strict=True)])
        kinds = [info(dtype).numpy for _, dtype in launch.outputs]
        return [host_array(t).view(k) for t, k in zip(outputs, kinds, strict=True)]

    return on_arrays


def _input_dtypes(launch: Launch) -> list[torch.dtype]:
    """The types as which the program takes its arguments."""
    inputs = [buffer for buffer in launch.program.buffers if buffer.kind == "input"]
    return [HELD[buffer.dtype] for buffer in sorted(inputs, key=lambda b: b.index)]


def _over(array: Array, dtype: torch.dtype) -> torch.Tensor:
    """A tensor over an array's memory."""
    return torch.from_numpy(array.view(f"i{array.dtype.itemsize}")).view(dtype)
