"""``nl.tile_size``: how large tiles may be, on the core that the kernel runs on."""

from neuronxcc.environment.kernels import NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE
from nki.context import current_core
from nki.objects import NKIObject

__all__ = ["TileSize", "tile_size"]


class TileSize(NKIObject):
    """Sizes that tiles must keep to; the documentation counts free dimensions in float32 elements.

    What depends on the target is that of the current core.

    Attributes:
        pmax: partitions of a tile.
        psum_fmax: elements of a PSUM bank per partition (its old name).
        psum_bank_fmax: elements of a PSUM bank per partition.
        psum_bank_fmax_bytes: bytes of a PSUM bank per partition.
        gemm_stationary_fmax: free elements of a matrix product's stationary operand.
        gemm_moving_fmax: free elements of its moving operand.
        bn_stats_fmax: free elements of ``nisa.bn_stats``.
        psum_min_align: bytes that an offset within a PSUM partition is a multiple of.
        sbuf_min_align: bytes that an offset within an SBUF partition is a multiple of.
    """

    __slots__ = ()

    # Of every NeuronCore so far; the limits of the instructions are in their table.
    pmax = 128
    psum_fmax = 512
    psum_bank_fmax = 512
    psum_bank_fmax_bytes = 2048
    gemm_stationary_fmax = 128
    gemm_moving_fmax = 512
    bn_stats_fmax = 512
    # The names are public and their values are not: these are what any layout here satisfies.
    psum_min_align = 4
    sbuf_min_align = 1

    def __init__(self) -> None:
        """There is nothing to choose."""

    @property
    def psum_num_banks(self) -> int:
        """Usable PSUM banks per partition.

        One less where ``NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE`` reserves it, from trn2 on.
        """
        core = current_core()
        reserved = NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE.get()
        return core.psum.banks - (reserved and core.target.core.isa > 2)

    @property
    def sbuf_size_bytes(self) -> int:
        """Bytes of SBUF, all partitions together."""
        return current_core().target.core.sbuf.total_bytes

    @property
    def sbuf_fmax_bytes(self) -> int:
        """Bytes of an SBUF partition. Nothing of it is reserved here."""
        return current_core().sbuf.pitch

    @property
    def sbuf_fmax(self) -> int:
        """Float32 elements of an SBUF partition."""
        return self.sbuf_fmax_bytes // 4

    @property
    def total_available_sbuf_size(self) -> int:
        """Bytes of an SBUF partition, in spite of the name, which is deprecated."""
        return self.sbuf_fmax_bytes

    def __repr__(self) -> str:
        return f"nl.tile_size of {current_core().target.name}"


tile_size = TileSize()
