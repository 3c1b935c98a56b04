"""Variables that choose how the native core computes, and where it keeps what it measured."""

from __future__ import annotations

from neuronxcc.environment.variable import TEXT, Reader, Section, choice, number

_OURS = "TorchNeuron"
_XDG = "XDG base directories"

ARITHMETIC = Section("Matrix products and convolutions")

TORCH_NEURONX_ISA = ARITHMETIC.variable(
    "TORCH_NEURONX_ISA", choice("auto", "avx2", "portable", exact=True),
    "The instructions that may be used at most: `auto` for all that the processor has, `avx2`, or "
    "`portable` for those that every processor of its family has. It holds all that computes here: "
    "our kernels, generated code, ATen, oneDNN and oneMKL, for the last three by the "
    "variables below, whose own values must not contradict it. It counts from the first use of "
    "PyTorch, so it is refused where PyTorch has computed before the device is registered "
    "([compatibility.md](compatibility.md))",
    default="auto", source=_OURS, readers={Reader.CORE, Reader.COMPILER, Reader.DEVICE},
)  # fmt: skip
ATEN_CPU_CAPABILITY = ARITHMETIC.variable(
    "ATEN_CPU_CAPABILITY", TEXT, "The instructions of ATen's kernels: `default`, `avx2`, `avx512`",
    default="", source="PyTorch", readers={Reader.PYTORCH, Reader.DEVICE},
    said="the best that the processor has",
)  # fmt: skip
ONEDNN_MAX_CPU_ISA = ARITHMETIC.variable(
    "ONEDNN_MAX_CPU_ISA", TEXT, "The instructions of oneDNN's kernels: `SSE41`, `AVX2` and so on",
    default="", source="oneDNN", readers={Reader.PYTORCH, Reader.DEVICE},
    said="the best that the processor has",
)  # fmt: skip
MKL_ENABLE_INSTRUCTIONS = ARITHMETIC.variable(
    "MKL_ENABLE_INSTRUCTIONS", TEXT, "The instructions of oneMKL's kernels: `SSE4_2`, `AVX2` and "
    "so on",
    default="", source="oneMKL", readers={Reader.PYTORCH, Reader.DEVICE},
    said="what oneMKL chooses",
)  # fmt: skip
# The native core takes them as they are written here, in lower case.
TORCH_NEURONX_GEMM_KERNELS = ARITHMETIC.variable(
    "TORCH_NEURONX_GEMM_KERNELS", choice("auto", "avx512", "brgemm", "none", exact=True),
    "Which inner kernels are used: `auto`, `avx512` (vectors, where the processor has matrix tiles "
    "too), `brgemm`, or `none` for PyTorch's own products",
    default="auto", source=_OURS, readers={Reader.CORE},
)  # fmt: skip
TORCH_NEURONX_GEMM_CACHE_MB = ARITHMETIC.variable(
    "TORCH_NEURONX_GEMM_CACHE_MB", number(0, (1 << 30) - 1, "MiB"),
    "Most MiB of host memory for packed copies of weights and transformed filters of "
    "convolutions; 0 keeps none",
    default=512, source=_OURS, readers={Reader.CORE},
)  # fmt: skip
TORCH_NEURONX_GEMM_PROBE = ARITHMETIC.variable(
    "TORCH_NEURONX_GEMM_PROBE", choice("0", "1"),
    "Whether the method for a shape is found by a short measurement, once for all processes that "
    "share a cache; 0 uses a fixed rule, so that a run does not depend on timing",
    default="1", source=_OURS, readers={Reader.CORE},
)  # fmt: skip
TORCH_NEURONX_CONV_KERNELS = ARITHMETIC.variable(
    "TORCH_NEURONX_CONV_KERNELS", choice("auto", "none", exact=True),
    "`auto` for our convolutions where they are faster, `none` for PyTorch's own everywhere, for "
    "example where a tile of an image mixes magnitudes so different that Winograd's method is too "
    "coarse ([convolution.md](convolution.md))",
    default="auto", source=_OURS, readers={Reader.CORE},
)  # fmt: skip
XDG_CACHE_HOME = ARITHMETIC.variable(
    "XDG_CACHE_HOME", TEXT,
    "Where the results of those measurements and the machine code of compiled programs are kept: "
    "in its folder `torchneuron`. A relative path is ignored",
    default="", source=_XDG, readers={Reader.CORE, Reader.COMPILER}, said="`$HOME/.cache`",
)  # fmt: skip
HOME = ARITHMETIC.variable(
    "HOME", TEXT,
    "The home directory, for the default above; without either nothing is kept, and matrix "
    "products follow the fixed rule",
    default="", source=_XDG, readers={Reader.CORE, Reader.COMPILER},
)  # fmt: skip

THREADS = Section(
    "Threads",
    "The emulated cores compute with PyTorch's own thread pool; `torch.set_num_threads` means what "
    "it means on `cpu`, too.",
)

OMP_NUM_THREADS = THREADS.variable(
    "OMP_NUM_THREADS", TEXT,
    "How many threads the pool has",
    default="", source="OpenMP", readers={Reader.PYTORCH, Reader.DEVICE},
    said="one a core, but no more than a container may keep busy",
)  # fmt: skip
MKL_NUM_THREADS = THREADS.variable(
    "MKL_NUM_THREADS", TEXT,
    "The same for oneMKL; PyTorch takes it for its own pool where the variable above is unset",
    default="", source="oneMKL", readers={Reader.PYTORCH, Reader.DEVICE},
    said="as above",
)  # fmt: skip
