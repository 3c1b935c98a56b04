"""What this process may use of its computer: instructions, processors, memory.

Done once, when the device is registered: before PyTorch has computed anything, unless its user
turned the autoload off.
"""

from __future__ import annotations

from types import ModuleType

import torch

from neuronxcc import host_limits
from neuronxcc.environment.arithmetic import (
    ATEN_CPU_CAPABILITY,
    MKL_ENABLE_INSTRUCTIONS,
    MKL_NUM_THREADS,
    OMP_NUM_THREADS,
    ONEDNN_MAX_CPU_ISA,
    TORCH_NEURONX_ISA,
)

# What each library calls the instructions, as its documentation has it. oneDNN has no name for
# less than SSE 4.1, and oneMKL none for less than 4.2.
_NAMES = {
    "avx2": {
        ATEN_CPU_CAPABILITY: "avx2",
        ONEDNN_MAX_CPU_ISA: "AVX2",
        MKL_ENABLE_INSTRUCTIONS: "AVX2",
    },
    "portable": {
        ATEN_CPU_CAPABILITY: "default",
        ONEDNN_MAX_CPU_ISA: "SSE41",
        MKL_ENABLE_INSTRUCTIONS: "SSE4_2",
    },
}


class InstructionSetError(RuntimeError):
    """`TORCH_NEURONX_ISA` cannot be followed in this process."""


def hold_instructions(core: ModuleType) -> None:
    """Hold PyTorch and the libraries below it to what `TORCH_NEURONX_ISA` allows.

    The native core and generated code hold themselves to it.

    Raises:
        VariableError: The variable has a value that it cannot have.
        InstructionSetError: Another variable contradicts it, the processor has no such
            instructions, or PyTorch has computed already, with others.
    """
    allowed = TORCH_NEURONX_ISA.get()
    if allowed == "auto":
        return
    said = f"{TORCH_NEURONX_ISA.name}={allowed}"
    if core.kernel_isas()[-1] != allowed:
        raise InstructionSetError(
            f"{said}: this processor has no such instructions, its best are "
            f"{core.kernel_isas()[-1]!r}. Unset the variable."
        )
    for variable, name in _NAMES[allowed].items():
        given = variable.text()
        if given and given.lower() != name.lower():
            raise InstructionSetError(
                f"{said} and {variable.name}={given} contradict each other. Unset one of them."
            )
        variable.set(name)
    # ATen looks once, when it computes first.
    used = torch.backends.cpu.get_cpu_capability().lower()
    if used != _NAMES[allowed][ATEN_CPU_CAPABILITY]:
        raise InstructionSetError(
            f"{said} came too late: PyTorch has computed in this process before the device was "
            f"registered, with {used}. Let `import torch` register the device, or set "
            + ", ".join(f"{each.name}={name}" for each, name in _NAMES[allowed].items())
            + " before Python starts."
        )


def start_vector_math() -> None:
    """Compute one exponential, so that oneMKL's vector functions are set up by one thread.

    The first call that threads make together sets them up in each, without a lock: one of them may
    compute its part with oneMKL's fast functions, whose results have 14 right bits. Of 1,000
    processes whose first such call was `exp` with 64 threads on two busy cores 8 had such results,
    none of 2,400 after a first call in one thread (PyTorch 2.13.0).
    """
    torch.ones(1, device="cpu").exp()


def heed_limits(core: ModuleType) -> None:
    """Use no more processors than a container may keep busy, and no more memory than it may take.

    PyTorch's pool has a thread for every core of the computer. Where a container's share is less,
    the pool gets as many threads as that, unless the user has said how many in the environment.
    """
    processors = host_limits.processors()
    core.set_host_limits(host_limits.memory_files(), processors)
    if OMP_NUM_THREADS.text() or MKL_NUM_THREADS.text():
        return
    if processors < torch.get_num_threads():
        torch.set_num_threads(processors)
