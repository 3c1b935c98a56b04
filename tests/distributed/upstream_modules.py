"""Every module of torch.testing._internal.distributed, and what our tests do with it."""

from typing import Final

_RPC = "nothing: tests of RPC, whose only agent, TensorPipe, knows the CPU and CUDA"
_FAULTY = "nothing: RPC by an agent that drops messages; test_faults.py kills ranks instead"
_PACKAGE = "nothing: has no code"
_SHARDED = "nothing: ShardedTensor, before DTensor; its groups go by the names nccl, gloo, mpi ..."

#: Module -> what is done with it, or why nothing is.
MODULES: Final[dict[str, str]] = {
    "_shard": _PACKAGE,
    "_shard.sharded_tensor": _SHARDED,
    "_shard.sharded_tensor._test_ops_common": "nothing: placements of ShardedTensor on cuda:0 to 3",
    "_shard.sharded_tensor._test_st_common": "nothing: placements of ShardedTensor on cuda:0 to 3",
    "_shard.test_common": "nothing: a model for ShardedTensor that calls .cuda()",
    "_tensor": _PACKAGE,
    "_tensor.common_dtensor": "bases_dtensor.py: the three bases, converter, models, shard orders;"
    " bases_ops.py: the converter over op_db; its LocalTensor bases have no groups but PyTorch's"
    " fake one",
    "checkpoint_utils": "bases_checkpoint.py: with_temp_dir; the rest is no matter of devices",
    "common_state_dict": "bases_checkpoint.py: VerifyStateDictMixin, FusionEmbedding",
    "ddp_under_dist_autograd_test": _RPC,
    "distributed_test": "upstream_run.py runs its tests; upstream_exclusions.py lists exceptions",
    "distributed_utils": "nothing: a mock group without collectives, for tests of Python alone",
    "fake_pg": "nothing: it registers the fake group for cpu, cuda, hpu and xpu; plans take the group"
    " itself (test_planning.py)",
    "multi_threaded_pg": "TestThreads of bases_fsdp2.py and bases_dtensor.py: groups of threads,"
    " without our backend, on our device",
    "nn": _PACKAGE,
    "nn.api": _PACKAGE,
    "nn.api.remote_module_test": _RPC,
    "rpc": _PACKAGE,
    "rpc.dist_autograd_test": _RPC,
    "rpc.dist_optimizer_test": _RPC,
    "rpc.examples": _PACKAGE,
    "rpc.examples.parameter_server_test": _RPC,
    "rpc.examples.reinforcement_learning_rpc_test": _RPC,
    "rpc.faulty_agent_rpc_test": _FAULTY,
    "rpc.faulty_rpc_agent_test_fixture": _FAULTY,
    "rpc.jit": _PACKAGE,
    "rpc.jit.dist_autograd_test": _RPC,
    "rpc.jit.rpc_test": _RPC,
    "rpc.jit.rpc_test_faulty": _FAULTY,
    "rpc.rpc_agent_test_fixture": _RPC,
    "rpc.rpc_test": _RPC,
    "rpc.tensorpipe_rpc_agent_test_fixture": _RPC,
    "rpc_utils": _RPC,
}
