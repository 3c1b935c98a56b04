"""What the tests on PyTorch's bases run on: a NeuronCore a rank, or the CPU as a control.

``TEST_BASES_CONTROL=1`` says that it is the control, which shows what fails for reasons that are
PyTorch's own. FSDP has none: it takes the accelerator wherever there is one.
"""

import os
from typing import Final

import torch

CONTROL: Final = os.environ.get("TEST_BASES_CONTROL") == "1"
DEVICE: Final = "cpu" if CONTROL else "neuron"
BACKEND: Final = "gloo" if CONTROL else "cpu:gloo,neuron:neuron"


def start(rank: int) -> None:
    """Make this process one of a single thread that uses the core of its rank."""
    torch.set_num_threads(1)
    if not CONTROL:
        torch.accelerator.set_device_index(rank)
