"""`NEURON_RT_INSPECT_ENABLE`: a process is observed to its end, and writes its profile then."""

from __future__ import annotations

import atexit
from pathlib import Path

from neuron_tools.explorer import session as files
from neuron_tools.explorer.session import Session
from neuronxcc.environment.observation import (
    NEURON_RT_INSPECT_CPU_UTIL,
    NEURON_RT_INSPECT_DEVICE_PROFILE,
    NEURON_RT_INSPECT_EVENT_FILTER_NC,
    NEURON_RT_INSPECT_HOST_MEMORY,
    NEURON_RT_INSPECT_OUTPUT_DIR,
    NEURON_RT_INSPECT_SYS_TRACE_MAX_EVENTS_PER_NC,
    NEURON_RT_INSPECT_SYSTEM_PROFILE,
)
from torch_neuronx import _C
from torch_neuronx.profiling import recording
from torch_neuronx.profiling.config import parse_cores
from torch_neuronx.profiling.profiler import information
from torch_neuronx.profiling.sampling import Sampler


def start() -> None:
    """Observe from now on; the profile is written at exit, if the device was used.

    Raises:
        ValueError: The filter names what is no core.
    """
    try:
        cores = parse_cores(NEURON_RT_INSPECT_EVENT_FILTER_NC.get())
    except ValueError as error:
        raise ValueError(f"{NEURON_RT_INSPECT_EVENT_FILTER_NC.name}: {error}") from error
    cpu, memory = NEURON_RT_INSPECT_CPU_UTIL.get(), NEURON_RT_INSPECT_HOST_MEMORY.get()
    sampler = Sampler(cpu=cpu, memory=memory) if cpu or memory else None
    recording.start(NEURON_RT_INSPECT_SYS_TRACE_MAX_EVENTS_PER_NC.get(), cores)
    atexit.register(_finish, sampler)


def _finish(sampler: Sampler | None) -> None:
    if not _C.is_initialized():
        return
    try:
        for core in range(_C.device_count()):
            _C.synchronize(core)
    finally:  # what failed is told after the profile is written
        _write(sampler)


def _write(sampler: Sampler | None) -> None:
    events, dropped = recording.take()
    found = Session(events=events, info={**information(), "dropped_events": dropped})
    if sampler is not None:
        sampler.stop()
        found.cpu, found.memory = sampler.cpu, sampler.memory
    output = NEURON_RT_INSPECT_OUTPUT_DIR.get() or Path("output")
    files.write(
        found,
        files.new_folder(output),
        device=NEURON_RT_INSPECT_DEVICE_PROFILE.get() != "0",
        runtime=NEURON_RT_INSPECT_SYSTEM_PROFILE.get(),
    )
