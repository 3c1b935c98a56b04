"""The memory of processes by category, as the tools name them.

Device memory is what a process' allocator holds of a core. Tensors, constants of loaded programs
and the scratchpad (what programs and operators work in) are in use; the rest, which the allocator
keeps for the next tensor, is runtime memory. Machine code of programs lies on the host, beside the
process' own, so model code is 0.
"""

from __future__ import annotations

from typing import Final

from neuron_tools.registry.reader import Snapshot, Values

HOST: Final = ("application_memory", "constants", "dma_buffers", "tensors")
DEVICE: Final = (
    "constants", "model_code", "model_shared_scratchpad", "runtime_memory", "tensors",
)  # fmt: skip


def on_core(core: Values) -> dict[str, int]:
    """Bytes of a core that a process holds, by category."""
    used, scratch = core["allocated_bytes"], core["scratchpad_bytes"]
    constants = min(core["constant_bytes"], max(0, used - scratch))
    return {
        "constants": constants,
        "model_code": 0,
        "model_shared_scratchpad": min(scratch, used),
        "runtime_memory": max(0, core["reserved_bytes"] - used),
        "tensors": max(0, used - scratch - constants),
    }


def on_host(process: Snapshot) -> dict[str, int]:
    """Bytes of the host that a process holds for the device, by category: pinned memory."""
    return dict.fromkeys(HOST, 0) | {"tensors": process.header["pinned_bytes"]}


def of_program(program: Values) -> dict[str, object]:
    """Return `memory_used_bytes` of a loaded program.

    Its scratchpad is not its own: programs of a core share it.
    """
    device = {name: 0 for name in DEVICE if name != "model_shared_scratchpad"}
    device["constants"] = program["constant_bytes"]
    return {
        "host": 0,
        "neuron_device": sum(device.values()),
        "usage_breakdown": {"host": dict.fromkeys(HOST, 0), "neuron_device": device},
    }
