"""The table as a whole: signatures, samples, rules, costs."""

# ruff: noqa: E501 (tables of cases)
from __future__ import annotations

import dataclasses
import string
from typing import Any

import numpy as np
import pytest

from nki import errors
from nki.isa.bind import make_call
from nki.isa.rules import COMMON, legal_starts
from nki.isa.spec import GENERATIONS, REQUIRED, Instruction, Operand, Role, Tile
from nki.isa.table import TABLE
from tests.nki.isa_samples import SAMPLES
from tests.nki.isa_tools import T, call, describe, run

# The documented parameters of NKI 0.6 in order, "name" where it is required, "name=" where not.
SIGNATURES = """
dma_copy: dst src priority= oob_mode= dge_mode= engine= name=
tensor_copy: dst src engine= name=
memset: dst value engine= name=
tensor_copy_predicated: dst src predicate reverse_pred= name=
nc_matmul: dst stationary moving is_stationary_onezero= is_moving_onezero= is_transpose= accumulate= tile_position= tile_size= perf_mode= name=
nc_matmul_mx: dst stationary moving stationary_scale moving_scale tile_position= tile_size= accumulate= name=
nc_transpose: dst data engine= name=
dma_transpose: dst src axes= priority= dge_mode= oob_mode= name=
tensor_tensor: dst data1 data2 op engine= name=
tensor_scalar: dst data op0 operand0 reverse0= op1= operand1= reverse1= engine= name=
tensor_reduce: dst op data axis negate= keepdims= name=
tensor_partition_reduce: dst op data name=
tensor_scalar_cumulative: dst src op0 op1 imm0 imm1= reduce_cmd= name=
activation: dst op data bias= scale= reduce_op= reduce_res= reduce_cmd= name=
activation_reduce: dst op data reduce_op reduce_res bias= scale= name=
activate2: dst op data imm0 imm1 op0 op1 relu_param= reverse0= reverse1= reduce_op= reduce_res= reduce_cmd= name=
iota: dst pattern offset= channel_multiplier= name=
affine_select: dst pattern channel_multiplier on_true_tile on_false_value cmp_op= offset= name=
local_gather: dst src_buffer index num_elem_per_idx= num_valid_indices= name=
nc_n_gather: dst data indices name=
bn_stats: dst data name=
bn_aggr: dst data name=
tensor_tensor_scan: dst data0 data1 initial op0 op1 reverse0= reverse1= name=
nc_stream_shuffle: dst src shuffle_mask name=
rng: dst engine= name=
dropout: dst data prob name=
set_rng_seed: src_seeds name=
rand_set_state: src_seeds engine= name=
rand_get_state: dst engine= name=
rand2: dst min max name=
exponential: dst src max_value= reduce_res= reduce_cmd= reduce_init= name=
reciprocal: dst data name=
max8: dst src name=
sequence_bounds: dst segment_ids name=
scalar_tensor_tensor: dst data op0 operand0 op1 operand1 reverse0= reverse1= name=
tensor_scalar_reduce: dst data op0 operand0 reduce_op reduce_res= reverse0= reduce_cmd= reduce_init= reduce_res_negate= name=
core_barrier: data cores engine= name=
dma_compute: dst srcs reduce_op scales= unique_indices= oob_mode= name=
quantize_mx: dst src dst_scale name=
range_select: dst on_true_tile comp_op0 comp_op1 bound0 bound1 reduce_cmd= reduce_res= reduce_op= range_start= on_false_value= name=
select_reduce: dst predicate on_true on_false reduce_res= reduce_cmd= reduce_op= reverse_pred= name=
sendrecv: src dst send_to_rank recv_from_rank pipe_id dma_engine= name=
register_alloc: x=
register_move: dst src
register_load: dst src
register_store: dst src
nc_find_index8: dst data vals name=
nc_match_replace8: dst data vals imm dst_idx= name=
nonzero_with_count: dst src index_offset= padding_val= name=
topk: val_dst idx_dst src n name=
get_nc_version:
get_nc_sub_version:
"""
FIRST_GENERATION = {
    3: {"range_select", "nonzero_with_count", "sendrecv", "core_barrier", "rand_set_state",
        "rand_get_state"},
    4: {"activate2", "exponential", "quantize_mx", "nc_matmul_mx", "rand2"},
}  # fmt: skip
RUNTIME = {
    "sendrecv", "core_barrier", "register_alloc", "get_nc_version", "get_nc_sub_version",
}  # fmt: skip


def test_the_documented_signatures() -> None:
    documented = {}
    for line in SIGNATURES.strip().splitlines():
        name, _, parameters = line.partition(":")
        documented[name] = parameters.split()
    table = {
        name: [p.name + ("" if p.default is REQUIRED else "=") for p in row.parameters]
        for name, row in TABLE.items()
    }
    assert table == documented
    assert len(table) == 52


@pytest.mark.parametrize("name", TABLE)
def test_generations(name: str) -> None:
    first = next((g for g, names in FIRST_GENERATION.items() if name in names), 2)
    assert tuple(TABLE[name].engines.allowed) == tuple(range(first, 5))
    assert set(TABLE[name].engines.allowed) <= set(GENERATIONS)


