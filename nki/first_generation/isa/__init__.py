"""The instructions of the first generation: those of `nki.isa`, with tiles as results."""

from typing import Any, Final

from nki.first_generation.constants import bfp16, fp32
from nki.first_generation.isa.common import unsigned
from nki.first_generation.isa.constants import dge_mode, engine, nc_version, oob_mode, reduce_cmd
from nki.first_generation.isa.engines import (
    activation,
    activation_reduce,
    bn_aggr,
    bn_stats,
    dropout,
    max8,
    nc_find_index8,
    nc_match_replace8,
    range_select,
    reciprocal,
    scalar_tensor_tensor,
    select_reduce,
    tensor_copy,
    tensor_copy_dynamic_dst,
    tensor_copy_dynamic_src,
    tensor_copy_predicated,
    tensor_scalar,
    tensor_scalar_cumulative,
    tensor_scalar_reduce,
    tensor_tensor,
    tensor_tensor_scan,
)
from nki.first_generation.isa.movement import dma_copy, dma_transpose, nc_matmul, nc_transpose
from nki.first_generation.isa.shaped import (
    affine_select,
    iota,
    local_gather,
    memset,
    nc_stream_shuffle,
    sequence_bounds,
    tensor_partition_reduce,
    tensor_reduce,
)
from nki.isa.functions import FUNCTIONS

__all__ = [
    "activation",
    "activation_reduce",
    "affine_select",
    "bfp16",
    "bn_aggr",
    "bn_stats",
    "dge_mode",
    "dma_copy",
    "dma_engine",
    "dma_transpose",
    "dropout",
    "engine",
    "fp32",
    "get_nc_version",
    "gpsimd_engine",
    "iota",
    "local_gather",
    "max8",
    "memset",
    "nc_find_index8",
    "nc_match_replace8",
    "nc_matmul",
    "nc_stream_shuffle",
    "nc_transpose",
    "nc_version",
    "oob_mode",
    "range_select",
    "reciprocal",
    "reduce_cmd",
    "scalar_engine",
    "scalar_tensor_tensor",
    "select_reduce",
    "sequence_bounds",
    "tensor_copy",
    "tensor_copy_dynamic_dst",
    "tensor_copy_dynamic_src",
    "tensor_copy_predicated",
    "tensor_engine",
    "tensor_partition_reduce",
    "tensor_reduce",
    "tensor_scalar",
    "tensor_scalar_cumulative",
    "tensor_scalar_reduce",
    "tensor_tensor",
    "tensor_tensor_scan",
    "unknown_engine",
    "unsigned",
    "vector_engine",
]

tensor_engine: Final = engine.tensor
vector_engine: Final = engine.vector
scalar_engine: Final = engine.scalar
gpsimd_engine: Final = engine.gpsimd
dma_engine: Final = engine.dma
unknown_engine: Final = engine.unknown


def get_nc_version() -> nc_version:
    """Return the generation that the kernel is built for."""
    found: Any = FUNCTIONS["get_nc_version"]()
    return nc_version[found.name]
