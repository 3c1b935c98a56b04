"""Who uses a device, and how much of the time: by the files that processes keep for the tools.

The numbers are those of neuron-monitor and neuron-ls (docs/tools.md): of all processes of this user
that use the core, in this host's time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from neuron_tools.registry import reader
from neuron_tools.registry.reader import Snapshot, Values
from torch_neuronx import _C
from torch_neuronx.neuron._utils import DeviceLike, _get_device_index
from torch_neuronx.neuron.devices import get_device_properties

__all__ = ["list_gpu_processes", "utilization"]

_LEAST = 1 / 6  # seconds that a sample takes, as those of `nvidia-smi` do

# By number of a core: when it was looked at last, and for how many seconds each process, by what
# identifies it, had used it by then.
_last: dict[int, tuple[float, Mapping[tuple[int, int], float]]] = {}


def utilization(device: DeviceLike = None) -> int:
    """Return the percent of time that a core was in use, since this was last asked about it.

    A core is in use while an operator or a program runs on it, of any process. Less than a sixth of
    a second says little: then, and at the first call, this waits until so much has passed.

    Args:
        device: which core; None is the current one.

    Raises:
        RuntimeError: this process keeps no file, so nobody counts (TORCH_NEURONX_REGISTRY_DIR).
    """
    core = _core(device)
    if core not in _last:
        _last[core] = time.monotonic(), _seconds(core)
    begun, before = _last[core]
    time.sleep(max(0.0, begun + _LEAST - time.monotonic()))
    now, after = time.monotonic(), _seconds(core)
    _last[core] = now, after
    busy = sum(max(0.0, used - before.get(who, 0.0)) for who, used in after.items())
    return min(100, round(100 * busy / (now - begun)))


def list_gpu_processes(device: DeviceLike = None) -> str:
    """Return the processes that use a core and the device memory they hold, a line each.

    The text is that of ``torch.cuda.list_gpu_processes``, for those who read it. Numbers of cores
    are those of the machine, as in neuron-ls.

    Args:
        device: which core; None is the current one.

    Raises:
        RuntimeError: this process keeps no file (TORCH_NEURONX_REGISTRY_DIR).
    """
    core = _core(device)
    lines = [
        f"process {snapshot.pid:>10d} uses {values['reserved_bytes'] / 2**20:>12.3f} MB GPU memory"
        for snapshot in reader.processes().processes
        for values in _on(snapshot, core)
    ]
    return "\n".join([f"GPU:{core}", *(lines or ["no processes are running"])])


def _core(device: DeviceLike) -> int:
    """Return the number of a device among the machine's cores."""
    index = _get_device_index(device, optional=True)
    get_device_properties(index)  # raises if there is no such device
    _C.init()
    path = _C.registry_path()
    if not path:
        raise RuntimeError(
            "nobody counts what uses the device: TORCH_NEURONX_REGISTRY_DIR is off, or its "
            "directory can't be written to"
        )
    return reader.read(Path(path)).cores[index]["number"]


def _on(snapshot: Snapshot, core: int) -> list[Values]:
    return [values for values in snapshot.used_cores if values["number"] == core]


def _seconds(core: int) -> dict[tuple[int, int], float]:
    return {
        snapshot.identity: snapshot.busy_ticks(values) / snapshot.header["clock_rate"]
        for snapshot in reader.processes().processes
        for values in _on(snapshot, core)
    }
