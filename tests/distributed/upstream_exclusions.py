"""Tests of PyTorch's DistributedTest that need something of their own, or don't pass, and why.

Tests that ask for CUDA by name need no entry: they are found out by their error.
"""

from typing import Final

#: Tests that compare tensors within objects that were sent (each rank's core is another device), or
#: use PyTorch's samplers, which draw with a generator of the CPU: their tensors are the host's.
HOST_TENSORS: Final = frozenset(
    {
        "test_DistributedSampler_padding",
        "test_all_gather_object_default_pg",
        "test_all_gather_object_subgroup",
        "test_gather_object",
        "test_gather_object_subgroup",
        "test_scatter_object_list",
    }
)

#: Tests that set up their model for the names mpi, gloo and nccl only: they are told gloo's.
AS_GLOO: Final = frozenset(
    {
        "test_accumulate_gradients_no_sync",
        "test_accumulate_gradients_no_sync_allreduce_hook",
        "test_accumulate_gradients_no_sync_allreduce_with_then_hook",
        "test_accumulate_gradients_no_sync_grad_is_view",
    }
)

_HOST = "makes a tensor of the CPU by a legacy constructor and sends it through the group"
_GLOO_WORDS = "expects the words of gloo's error"
_GLOO_ONLY = "torch.distributed refuses monitored_barrier for all backends but the one called gloo"

#: Test -> why it can't pass.
EXCLUDED: Final[dict[str, str]] = {
    "test_barrier": _HOST,
    "test_barrier_full_group": _HOST,
    "test_barrier_group": _HOST,
    "test_barrier_timeout_full_group": _GLOO_WORDS,
    "test_barrier_timeout_global": "starts a group by INIT_METHOD, read before",
    "test_barrier_timeout_group": _GLOO_WORDS,
    "test_batch_isend_irecv_mixed_backend_err": "makes a group of NCCL",
    "test_ddp_device": "compares devices with cuda's",
    "test_ddp_hook_pickling_powerSGD": "torch.load refuses its hook (weights_only is the default)",
    "test_ddp_logging_data_cpu": "PyTorch calls every backend from outside 'custom' there",
    "test_monitored_barrier_failure_order": _GLOO_ONLY,
    "test_monitored_barrier_gloo": _GLOO_ONLY,
    "test_monitored_barrier_gloo_rank_0_timeout": _GLOO_WORDS,
    "test_monitored_barrier_gloo_subgroup": _GLOO_ONLY,
    "test_monitored_barrier_wait_all_ranks": _GLOO_ONLY,
    "test_sparse_all_reduce_sum": "sends sparse tensors of the CPU",
}
