"""``torch.neuron``: devices, streams, random numbers, memory and mixed precision.

The names and meanings are those of ``torch.cuda``, so that a program changes the device and
nothing else. What is emulated, and where it differs from a NeuronCore, is in docs/device.md.
"""

from typing import TYPE_CHECKING, Any

from torch import AcceleratorError, OutOfMemoryError

from torch_neuronx import _C
from torch_neuronx.neuron import _utils, amp, memory, nvtx, random, streams
from torch_neuronx.neuron.amp import (
    get_amp_supported_dtype,
    get_autocast_dtype,
    is_autocast_enabled,
    set_autocast_dtype,
    set_autocast_enabled,
)
from torch_neuronx.neuron.devices import (
    NeuronDeviceProperties,
    _exchange_device,
    _is_in_bad_fork,
    _lazy_call,
    _lazy_init,
    _maybe_exchange_device,
    can_device_access_peer,
    current_device,
    device,
    device_count,
    device_of,
    get_device_capability,
    get_device_name,
    get_device_properties,
    init,
    is_available,
    is_bf16_supported,
    is_initialized,
    set_device,
    synchronize,
)
from torch_neuronx.neuron.eager import (
    eager_mode,
    eager_stats,
    get_eager_mode,
    get_sync_debug_mode,
    reset_eager_stats,
    set_eager_mode,
    set_sync_debug_mode,
)
from torch_neuronx.neuron.memory import (
    device_memory_used,
    empty_cache,
    empty_host_cache,
    get_per_process_memory_fraction,
    list_gpu_processes,
    max_memory_allocated,
    max_memory_cached,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_cached,
    memory_categories,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_max_memory_cached,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
)
from torch_neuronx.neuron.random import (
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from torch_neuronx.neuron.streams import (
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    is_current_stream_capturing,
    set_stream,
    stream,
)
from torch_neuronx.neuron.tensor_types import DENSE, sparse
from torch_neuronx.neuron.usage import utilization

if TYPE_CHECKING:
    _initialized: bool
    from torch import Generator

    default_generators: tuple[Generator, ...]

__all__ = [
    "AcceleratorError",
    "Event",
    "NeuronDeviceProperties",
    "OutOfMemoryError",
    "Stream",
    "StreamContext",
    "_exchange_device",
    "_is_in_bad_fork",
    "_lazy_call",
    "_lazy_init",
    "_maybe_exchange_device",
    "_utils",
    "amp",
    "can_device_access_peer",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_memory_used",
    "device_of",
    "eager_mode",
    "eager_stats",
    "empty_cache",
    "empty_host_cache",
    "get_amp_supported_dtype",
    "get_autocast_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_eager_mode",
    "get_per_process_memory_fraction",
    "get_rng_state",
    "get_rng_state_all",
    "get_sync_debug_mode",
    "init",
    "initial_seed",
    "is_autocast_enabled",
    "is_available",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "is_initialized",
    "list_gpu_processes",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory",
    "memory_allocated",
    "memory_cached",
    "memory_categories",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "nvtx",
    "random",
    "reset_accumulated_memory_stats",
    "reset_eager_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_autocast_dtype",
    "set_autocast_enabled",
    "set_device",
    "set_eager_mode",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "set_sync_debug_mode",
    "sparse",
    "stream",
    "streams",
    "synchronize",
    "utilization",
]


# What Inductor asks a device for; see _inductor.py, which is imported only then.
_INDUCTOR = frozenset(
    {"Scheduling", "PythonWrapperCodegen", "CppWrapperCodegen", "WrapperFxCodegen"}
)


_ALLOCATOR = (
    "device memory is one range of addresses that ranks share, so there is one allocator and one "
    "pool; torch.neuron.memory._record_memory_history shows what is in it, "
    "set_per_process_memory_fraction limits it"
)
_SENSOR = (
    "an emulated core has no sensors and no clock of its own; torch.neuron.utilization says how "
    "much of the time it is in use"
)
# Names of torch.cuda that programs ask for, and why they are not here.
_ABSENT = {
    **dict.fromkeys(("CUDAPluggableAllocator", "MemPool", "use_mem_pool"), _ALLOCATOR),
    **dict.fromkeys(("clock_rate", "power_draw", "temperature"), _SENSOR),
    "memory_usage": "for how long memory is read or written is not counted; "
    "torch.neuron.utilization counts executions, device_memory_used bytes",
}


def __getattr__(name: str) -> Any:
    """Answer for the attributes that are states, and for what few programs need."""
    if name == "_initialized":
        return _C.is_initialized()
    if name == "default_generators":
        return tuple(_C.default_generator(index) for index in range(_C.device_count()))
    if name in DENSE:
        return DENSE[name]
    if name.endswith("Storage"):
        from torch_neuronx.neuron import storages  # noqa: PLC0415

        if (found := storages.storage_class(name)) is not None:
            return found
    if name in _INDUCTOR:
        from torch_neuronx.neuron._inductor import NoInductor  # noqa: PLC0415

        return NoInductor
    why = f": {_ABSENT[name]}" if name in _ABSENT else ""
    raise AttributeError(f"module 'torch.neuron' has no attribute {name!r}{why}")
