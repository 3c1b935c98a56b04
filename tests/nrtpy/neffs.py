"""NEFFs for tests: functions of JAX through the neuronx-cc command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from neuronxcc.cli import main
from nrtpy import NrtpyModel, NrtpyTensor

Array = np.ndarray[Any, Any]


def lowered(function: Callable[..., Any], *args: Any) -> bytes:
    """A function's module as a serialised HloModuleProto."""
    module: Any = jax.jit(function).lower(*args).compiler_ir("hlo")
    return bytes(module.as_serialized_hlo_module_proto())


def compile_module(content: bytes, path: Path, *flags: str) -> Path:
    """Compile a module by the command, in this process."""
    model = path.with_suffix(".pb")
    model.write_bytes(content)
    words = [str(model), "--output", str(path), "--logfile", str(path.with_suffix(".log")), *flags]
    assert main(["compile", *words]) == 0
    return path


def compile_jax(path: Path, function: Callable[..., Any], *args: Any) -> Path:
    """Compile a function of JAX."""
    return compile_module(lowered(function, *args), path)


def tensors_for(
    model: NrtpyModel, arrays: Sequence[Array], core_id: int = 0
) -> dict[str, NrtpyTensor]:
    """Arrays as the inputs of a model, in its order."""
    return {
        name: NrtpyTensor.from_numpy(array, name, core_id)
        for name, array in zip(model.input_tensors_info, arrays, strict=True)
    }


def arrays_of(model: NrtpyModel, inputs: dict[str, NrtpyTensor]) -> list[Array]:
    """Results of a call."""
    outputs = model(inputs)
    assert outputs is not None
    return [tensor.numpy() for tensor in outputs.values()]
