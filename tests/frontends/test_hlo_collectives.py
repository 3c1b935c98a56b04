"""Collectives of a module on two ranks, by the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from neuronxcc.frontends.hlo import import_hlo
from neuronxcc.frontends.hlo.schema import message
from neuronxcc.ir.reference import evaluate_ranks
from tests.frontends.modules import Computation, module, scalar

GIVEN = [np.arange(4, dtype=np.float32), np.arange(4, dtype=np.float32) * 10]
GROUPS = [message("ReplicaGroup")(replica_ids=[0, 1])]
IOTA = message("DeviceList")(
    iota_replica_group_list=message("IotaGroups")(
        num_replica_groups=1, num_devices_per_group=2, iota_reshape_dims=[2]
    )
)
ADD = {"called_computation_ids": [2]}
PAIRS = [message("SourceTarget")(source=0, target=1)]
SUM = GIVEN[0] + GIVEN[1]
EVERYTHING = np.concatenate(GIVEN)

# Opcode, type of the result, fields, result of each rank.
CASES: dict[str, tuple[str, str, dict[str, Any], list[np.ndarray]]] = {
    "sum": ("all-reduce", "f32[4]", {"replica_groups": GROUPS, **ADD}, [SUM, SUM]),
    "groups by an iota": (
        "all-reduce", "f32[4]", {"collective_device_list": IOTA, **ADD}, [SUM, SUM]
    ),
    "gather": (
        "all-gather", "f32[8]", {"replica_groups": GROUPS, "dimensions": [0]}, [EVERYTHING] * 2
    ),
    "scattered sum": (
        "reduce-scatter", "f32[2]", {"replica_groups": GROUPS, "dimensions": [0], **ADD},
        [SUM[:2], SUM[2:]],
    ),
    "exchange": (
        "all-to-all", "f32[4]", {"replica_groups": GROUPS, "dimensions": [0]},
        [np.concatenate([g[:2] for g in GIVEN]), np.concatenate([g[2:] for g in GIVEN])],
    ),
    "pairs": (
        "collective-permute", "f32[4]", {"source_target_pairs": PAIRS},
        [np.zeros(4, np.float32), GIVEN[0]],
    ),
    "broadcast": ("collective-broadcast", "f32[4]", {"replica_groups": GROUPS}, [GIVEN[0]] * 2),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_collectives(name: str) -> None:
    opcode, result, fields, expected = CASES[name]
    main = Computation("main", 1)
    main.add(opcode, result, main.parameter("f32[4]"), **fields)
    graph = import_hlo(module(main, scalar("add"))).graph
    found = evaluate_ranks(graph, [[given] for given in GIVEN])
    for (got,), want in zip(found, expected, strict=True):
        np.testing.assert_array_equal(got, want)


def test_the_rank_is_the_last_parameter() -> None:
    main = Computation("main", 1)
    main.parameter("f32[4]")
    main.add("partition-id", "u32[]")
    imported = import_hlo(module(main))
    assert imported.by_rank
    assert [str(p.type) for p in imported.graph.params] == ["f32[4]", "s32[]"]
