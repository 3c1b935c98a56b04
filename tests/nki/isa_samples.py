"""One legal call of each instruction of `nki.isa`, on trn3."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nki.isa.spec import Tile
from tests.nki.isa_tools import T, out

Sample = tuple[dict[str, Any], dict[str, Any]]


def _x(*shape: int, dtype: str = "float32", region: str = "sbuf") -> T:
    count = int(np.prod(shape))
    return T((np.arange(count) % 7 + 1).reshape(shape), dtype, region)


def _register(value: int) -> T:
    made = T([[value]], "int32")
    made.tile = Tile((1, 1), "int32", "register")
    return made


def _mx(*shape: int) -> T:
    made = out(*shape, dtype="float8_e5m2_x4")
    made.data[:] = 0x3C383C38
    return made


def _psum(*shape: int) -> T:
    return _x(*shape, region="psum")


# Written operands, then the rest.
SAMPLES: dict[str, Callable[[], Sample]] = {
    "dma_copy": lambda: ({"dst": _x(4, 8)}, {"src": _x(4, 8, region="hbm")}),
    "tensor_copy": lambda: ({"dst": _x(4, 8)}, {"src": _x(4, 8)}),
    "memset": lambda: ({"dst": _x(4, 8)}, {"value": 2}),
    "tensor_copy_predicated": lambda: (
        {"dst": _x(4, 8)},
        {"src": _x(4, 8), "predicate": _x(4, 8, dtype="uint8")},
    ),
    "nc_matmul": lambda: (
        {"dst": _psum(3, 5)},
        {"stationary": _x(4, 3), "moving": _x(4, 5), "accumulate": False},
    ),
    "nc_matmul_mx": lambda: (
        {"dst": _psum(2, 3)},
        {
            "stationary": _mx(32, 2), "moving": _mx(32, 3), "accumulate": False,
            "stationary_scale": _x(4, 2, dtype="uint8"), "moving_scale": _x(4, 3, dtype="uint8"),
        },
    ),
    "nc_transpose": lambda: ({"dst": _x(8, 4)}, {"data": _x(4, 8)}),
    "dma_transpose": lambda: ({"dst": _x(8, 4)}, {"src": _x(4, 8)}),
    "tensor_tensor": lambda: (
        {"dst": _x(4, 8)},
        {"data1": _x(4, 8), "data2": _x(4, 8), "op": "add"},
    ),
    "tensor_scalar": lambda: ({"dst": _x(4, 8)}, {"data": _x(4, 8), "op0": "add", "operand0": 1.0}),
    "tensor_reduce": lambda: ({"dst": _x(4, 1)}, {"op": "add", "data": _x(4, 8), "axis": 1}),
    "tensor_partition_reduce": lambda: ({"dst": _x(1, 8)}, {"op": "add", "data": _x(4, 8)}),
    "tensor_scalar_cumulative": lambda: (
        {"dst": _x(4, 8)},
        {"src": _x(4, 8), "op0": "add", "op1": "add", "imm0": 1.0},
    ),
    "activation": lambda: ({"dst": _x(4, 8)}, {"op": "exp", "data": _x(4, 8)}),
    "activation_reduce": lambda: (
        {"dst": _x(4, 8), "reduce_res": _x(4, 1)},
        {"op": "exp", "data": _x(4, 8), "reduce_op": "add"},
    ),
    "activate2": lambda: (
        {"dst": _x(4, 8)},
        {"op": "exp", "data": _x(4, 8), "imm0": 1.0, "imm1": 2.0, "op0": "add", "op1": "bypass"},
    ),
    "iota": lambda: ({"dst": _x(4, 8)}, {"pattern": [[1, 8]]}),
    "affine_select": lambda: (
        {"dst": _x(4, 8)},
        {
            "pattern": [[1, 8]], "channel_multiplier": -1, "on_true_tile": _x(4, 8),
            "on_false_value": 0.0,
        },
    ),
    "local_gather": lambda: (
        {"dst": _x(16, 16)},
        {"src_buffer": _x(16, 8), "index": _x(16, 1, dtype="uint16")},
    ),
    "nc_n_gather": lambda: (
        {"dst": _x(4, 8)},
        {"data": _x(4, 8), "indices": _x(4, 8, dtype="uint32")},
    ),
    "bn_stats": lambda: ({"dst": _x(4, 6)}, {"data": _x(4, 8)}),
    "bn_aggr": lambda: ({"dst": _x(4, 2)}, {"data": _x(4, 6)}),
    "tensor_tensor_scan": lambda: (
        {"dst": _x(4, 8)},
        {"data0": _x(4, 8), "data1": _x(4, 8), "initial": 0.0, "op0": "multiply", "op1": "add"},
    ),
    "nc_stream_shuffle": lambda: ({"dst": _x(32, 8)}, {"src": _x(32, 8), "shuffle_mask": [3] * 32}),
    "rng": lambda: ({"dst": _x(4, 8, dtype="uint32")}, {}),
    "dropout": lambda: ({"dst": _x(4, 8)}, {"data": _x(4, 8), "prob": 0.5}),
    "set_rng_seed": lambda: ({}, {"src_seeds": _x(1, 1, dtype="int32")}),
    "rand_set_state": lambda: ({}, {"src_seeds": _x(4, 6, dtype="uint32")}),
    "rand_get_state": lambda: ({"dst": _x(4, 6, dtype="uint32")}, {}),
    "rand2": lambda: ({"dst": _x(4, 8)}, {"min": 0.0, "max": 1.0}),
    "exponential": lambda: ({"dst": _x(4, 8)}, {"src": _x(4, 8)}),
    "reciprocal": lambda: ({"dst": _x(4, 8)}, {"data": _x(4, 8)}),
    "max8": lambda: ({"dst": _x(4, 8)}, {"src": _x(4, 9)}),
    "sequence_bounds": lambda: ({"dst": _x(1, 2, 8)}, {"segment_ids": _x(1, 8)}),
    "scalar_tensor_tensor": lambda: (
        {"dst": _x(4, 8)},
        {"data": _x(4, 8), "op0": "add", "operand0": 1.0, "op1": "add", "operand1": _x(4, 8)},
    ),
    "tensor_scalar_reduce": lambda: (
        {"dst": _x(4, 8), "reduce_res": _x(4, 1)},
        {"data": _x(4, 8), "op0": "add", "operand0": 1.0, "reduce_op": "add"},
    ),
    "core_barrier": lambda: ({}, {"data": _x(4, 8, region="shared_hbm"), "cores": (0, 1)}),
    "dma_compute": lambda: ({"dst": _x(4, 8)}, {"srcs": [_x(4, 8), _x(4, 8)], "reduce_op": "add"}),
    "quantize_mx": lambda: (
        {"dst": _mx(32, 2), "dst_scale": _x(4, 2, dtype="uint8")},
        {"src": _x(32, 8, dtype="bfloat16")},
    ),
    "range_select": lambda: (
        {"dst": _x(4, 8), "reduce_res": _x(4, 1)},
        {
            "on_true_tile": _x(4, 8), "comp_op0": "greater", "comp_op1": "less",
            "bound0": _x(4, 1), "bound1": _x(4, 1),
        },
    ),
    "select_reduce": lambda: (
        {"dst": _x(4, 8)},
        {"predicate": _x(4, 8, dtype="uint8"), "on_true": _x(4, 8), "on_false": 0.0},
    ),
    "sendrecv": lambda: (
        {"dst": _x(4, 8)},
        {"src": _x(4, 8), "send_to_rank": 1, "recv_from_rank": 1, "pipe_id": 0},
    ),
    "register_alloc": lambda: ({}, {"x": 1}),
    "register_move": lambda: ({"dst": _register(1)}, {"src": 2}),
    "register_load": lambda: ({"dst": _register(1)}, {"src": _x(1, 1, dtype="int32")}),
    "register_store": lambda: ({"dst": _x(1, 1, dtype="int32")}, {"src": _register(2)}),
    "nc_find_index8": lambda: (
        {"dst": _x(4, 8, dtype="uint32")},
        {"data": _x(4, 9), "vals": _x(4, 8)},
    ),
    "nc_match_replace8": lambda: (
        {"dst": _x(4, 9), "dst_idx": _x(4, 8, dtype="uint16")},
        {"data": _x(4, 9), "vals": _x(4, 8), "imm": 0.0},
    ),
    "nonzero_with_count": lambda: ({"dst": _x(16, 9, dtype="int32")}, {"src": _x(16, 8)}),
    "topk": lambda: (
        {"val_dst": _x(16, 8, dtype="bfloat16"), "idx_dst": _x(16, 8, dtype="uint32")},
        {"src": _x(16, 2, dtype="bfloat16"), "n": 20},
    ),
    "get_nc_version": lambda: ({}, {}),
    "get_nc_sub_version": lambda: ({}, {}),
}  # fmt: skip
