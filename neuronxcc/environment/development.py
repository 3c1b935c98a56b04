"""Variables for those who develop TorchNeuron itself."""

from __future__ import annotations

from pathlib import Path

from neuronxcc.environment.variable import FLAG, PATH, TEXT, Reader, Section, choice

_OURS = "TorchNeuron"

DEVELOPMENT = Section("For development")

JOBS = DEVELOPMENT.variable(
    "JOBS", TEXT, "Compiler processes at once",
    default="", source=_OURS, readers={Reader.MAKE}, said="2",
)  # fmt: skip
TEST_JOBS = DEVELOPMENT.variable(
    "TEST_JOBS", TEXT, "Test processes at once",
    default="", source=_OURS, readers={Reader.MAKE}, said="`auto`",
)  # fmt: skip
TORCH_NEURONX_GUARD_PAGES = DEVELOPMENT.variable(
    "TORCH_NEURONX_GUARD_PAGES", choice("after", "before", exact=True),
    "`after` or `before`: every block of device memory ends right before a page that can't be "
    "touched, or begins right behind one, and freed blocks can't be touched either. Code that "
    "leaves its tensors ends the process (SIGSEGV; `python -X faulthandler` says where), and what "
    "was written to the up to 63 bytes behind a block is found when it is freed. Slow, for tests; "
    "process groups are refused",
    default=None, source=_OURS, readers={Reader.CORE},
)  # fmt: skip
TORCH_NEURONX_CGROUP_ROOT = DEVELOPMENT.variable(
    "TORCH_NEURONX_CGROUP_ROOT", PATH,
    "Where the limits of containers are read from, for tests of machines that have others",
    default=Path("/sys/fs/cgroup"), source=_OURS, readers={Reader.COMPILER},
)  # fmt: skip
TORCH_NEURONX_VERIFY_PASSES = DEVELOPMENT.variable(
    "TORCH_NEURONX_VERIFY_PASSES", FLAG,
    "1: a graph is verified before the first pass of the compiler and after every one",
    default=False, source=_OURS, readers={Reader.COMPILER},
)  # fmt: skip
TORCH_NEURONX_GEMM_TEST_MODULE = DEVELOPMENT.variable(
    "TORCH_NEURONX_GEMM_TEST_MODULE", TEXT,
    "Module that the tests and benchmarks of matrix products and convolutions take for the native "
    "core, to compare two builds",
    default="", source=_OURS, readers={Reader.TESTS}, said="`torch_neuronx._C`",
)  # fmt: skip
TORCH_NEURONX_KERNELS_TEST_MODULE = DEVELOPMENT.variable(
    "TORCH_NEURONX_KERNELS_TEST_MODULE", TEXT,
    "The same for tests and benchmarks of other kernels",
    default="", source=_OURS, readers={Reader.TESTS}, said="`torch_neuronx._C`",
)  # fmt: skip
HYPOTHESIS_PROFILE = DEVELOPMENT.variable(
    "HYPOTHESIS_PROFILE", TEXT,
    "`thorough` runs twenty times as many examples of the property tests",
    default="", source="Hypothesis", readers={Reader.TESTS}, said="`default`",
)  # fmt: skip
