"""Inputs of a failed execution as files, for NEURON_RT_DBG_DUMP_INPUTS_ON_ERR."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from neuronxcc.environment.runtime import NEURON_RT_DBG_DUMP_INPUTS_ON_ERR
from neuronxcc.environment.variable import VariableError
from nrtpy.logs import log

_FIRST_ID = 10001
_executions = itertools.count(_FIRST_ID)


def wanted(status: int) -> bool:
    """Return whether the environment asks for the inputs of executions that end with a status."""
    try:
        return status != 0 and NEURON_RT_DBG_DUMP_INPUTS_ON_ERR.get() == status
    except VariableError as error:
        # The execution has failed already: that is what its caller must hear of.
        log("ERROR", "NRT", "nrt_execute", str(error))
        return False


def dump_inputs(arrays: Sequence[np.ndarray[Any, Any]], model: str) -> Path:
    """Write `input0.bin` and so on, the plain bytes, then `model_name.txt`.

    Args:
        arrays: The inputs in their order.
        model: Path of the NEFF. Its file is written last, so that it tells a complete folder.

    Returns:
        The new folder in the working directory.

    Raises:
        OSError: It can't be written.
    """
    folder = Path.cwd() / f"input_dump_{secrets.randbelow(1 << 31)}_h_nn_{next(_executions)}"
    folder.mkdir(mode=0o700)
    for number, array in enumerate(arrays):
        (folder / f"input{number}.bin").write_bytes(array.tobytes())
    (folder / "model_name.txt").write_text(model, encoding="utf-8")
    log(
        "ERROR", "TDRV", "tensor_dump_inputs",
        f"{len(arrays)} input tensors were dumped successfully to directory {folder}. Model name "
        f"is {model}",
    )  # fmt: skip
    return folder
