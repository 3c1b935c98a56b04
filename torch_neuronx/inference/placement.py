"""On which cores models are loaded, and when."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from torch_neuronx import _C

ATTRIBUTE = "neuron_model"  # of a traced module: its neuron::Model
DYNAMIC_BATCH, LAZY_LOAD, ASYNC_LOAD = range(3)  # Option in csrc/inference/model.h

_lock = threading.Lock()
_turn = 0
# What the contexts around torch.jit.load ask for, the innermost last.
_requests: list[tuple[int, int]] = []


def models(trace: torch.nn.Module) -> list[Any]:
    """The `neuron::Model`s in a module.

    Raises:
        TypeError: `trace` is no TorchScript module.
        ValueError: It holds none.
    """
    if not isinstance(trace, torch.jit.ScriptModule):
        raise TypeError(
            f"expected a torch.jit.ScriptModule that torch_neuronx.trace made, got "
            f"{type(trace).__name__}"
        )
    found = []
    for module in trace.modules():
        model = getattr(module, ATTRIBUTE, None)
        if isinstance(model, torch.ScriptObject) and "neuron.Model" in str(model._type()):  # noqa: SLF001
            found.append(model)
    if not found:
        raise ValueError("the module holds nothing that torch_neuronx.trace has compiled")
    return found


def next_cores() -> Sequence[int]:
    """The core for a model that nobody has placed: the next in turn."""
    with _lock:
        return _range(-1, 1)


def requested_cores() -> list[int]:
    """The cores that a context asks for, for a model that is read now; none without one."""
    with _lock:
        return list(_range(*_requests[-1])) if _requests else []


def in_background(work: Callable[[], None]) -> None:
    """Run a load in a thread that Python waits for before it ends."""
    threading.Thread(target=work, name="neuron model loading").start()


def _range(start: int, count: int) -> Sequence[int]:
    """`count` cores from `start` on; from the next in turn if that is -1."""
    global _turn  # noqa: PLW0603
    available = _C.device_count()
    if start == -1:
        start = _turn % available
        _turn = (start + count) % available
    return [(start + i) % available for i in range(count)]


def _check(start_nc: int, nc_count: int) -> tuple[int, int]:
    available = _C.device_count()
    if not available:
        raise RuntimeError("NRT_UNINITIALIZED (status 13): there is no NeuronCore in this process")
    count = 1 if nc_count == -1 else nc_count
    if not 1 <= count <= available:
        raise ValueError(
            f"nc_count={nc_count} must be -1 or from 1 to {available}, the visible cores"
        )
    if start_nc != -1 and not 0 <= start_nc < available:
        raise ValueError(f"start_nc={start_nc} must be -1 or from 0 to {available - 1}")
    if start_nc != -1 and start_nc + count > available:
        raise ValueError(
            f"nc_count={nc_count} cores from start_nc={start_nc} on are more than the {available} "
            "visible cores"
        )
    return start_nc, count


def set_neuron_cores(trace: torch.jit.ScriptModule, start_nc: int = -1, nc_count: int = -1) -> None:
    """Put all models in a traced module on cores, in place.

    With several cores the model is replicated, and calls take the replicas in turn.

    Args:
        trace: What `trace` or `torch.jit.load` returned.
        start_nc: The first core; -1: the next one in turn.
        nc_count: How many; -1: one.

    Raises:
        RuntimeError: There is no core.
        ValueError: There are not so many cores.
    """
    start, count = _check(start_nc, nc_count)
    found = models(trace)
    with _lock:
        cores = list(_range(start, count))
    for model in found:
        model.set_cores(cores)


def set_multicore(trace: torch.jit.ScriptModule) -> None:
    """Put all models in a traced module on every visible core, in place.

    Raises:
        RuntimeError: There is no core.
    """
    set_neuron_cores(trace, 0, max(1, _C.device_count()))


def move_trace_to_device(trace: torch.jit.ScriptModule, device_id: Any) -> None:
    """Move a traced module to a core, in place, and weights that are kept beside it too.

    Args:
        trace: What `trace` or `torch.jit.load` returned.
        device_id: The core's number as this process counts them.

    Raises:
        ValueError: There is no such core.
    """
    available = _C.device_count()
    if not isinstance(device_id, int) or not 0 <= device_id < available:
        raise ValueError(f"device_id={device_id!r} must be from 0 to {available - 1}")
    set_neuron_cores(trace, device_id, 1)
    core = torch.device("neuron", device_id)
    with torch.no_grad():
        for module in trace.modules():
            for name, value in [*module.named_parameters(recurse=False)]:
                setattr(module, name, torch.nn.Parameter(value.to(core), requires_grad=False))
            for name, buffer in [*module.named_buffers(recurse=False)]:
                setattr(module, name, buffer.to(core))


@contextmanager
def neuron_cores_context(start_nc: int = -1, nc_count: int = -1) -> Iterator[None]:
    """Inside, `torch.jit.load` puts models on these cores; see `set_neuron_cores`.

    It belongs to the process: do not open several from several threads.

    Raises:
        RuntimeError: There is no core.
        ValueError: There are not so many cores.
    """
    request = _check(start_nc, nc_count)
    _requests.append(request)
    try:
        yield
    finally:
        _requests.remove(request)


@contextmanager
def multicore_context() -> Iterator[None]:
    """Inside, `torch.jit.load` puts models on every visible core.

    Raises:
        RuntimeError: There is no core.
    """
    with neuron_cores_context(0, max(1, _C.device_count())):
        yield


def lazy_load(trace: torch.jit.ScriptModule, enable_lazy_load: bool = True) -> None:
    """Have `torch.jit.load` of this model leave its loading to the first call or `DataParallel`.

    Call it after `trace` and before `torch.jit.save`.
    """
    _set(trace, LAZY_LOAD, enable_lazy_load)


def async_load(trace: torch.jit.ScriptModule, enable_async_load: bool = True) -> None:
    """Have this model loaded in the background; calls wait until it is.

    Call it after `trace` and before `torch.jit.save`.
    """
    _set(trace, ASYNC_LOAD, enable_async_load)


def _set(trace: torch.jit.ScriptModule, option: int, value: bool) -> None:
    for model in models(trace):
        model.set_option(option, bool(value))


def cores_of(trace: torch.jit.ScriptModule) -> list[int]:
    """The cores that a traced module is loaded on, each once; none if it is not yet."""
    return sorted(set(itertools.chain.from_iterable(model.cores() for model in models(trace))))
