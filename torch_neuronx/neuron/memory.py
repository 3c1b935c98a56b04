"""Device memory: how much is used and for what, and giving it back."""

from typing import Any

import torch

from torch_neuronx import _C
from torch_neuronx.neuron._utils import DeviceLike, _get_device_index
from torch_neuronx.neuron.history import _dump_snapshot, _record_memory_history, _snapshot
from torch_neuronx.neuron.usage import list_gpu_processes

__all__ = [
    "_dump_snapshot",
    "_record_memory_history",
    "_snapshot",
    "device_memory_used",
    "empty_cache",
    "empty_host_cache",
    "get_per_process_memory_fraction",
    "list_gpu_processes",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_cached",
    "memory_categories",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
]

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def memory_stats(device: DeviceLike = None) -> dict[str, Any]:
    """Return the statistics of a device's allocator, empty before its first use.

    The keys are PyTorch's: ``"<what>.<pool>.<when>"`` with what in ``allocated_bytes``,
    ``reserved_bytes``, ``active_bytes``, ``requested_bytes``, ``inactive_split_bytes`` (bytes),
    ``allocation``, ``active``, ``segment``, ``inactive_split`` (counts); pool in ``all``,
    ``large_pool``, ``small_pool``; when in ``current``, ``peak``, ``allocated``, ``freed``; and the
    counters ``num_alloc_retries``, ``num_ooms``, ``num_device_alloc`` and ``num_device_free``. What
    is ``inactive_split`` (free, but beside memory in use in its unit of 2 MiB, so that
    :func:`empty_cache` can't give it back) is found at the call and not by pool; its peak is that
    of the calls. There are no oversize blocks and no waiting for streams, so ``oversize_*`` and
    ``num_sync_all_streams`` stay 0.
    """
    return torch.accelerator.memory_stats(_get_device_index(device, optional=True))


def memory_stats_as_nested_dict(device: DeviceLike = None) -> dict[str, Any]:
    """Return :func:`memory_stats` as dictionaries in dictionaries, one level for each dot."""
    result: dict[str, Any] = {}
    for key, value in memory_stats(device).items():
        *path, last = key.split(".")
        inner = result
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return result


def memory_allocated(device: DeviceLike = None) -> int:
    """Return the bytes that tensors occupy on a device."""
    return torch.accelerator.memory_allocated(_get_device_index(device, optional=True))


def max_memory_allocated(device: DeviceLike = None) -> int:
    """Return the most bytes that tensors have occupied since the peak was last reset."""
    return torch.accelerator.max_memory_allocated(_get_device_index(device, optional=True))


def memory_reserved(device: DeviceLike = None) -> int:
    """Return the bytes of HBM held for a device, in use or cached."""
    return torch.accelerator.memory_reserved(_get_device_index(device, optional=True))


def max_memory_reserved(device: DeviceLike = None) -> int:
    """Return the most bytes of HBM held since the peak was last reset."""
    return torch.accelerator.max_memory_reserved(_get_device_index(device, optional=True))


def memory_cached(device: DeviceLike = None) -> int:
    """Do :func:`memory_reserved`, under the older name."""
    return memory_reserved(device)


def max_memory_cached(device: DeviceLike = None) -> int:
    """Do :func:`max_memory_reserved`, under the older name."""
    return max_memory_reserved(device)


def device_memory_used(device: DeviceLike = None) -> int:
    """Return the bytes of a device's HBM that are not free."""
    free, total = mem_get_info(device)
    return total - free


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Set all peaks to the current values."""
    torch.accelerator.reset_peak_memory_stats(_get_device_index(device, optional=True))


def reset_accumulated_memory_stats(device: DeviceLike = None) -> None:
    """Set the counts of what was allocated and freed to zero."""
    torch.accelerator.reset_accumulated_memory_stats(_get_device_index(device, optional=True))


def reset_max_memory_allocated(device: DeviceLike = None) -> None:
    """Do :func:`reset_peak_memory_stats`, under the older name."""
    reset_peak_memory_stats(device)


def reset_max_memory_cached(device: DeviceLike = None) -> None:
    """Do :func:`reset_peak_memory_stats`, under the older name."""
    reset_peak_memory_stats(device)


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """Return the free and the total bytes of a device's HBM."""
    free, total = torch.accelerator.get_memory_info(_get_device_index(device, optional=True))
    return free, total


