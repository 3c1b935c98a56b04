"""Communication between ranks: collectives as instructions of kernels, and how to run ranks here.

Ranks are logical cores, of one or two physical ones. `spmd` runs a kernel on several in this
process. A collective happens when all ranks of its group have come to it; sums are taken in the
order of the group's list, in float32, those of integers exactly and saturated at the end.
"""

from nki.collectives.functions import (
    COLLECTIVES as _COLLECTIVES,
)
from nki.collectives.functions import (
    collective_permute_implicit_current_processing_rank_id,
    rank_id,
)
from nki.collectives.replica import ReplicaGroup
from nki.collectives.spmd import spmd

all_reduce = _COLLECTIVES["all_reduce"]
all_gather = _COLLECTIVES["all_gather"]
all_gather_v = _COLLECTIVES["all_gather_v"]
reduce_scatter = _COLLECTIVES["reduce_scatter"]
all_to_all = _COLLECTIVES["all_to_all"]
all_to_all_v = _COLLECTIVES["all_to_all_v"]
collective_permute = _COLLECTIVES["collective_permute"]
collective_permute_implicit = _COLLECTIVES["collective_permute_implicit"]
collective_permute_implicit_reduce = _COLLECTIVES["collective_permute_implicit_reduce"]

__all__ = [
    "ReplicaGroup",
    "all_gather",
    "all_gather_v",
    "all_reduce",
    "all_to_all",
    "all_to_all_v",
    "collective_permute",
    "collective_permute_implicit",
    "collective_permute_implicit_current_processing_rank_id",
    "collective_permute_implicit_reduce",
    "rank_id",
    "reduce_scatter",
    "spmd",
]