@pytest.mark.parametrize("name", TABLE)
def test_samples_are_legal_and_cost_something(name: str) -> None:
    written, others = SAMPLES[name]()
    made = call(name, **written, **others)
    cost = TABLE[name].cost
    roles = {o.name: o.role for o in TABLE[name].operands}
    assert all(roles[n] is not Role.READ for n in written)
    if cost is None:
        assert name.startswith(("register", "get_nc", "core_barrier"))
        return
    assert cost.source
    assert cost.unit == ("ns" if made.engine == "dma" else "cycles")
    assert cost.cycles(made) > 0


def junk(operand: T, bits: int) -> None:
    """Fill an operand with a pattern that is NaN in floating point."""
    operand.data = np.full(operand.data.shape, 0, operand.data.dtype)
    operand.data.view(np.uint8)[...] = bits


@pytest.mark.parametrize("name", [n for n in TABLE if n not in RUNTIME])
def test_meanings_do_not_read_what_they_only_write(name: str) -> None:
    results = []
    for bits in (0xFF, 0x55):
        written, others = SAMPLES[name]()
        for operand in TABLE[name].operands:
            if operand.role is Role.WRITE and operand.name in written:
                junk(written[operand.name], bits)
        results.append(run(name, **written, **others)[0])
        for key, value in results[-1].items():
            assert value.shape == written[key].tile.shape
            assert value.dtype == written[key].tile.info.numpy
    for key, value in results[0].items():
        assert np.array_equal(value.view(np.uint8), results[1][key].view(np.uint8))
    wanted = {o.name for o in TABLE[name].operands if o.role is not Role.READ}
    assert set(results[0]) == {n for n in wanted if n in written}


@pytest.mark.parametrize("name", [n for n in TABLE if n not in RUNTIME])
def test_meanings_do_not_change_what_they_read(name: str) -> None:
    written, others = SAMPLES[name]()
    before = {k: v.data.copy() for k, v in others.items() if isinstance(v, T)}
    run(name, **written, **others)
    for key, value in before.items():
        assert np.array_equal(value.view(np.uint8), others[key].data.view(np.uint8))


def test_rows_without_a_meaning_are_those_of_the_runtime() -> None:
    assert {name for name, row in TABLE.items() if row.meaning is None} == RUNTIME


def all_rules() -> list[tuple[str, Any]]:
    return [("common", r) for r in COMMON] + [(n, r) for n, row in TABLE.items() for r in row.rules]


def test_rules_have_codes_and_remedies() -> None:
    for name, rule in all_rules():
        assert rule.code in errors.CODES, name
        assert rule.remedy
        assert set(rule.generations) <= set(GENERATIONS)
        known = [field for _, field, _, _ in string.Formatter().parse(rule.text) if field]
        assert all(field.isidentifier() for field in known)
        assert "NKI" not in rule.text


def test_every_code_of_the_instructions_is_used() -> None:
    used = {rule.code for _, rule in all_rules()}
    # Those that binding, meanings and findings use instead of rules.
    elsewhere = {
        "NKI101",
        "NKI102",
        "NKI112",
        "NKI113",
        "NKI126",
        "NKI132",
        "NKI136",
        "NKI139",
        "NKI141",
        "NKI142",
        "NKI143",
    }
    listed = {code for code in errors.CODES if code.startswith("NKI1")}
    assert listed == used | elsewhere


def test_an_error_says_what_where_and_what_to_do() -> None:
    x = Tile((2, 2), "float32")
    with pytest.raises(errors.NkiValidationError) as caught:
        call("bn_stats", x, x)
    error = caught.value
    assert isinstance(error, AssertionError)
    assert error.code == "NKI128"
    what, where, rest = str(error).split("; ")
    assert what == "bn_stats dst must have 6 elements per partition, got 2"
    assert where.split(":")[0].endswith("isa_tools.py")
    assert rest == "allocate it with shape (partitions, 6) [NKI128]"


def test_start_partitions_are_those_of_the_hardware() -> None:
    wants = {1: (0, 32, 64, 96), 32: (0, 32, 64, 96), 33: (0, 64), 64: (0, 64), 65: (0,), 128: (0,)}
    assert {count: legal_starts(count) for count in wants} == wants


def test_rows_are_plain_data() -> None:
    row = TABLE["reciprocal"]
    assert isinstance(row, Instruction)
    with pytest.raises(dataclasses.FrozenInstanceError):
        row.name = "other"  # type: ignore[misc]
    assert [type(p) for p in row.parameters[:2]] == [Operand, Operand]
    with pytest.raises(TypeError):
        TABLE["x"] = row  # type: ignore[index]


def test_numbers_of_numpy_are_numbers() -> None:
    row = TABLE["tensor_scalar"]
    x = Tile((2, 2), "float32")
    operands = {"dst": x, "data": x, "operand0": np.float32(0.5), "operand1": None}
    attributes = {
        "op0": "add", "reverse0": False, "op1": None, "reverse1": False, "engine": "unknown",
        "name": None,
    }  # fmt: skip
    made = make_call(row, operands, attributes, 3, describe)
    assert made.operands["operand0"] == 0.5
