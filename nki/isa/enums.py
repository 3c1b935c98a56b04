"""The enumerations of `nki.isa`, with the documented members and values."""

import enum

__all__ = [
    "dge_mode",
    "dma_engine",
    "engine",
    "matmul_perf_mode",
    "nc_version",
    "oob_mode",
    "reduce_cmd",
]


class engine(enum.Enum):  # noqa: N801 (the documented name, as are the others)
    """An engine of a NeuronCore; ``unknown`` leaves the choice to the instruction."""

    unknown = 0
    tensor = 1
    scalar = 2
    gpsimd = 3
    dma = 4
    vector = 5
    sync = 6


class reduce_cmd(enum.Enum):  # noqa: N801
    """The use that an instruction makes of the accumulator registers of its engine."""

    idle = 0
    reset = 1
    reduce = 2
    reset_reduce = 3
    load_reduce = 4


class dge_mode(enum.Enum):  # noqa: N801
    """Who writes the descriptors of a DMA: nobody at run time, GpSimd, or the hardware block."""

    unknown = 0
    swdge = 1
    hwdge = 2
    none = 3


class oob_mode(enum.Enum):  # noqa: N801
    """The effect of a dynamic access out of bounds."""

    error = 0
    skip = 1


class matmul_perf_mode(enum.Enum):  # noqa: N801
    """``double_row`` contracts two 8-bit rows per partition."""

    none = "none"
    double_row = "double_row"


class nc_version(enum.IntEnum):  # noqa: N801 (kernels compare versions by <)
    """A generation of NeuronCores: Trn1 and Inf2, Trn2, Trn3."""

    gen2 = 2
    gen3 = 3
    gen4 = 4


class dma_engine(enum.Enum):  # noqa: N801
    """Who carries a `sendrecv`: the shared DMA engines, or those inside GpSimd."""

    dma = 1
    gpsimd_dma = 2