def set_per_process_memory_fraction(fraction: float, device: DeviceLike = None) -> None:
    """Limit the HBM that this process may reserve on a device to a part of all of it.

    Beyond it an allocation raises :class:`torch.OutOfMemoryError`. What is already reserved stays.

    Args:
        fraction: 0 to 1.
        device: The device; the current one if ``None``.

    Raises:
        TypeError: The fraction is no float.
        ValueError: It is not between 0 and 1.
    """
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    _C.set_memory_fraction(_get_device_index(device, optional=True), fraction)


def get_per_process_memory_fraction(device: DeviceLike = None) -> float:
    """Return the part of a device's HBM that this process may reserve, 1.0 at first."""
    return _C.memory_fraction(_get_device_index(device, optional=True))


def empty_cache() -> None:
    """Give the cached memory of all devices back to the operating system."""
    torch.accelerator.empty_cache()


def empty_host_cache() -> None:
    """Give the cached pinned host memory back to the operating system."""
    torch.accelerator.empty_host_cache()


def memory_snapshot() -> list[dict[str, Any]]:
    """Return the segments of all devices' memory and the blocks in them, as CUDA lists them.

    A segment has ``device``, ``address``, ``total_size``, ``allocated_size``, ``active_size`` and
    ``blocks``; a block has ``address``, ``size``, ``requested_size``, ``state``, ``category``.
    """
    return _C.memory_snapshot()


def memory_categories(device: DeviceLike = None) -> dict[str, int]:
    """Return the bytes in use on a device by what they hold, e.g. ``{"Tensors": 4096}``."""
    return _C.memory_categories(_get_device_index(device, optional=True))


def memory_summary(device: DeviceLike = None, abbreviated: bool = False) -> str:
    """Return the statistics of a device's memory as a table to print.

    Args:
        device: the device; the current one if ``None``.
        abbreviated: leave out the split by pool and by category.
    """
    index = _get_device_index(device, optional=True)
    stats = memory_stats(index)
    free, total = mem_get_info(index)
    lines = [
        f"neuron:{index} memory, {_size(total - free)} of {_size(total)} HBM reserved",
        (
            f"out of memory errors: {stats.get('num_ooms', 0)}, "
            f"allocations retried: {stats.get('num_alloc_retries', 0)}"
        ),
        _row("", "current", "peak", "allocated", "freed"),
    ]
    pools = ("all",) if abbreviated else ("all", "large_pool", "small_pool")
    for what, title, show in (
        ("allocated_bytes", "Allocated memory", _size),
        ("requested_bytes", "Requested memory", _size),
        ("active_bytes", "Active memory", _size),
        ("reserved_bytes", "Reserved memory", _size),
        ("inactive_split_bytes", "Non-releasable memory", _size),
        ("allocation", "Allocations", str),
        ("active", "Active blocks", str),
        ("segment", "Reserved segments", str),
    ):
        for pool in pools:
            values = [
                stats.get(f"{what}.{pool}.{when}", 0)
                for when in ("current", "peak", "allocated", "freed")
            ]
            if pool != "all" and not any(values):
                continue  # a quantity that is not kept by pool, or a pool never used
            name = title if pool == "all" else f"  {pool.removesuffix('_pool')} blocks"
            lines.append(_row(name, *(show(value) for value in values)))
    if not abbreviated:
        lines.append("in use by category:")
        categories = memory_categories(index)
        lines.extend(f"  {name:<24}{_size(size):>14}" for name, size in categories.items() if size)
    width = max(map(len, lines))
    return "\n".join(["=" * width, *lines, "=" * width, ""])


def _row(name: str, *cells: str) -> str:
    return f"{name:<24}" + "".join(f"{cell:>14}" for cell in cells)


def _size(count: int) -> str:
    """Write a number of bytes with the largest unit that leaves at least one."""
    value = float(count)
    for unit in _UNITS:
        if abs(value) < 1024 or unit == _UNITS[-1]:
            return f"{count} B" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1024
    raise AssertionError
