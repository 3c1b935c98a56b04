"""Variables of NKI: who runs kernels, what is checked, what kernels mean."""

from __future__ import annotations

from neuronxcc.environment.variable import FLAG, PATH, TEXT, Reader, Section, choice

_OURS = "TorchNeuron"
_SIMULATOR = "NKI CPU simulator guide"

NKI = Section("NKI", "[nki.md](nki.md) and [nki_pytorch.md](nki_pytorch.md) explain kernels.")

TORCH_NEURONX_NKI_EXECUTOR = NKI.variable(
    "TORCH_NEURONX_NKI_EXECUTOR", choice("native", "reference"),
    "What runs kernels: `native`, or `reference`, the NumPy reference, which is slow and for "
    "finding defects",
    default="native", source=_OURS, readers={Reader.NKI, Reader.DEVICE},
)  # fmt: skip
TORCH_NEURONX_NKI_CHECKS = NKI.variable(
    "TORCH_NEURONX_NKI_CHECKS", choice("off", "warn", "strict"),
    "What works here and is undefined on hardware (memory that nothing has written, races between "
    "cores): `off`, `warn`, or `strict`, which refuses it",
    default="warn", source=_OURS, readers={Reader.NKI},
)  # fmt: skip
TORCH_NEURONX_NKI_LINT = NKI.variable(
    "TORCH_NEURONX_NKI_LINT", choice("off", "warn", "strict"),
    "Python that the vendor's compiler refuses: `off`, `warn` or `strict`; `nki.check(kernel)` "
    "lists it",
    default="off", source=_OURS, readers={Reader.NKI},
)  # fmt: skip
# `nki.versions` knows which there are.
TORCH_NEURONX_NKI_VERSION = NKI.variable(
    "TORCH_NEURONX_NKI_VERSION", TEXT,
    "Kernels mean what they meant in this version of NKI, from 0.2 on",
    default="", source=_OURS, readers={Reader.NKI}, said="0.6",
)  # fmt: skip
NKI_ARTIFACTS_DIR = NKI.variable(
    "NKI_ARTIFACTS_DIR", PATH,
    "Directory where a kernel that is called is also left as `kernel.neff`, for "
    "[nrtpy](neff.md#kernels-without-a-framework)",
    default=None, source="nrtpy tutorials", readers={Reader.NKI},
)  # fmt: skip
# The default of kernels for older versions is another one.
NKI_PRECISE_FP = NKI.variable(
    "NKI_PRECISE_FP", FLAG,
    "0 stores 16- and 8-bit floating point as float32, to tell errors of rounding from others",
    default=None, source=_SIMULATOR, readers={Reader.NKI}, said="1",
)  # fmt: skip
NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE = NKI.variable(
    "NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE", FLAG,
    "1 or true reserves a PSUM bank from trn2 on: `nl.tile_size.psum_num_banks` is 7",
    default=False, source="NKI API reference", readers={Reader.NKI},
)  # fmt: skip
NKI_SIMULATOR = NKI.variable(
    "NKI_SIMULATOR", TEXT,
    "Accepted: here every kernel runs on this computer",
    default="", source=_SIMULATOR,
)  # fmt: skip
TORCH_NEURONX_ENABLE_NKI_SDPA = NKI.variable(
    "TORCH_NEURONX_ENABLE_NKI_SDPA", FLAG,
    "1, before PyTorch is imported: `scaled_dot_product_attention` of neuron tensors runs by "
    "kernels of NKI",
    default=False, source=_OURS, readers={Reader.DEVICE},
)  # fmt: skip
