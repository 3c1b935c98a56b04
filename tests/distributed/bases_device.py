"""What the tests on PyTorch's bases run on: a NeuronCore a rank, or the CPU as a control.

``TEST_BASES_CONTROL=1`` says that it is the control, which shows what fails for reasons that are
PyTorch's own. FSDP has none: it takes the accelerator wherever there is one.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import nn

CONTROL: Final = os.environ.get("TEST_BASES_CONTROL") == "1"
DEVICE: Final = "cpu" if CONTROL else "neuron"
BACKEND: Final = "gloo" if CONTROL else "cpu:gloo,neuron:neuron"


def start(rank: int) -> None:
    """Make this process one of a single thread that uses the core of its rank."""
    torch.set_num_threads(1)
    if not CONTROL:
        torch.accelerator.set_device_index(rank)


@contextlib.contextmanager
def noting(what: str) -> Iterator[None]:
    """Adds to an error what was being done."""
    try:
        yield
    except Exception as error:
        error.add_note(what)
        raise


def filled(model: nn.Module) -> Any:
    """The model with numbers that are the same everywhere: threads share PyTorch's generator."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
        for buffer in model.buffers():
            buffer.copy_(torch.randn(buffer.shape, generator=generator))
    return model
