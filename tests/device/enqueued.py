"""Eager modes in which operators are enqueued, however small their work is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch_neuronx
from torch_neuronx import _C


@contextlib.contextmanager
def everything_enqueued(mode: str) -> Iterator[None]:
    """Enqueue all that can be in a mode; what is left, and fails, belongs to the test that ends."""
    neuron = torch_neuronx.neuron
    before = _C.direct_elements()
    _C.set_direct_elements(0)
    with neuron.eager_mode(mode):
        yield
        with contextlib.suppress(RuntimeError, IndexError):
            neuron.synchronize()
    _C.set_direct_elements(before)
