"""Eager modes in which operators are enqueued, however small their work is."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

import torch_neuronx
from torch_neuronx import _C

Result = TypeVar("Result")
PATIENCE = 60  # seconds


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


def to_the_end(function: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
    """Call a function, and wait for what it enqueued, on whatever core.

    An error that depends on values is told here: in debug mode by the call itself, in the others by
    who waits for it.
    """
    neuron = torch_neuronx.neuron
    result = function(*args, **kwargs)
    if neuron.get_eager_mode() != "debug":
        for core in range(neuron.device_count()):
            neuron.synchronize(core)
    return result


@contextlib.contextmanager
def held(stream: torch.Stream | None = None) -> Iterator[_C.TestCompletion]:
    """Have a stream (None: the current one) wait until the block ends, or sets what it waits for.

    A call in the block whose kind is not known waits for its stream: if that is this one, it waits
    for `PATIENCE`, and the test fails.
    """
    work, late = _C.TestCompletion(), threading.Event()

    def give_up() -> None:
        late.set()
        work.set()

    timer = threading.Timer(PATIENCE, give_up)
    timer.start()
    try:
        work.add_to(torch_neuronx.neuron.current_stream() if stream is None else stream)
        yield work
    finally:
        timer.cancel()
        work.set()
    assert not late.is_set(), "a call has waited for the stream that is held"


@contextlib.contextmanager
def regions_soon() -> Iterator[None]:
    """Regions are compiled however little time their operators take."""
    before = _C.region_worth()
    _C.set_region_worth(0)
    yield
    _C.set_region_worth(before)


def until_fused(step: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """Take steps until a region was run as a program; return what the last one gave."""
    neuron = torch_neuronx.neuron
    neuron.reset_eager_stats()
    end = time.monotonic() + seconds
    while neuron.eager_stats()["fused"]["regions"] == 0:
        result = step()
        neuron.synchronize()
        assert time.monotonic() < end, neuron.eager_stats()
        time.sleep(0.02)
    return result
