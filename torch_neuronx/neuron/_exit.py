"""Leaving the interpreter cleanly after a backward pass, or with a process group."""

import atexit
from typing import Final

import torch

from torch_neuronx import _C

# Outlives the interpreter's last garbage collection, so that no device thread frees it.
_KEPT: Final[list[torch.Tensor]] = []


def register() -> None:
    """Have all threads let go of Python objects before the interpreter ends."""
    atexit.register(_C.close_registry)
    atexit.register(_C.close_queues)  # after what is registered below: later ones run first
    atexit.register(_drain)
    atexit.register(_C.close_process_groups)


def _drain() -> None:
    """Run one tiny backward pass on each device that was used.

    PyTorch 2.13 hands every backward pass a Python context (``torch.autograd.graph``), and the
    autograd engine's thread of a device keeps it until its next pass. Were it still there while
    the interpreter ends, that thread would ask for the interpreter's lock to free it, and the
    process would abort. A pass started below the layer that makes the context replaces it by none.
    """
    if not _C.is_initialized():
        return
    engine = torch.autograd.Variable._execution_engine  # noqa: SLF001
    for index in range(_C.device_count()):
        if torch.accelerator.memory_stats(index).get("allocation.all.allocated", 0) == 0:
            continue
        with torch.inference_mode(mode=False), torch.enable_grad():  # programs end in other modes
            root = torch.zeros(1, device=f"neuron:{index}", requires_grad=True)
            result, gradient = root.clone(), torch.ones(1, device=f"neuron:{index}")
        _KEPT.extend((root, result, gradient))
        engine.run_backward(
            (result,),
            (gradient,),
            keep_graph=False,
            create_graph=False,
            inputs=(),
            allow_unreachable=True,
            accumulate_grad=True,
        )
