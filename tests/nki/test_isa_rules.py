"""Every rule of the table can be broken, and says so in a complete sentence."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from nki.isa.bind import bind, make_call
from nki.isa.rules import COMMON
from nki.isa.spec import Call, Rule, Tile
from nki.isa.table import TABLE
from tests.nki.isa_samples import SAMPLES
from tests.nki.isa_tools import describe

INDEX = Tile((128, 1), "uint32")
F8 = "float8_e4m3"


def t(*shape: int, dtype: str = "float32", region: str = "sbuf", **more: Any) -> Tile:
    return Tile(shape, dtype, region, **more)


# What changing one operand at a time does not reach: other values of operands and attributes.
CASES: dict[str, list[dict[str, Any]]] = {
    "dma_copy": [
        {"src": t(4, 8, dtype="float8_e5m2_x4")},
        {"priority": 1},
        {"dge_mode": "hwdge"},
        {"engine": "sync"},
        {"dge_mode": "hwdge", "src": t(4, 8, dtype="int32")},
        {"dge_mode": "hwdge", "src": t(4, 8, indirect=True)},
        {"dge_mode": "none", "src": t(4, 8, dynamic=True)},
    ],
    "tensor_copy": [{"src": t(4, 8, dtype="float8_e5m2_x4")}],
    "memset": [{"value": 1.5, "dst": t(4, 8, dtype="int32")},
               {"value": 1, "dst": t(4, 8, dtype="float8_e5m2_x4")}],
    "tensor_copy_predicated": [{"src": t(4, 8, region="psum"),
                                "predicate": t(4, 8, dtype="uint8", region="psum")}],
    "nc_matmul": [
        {"perf_mode": "double_row"},
        {"perf_mode": "double_row", "stationary": t(4, 6, dtype=F8)},
        {"perf_mode": "double_row", "is_transpose": True},
        {"stationary": t(4, 3, dtype="float8_e4m3fn"), "moving": t(4, 5, dtype=F8)},
        {"stationary": t(4, 129)},
        {"moving": t(4, 9000)},
        {"tile_size": (64, 128)},
        {"tile_size": (7, 7), "tile_position": (0, 0)},
        {"tile_size": (32, 32), "tile_position": (0, 0), "stationary": t(64, 3)},
        {"tile_size": (32, 32), "tile_position": (32, 0), "dst": t(3, 5, indirect=True)},
        {"is_transpose": True, "moving": t(4, 5, indirect=True)},
    ],
    "nc_matmul_mx": [
        {"stationary": t(24, 2)},
        {"stationary": t(32, 130)},
        {"moving": t(32, 9000)},
        {"tile_size": (64, 128)},
        {"tile_size": (64, 64), "tile_position": (0, 0)},
        {"tile_size": (32, 128), "tile_position": (0, 0), "stationary": t(64, 2)},
    ],
    "nc_transpose": [{"data": t(200, 200)}, {"data": t(4, 8), "engine": "tensor"}],
    "dma_transpose": [
        {"axes": (0, 1)},
        {"priority": 1},
        {"dge_mode": "hwdge"},
        {"dge_mode": "swdge"},
        {"src": t(4, 8, indirect=True, index=INDEX)},
        {"oob_mode": "skip"},
    ],
    "tensor_tensor": [
        {"op": "abs_max"},
        {"op": "bitwise_and"},
        {"op": "power", "engine": "vector"},
        {"data1": t(4, 8, region="psum"), "data2": t(4, 8, region="psum")},
    ],
    "tensor_scalar": [
        {"op0": "square"},
        {"op0": "bitwise_and"},
        {"op0": "bitwise_and", "engine": "gpsimd"},
        {"op1": "bitwise_and", "operand1": 1},
        {"operand0": None},
        {"op1": "add"},
        {"operand0": t(4, 1, dtype="int32")},
        {"engine": "gpsimd"},
        {"op0": "rsqrt", "engine": "vector"},
        {"op0": "maximum", "engine": "scalar"},
    ],
    "tensor_reduce": [{"axis": (0,)}, {"op": "bitwise_or"}, {"op": "bitwise_or", "negate": True}],
    "tensor_partition_reduce": [{"op": "bitwise_or"}],
    "tensor_scalar_cumulative": [
        {"op0": "square"}, {"reduce_cmd": "load_reduce"}, {"imm1": 1.0}, {"imm0": t(5, 1)},
    ],
    "activation": [
        {"bias": 1.0}, {"op": "reciprocal", "bias": t(4, 1)}, {"op": "prelu"},
        {"reduce_cmd": "reduce"},
    ],
    "activation_reduce": [
        {"bias": 1.0}, {"op": "reciprocal", "bias": t(4, 1)}, {"op": "prelu"},
    ],
    "activate2": [
        {"op0": "add", "op1": "add"},
        {"op0": "bypass", "reverse0": True},
        {"imm0": t(4, 1), "imm1": t(4, 1, dtype="int32")},
        {"reduce_cmd": "reduce"},
    ],
    "iota": [{"pattern": ((1, 3),)}],
    "affine_select": [{"pattern": ((1, 3),)}],
    "local_gather": [
        {"index": t(12, 1, dtype="uint16")},
        {"num_elem_per_idx": 3},
        {"num_valid_indices": 99},
    ],
    "bn_stats": [{"data": t(4, 513)}],
    "tensor_tensor_scan": [
        {"op0": "abs_max"},
        {"data0": t(4, 8, region="psum"), "data1": t(4, 8, region="psum")},
    ],
    "nc_stream_shuffle": [{"src": t(8, 8)}, {"src": t(64, 8, partition=32)}],
    "dropout": [
        {"data": t(4, 8, dtype="int32"), "prob": t(4, 1, dtype="bfloat16")}, {"prob": 2.0},
    ],
    "rand2": [{"max": 0.0}, {"min": t(5, 1)}],
    "exponential": [{"reduce_cmd": "load_reduce", "reduce_init": None}, {"reduce_init": 1.0}],
    "max8": [{"src": t(4, 7)}, {"src": t(4, 2, 2, 2)}],
    "scalar_tensor_tensor": [
        {"op0": "square"},
        {"data": t(4, 8, region="psum"), "operand1": t(4, 8, region="psum")},
    ],
    "tensor_scalar_reduce": [
        {"op0": "square"}, {"operand0": None}, {"reverse0": True},
        {"reduce_cmd": "load_reduce"}, {"reduce_init": 1.0},
    ],
    "dma_compute": [
        {"srcs": (t(4, 8),) * 17},
        {"srcs": (t(4, 8), t(4, 9))},
        {"scales": (1.0,)},
        {"srcs": (t(4, 8), t(4, 8, indirect=True)), "unique_indices": False},
        {"oob_mode": "skip"},
    ],
    "quantize_mx": [{"src": t(16, 8)}],
    "range_select": [{"range_start": 2**24}],
    "select_reduce": [{"on_true": t(4, 8, region="psum"),
                       "predicate": t(4, 8, dtype="uint8", region="psum")}],
    "sendrecv": [{"dma_engine": "gpsimd_dma", "src": t(4, 300)}],
    "register_load": [{"src": t(1, 2, dtype="int32")}],
    "nc_find_index8": [
        {"data": t(4, 7)}, {"data": t(4, 2, 2, 2)}, {"vals": t(4, 2, 2, 2)},
    ],
    "nc_match_replace8": [{"data": t(4, 7)}],
    "topk": [{"src": t(24, 2)}, {"n": 40}, {"n": 7}],
}  # fmt: skip


def sample(name: str) -> Call:
    written, others = SAMPLES[name]()
    operands, attributes = bind(TABLE[name], (), {**written, **others})
    return make_call(TABLE[name], operands, attributes, 4, describe)


def changed(call: Call, overrides: dict[str, Any]) -> Iterator[Call]:
    operands = {**call.operands}
    attributes = {**call.attributes}
    for key, value in overrides.items():
        (operands if key in operands else attributes)[key] = value
    engine = attributes.get("engine", "unknown")
    for generation in call.instruction.engines.allowed:
        yield dataclasses.replace(
            call, operands=operands, attributes=attributes, generation=generation,
            engine=call.engine if engine == "unknown" or call.engine == "dma" else engine,
        )  # fmt: skip


def neighbours(tile: Tile) -> Iterator[Tile]:
    *front, last = tile.shape
    yield dataclasses.replace(tile, shape=(tile.shape[0] + 1, *tile.shape[1:]))
    yield dataclasses.replace(tile, shape=(*front, last + 1))
    for dtype in ("float32", "bfloat16", "int32", "float8_e4m3fn"):
        yield dataclasses.replace(tile, dtype=dtype)


@pytest.mark.parametrize("name", TABLE)
def test_every_rule_can_be_broken(name: str) -> None:
    call = sample(name)
    calls = [c for overrides in CASES.get(name, ()) for c in changed(call, overrides)]
    for key, value in call.operands.items():
        if isinstance(value, Tile):
            for other in neighbours(value):
                calls += changed(call, {key: other})
    unbroken: list[Rule] = []
    for rule in TABLE[name].rules:
        problems = [problem for c in calls if (problem := rule.check(c)) is not None]
        if not problems:
            unbroken.append(rule)
        for what, remedy in problems:
            assert what.startswith(name)
            assert not {"{", "}"} & {*what, *remedy}
    assert not unbroken, [rule.text for rule in unbroken]


@pytest.mark.parametrize("name", TABLE)
def test_a_legal_call_breaks_no_rule(name: str) -> None:
    call = sample(name)
    assert [rule.text for rule in (*COMMON, *TABLE[name].rules) if rule.check(call)] == []
