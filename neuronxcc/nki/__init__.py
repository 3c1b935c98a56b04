"""``import neuronxcc.nki as nki``: kernels of the first generation, on today's instructions.

Tiles are results, indices are expressions of `nl.arange`, instructions take masks. The kernels run
through `nki`, which checks and executes every instruction. All of that is `nki.first_generation`:
here stand the names that kernels import.
"""

from neuronxcc.nki import compiler, isa, language, typing
from nki.first_generation.launch import (
    FirstKernel,
    baremetal,
    benchmark,
    jit,
    profile,
    simulate_kernel,
    trace,
)
from nki.first_generation.tensors import Tensor as tensor  # noqa: N813 (its public name)

__all__ = [
    "FirstKernel",
    "baremetal",
    "benchmark",
    "compiler",
    "isa",
    "jit",
    "language",
    "profile",
    "simulate_kernel",
    "tensor",
    "trace",
    "typing",
]
