"""What a profile is to hold: `NeuronConfig`, in the place of torch.profiler's own configuration."""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable

from torch._C._profiler import _ExperimentalConfig

from torch_neuronx import _C


class ProfileMode(enum.Enum):
    """What is observed; each has files of its own in the output directory."""

    DEVICE = "device"  # profile_nc_<core>_session_0.ntff: what the cores did
    RUNTIME = "runtime"  # ntrace.pb, trace_info.pb: what the host did
    CPU_UTIL = "cpu_util"  # cpu_util.pb: the host's processors, sampled
    HOST_MEMORY = "host_memory"  # host_mem.pb: the host's memory, sampled


class NeuronConfig(_ExperimentalConfig):
    """Configures `torch.profiler.profile(experimental_config=...)` for this device.

    Args:
        modes: What is observed; by default the device and the runtime.
        max_events_per_nc: Of each core the latest so many activities are kept; None: all. The trace
            says how many were dropped (`neuron_dropped_events`).
        capture_enabled_for_nc: The cores that are observed, "0,2-3"; "": all.
        profile_output_dir: Where `NeuronProfiler.export_trace` writes.
        neff_cache_dir: Must be None: programs stay in the compile cache, and no NEFF is written.
        precache_node_info: Has no effect: nothing is known of nodes that could be fetched before.

    Raises:
        ValueError: An argument has a value that is not possible.
    """

    def __init__(
        self,
        modes: Iterable[ProfileMode] = (ProfileMode.DEVICE, ProfileMode.RUNTIME),
        max_events_per_nc: int | None = None,
        capture_enabled_for_nc: str = "",
        profile_output_dir: str | os.PathLike[str] = "./output",
        neff_cache_dir: str | os.PathLike[str] | None = None,
        precache_node_info: bool = True,
    ) -> None:
        if neff_cache_dir is not None:
            raise ValueError(
                f"neff_cache_dir is {str(neff_cache_dir)!r}, but no NEFF is written beside a "
                "profile; TORCH_NEURONX_NEFF_CACHE_DIR says where compiled programs are kept"
            )
        if max_events_per_nc is not None and max_events_per_nc <= 0:
            raise ValueError(f"max_events_per_nc is {max_events_per_nc}; it must be positive")
        self.modes = frozenset(modes)
        self.max_events_per_nc = max_events_per_nc
        self.cores = parse_cores(capture_enabled_for_nc)
        self.profile_output_dir = profile_output_dir
        self.precache_node_info = precache_node_info
        words = ["neuron"]  # read in csrc/device/profiler.cpp
        if max_events_per_nc is not None:
            words += ["max_events", str(max_events_per_nc)]
        if self.cores:
            words += ["cores", ",".join(map(str, self.cores))]
        super().__init__(
            custom_profiler_config=" ".join(words),
            expose_kineto_event_metadata=True,  # bytes, programs, lines: for export_trace
        )


def parse_cores(text: str) -> tuple[int, ...]:
    """Read "0,2-3": numbers of devices of this process.

    Raises:
        ValueError: It is no such list, or there is no such device.
    """
    count = _C.device_count()
    found: set[int] = set()
    for item in filter(None, map(str.strip, text.split(","))):
        first, dash, last = item.partition("-")
        ends = (first.strip(), last.strip() if dash else first.strip())
        if not all(end.isascii() and end.isdigit() for end in ends):
            raise ValueError(f"{item!r} in {text!r} is no core and no range of cores, such as 2-3")
        low, high = map(int, ends)
        if not low <= high < count:
            raise ValueError(f"{item!r} in {text!r}: this process has the cores 0 to {count - 1}")
        found.update(range(low, high + 1))
    return tuple(sorted(found))
