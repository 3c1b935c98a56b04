"""Which ranks a collective means, and the number of the rank inside loops and branches."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuronxcc.frontends.hlo import HloError, import_hlo
from neuronxcc.frontends.hlo.schema import message
from neuronxcc.frontends.stablehlo import to_hlo
from neuronxcc.ir.reference import evaluate, evaluate_ranks
from neuronxcc.ir.table import Group
from tests.frontends.hlo_text import natively, proto_of, text_of
from tests.frontends.modules import Computation, module, scalar

X = np.arange(4, dtype=np.float32)


def named(content: bytes) -> list[tuple[str, Any]]:
    """Name and groups of every collective."""
    nodes = import_hlo(content).graph.nodes()
    return [(n["name"], n.get("group")) for n in nodes if n.op in Group.COLLECTIVE]


def one(line: str, devices: tuple[int, int] = (0, 0)) -> bytes:
    """A module of one collective, assigned to replicas and partitions."""
    proto = message("Module")()
    proto.ParseFromString(proto_of(text_of(line, [X])))
    if devices != (0, 0):
        proto.device_assignment.replica_count = devices[0]
        proto.device_assignment.computation_count = devices[1]
    content: bytes = proto.SerializeToString()
    return content


ALL = "ranks:all"
SUM = "r = f32[4] all-reduce(p0), to_apply=add, "
CASES: dict[str, tuple[bytes, str, Any]] = {
    "all, however many": (one(SUM + "replica_groups={}"), ALL, ()),
    "all, as the shapes say": (
        one("r = f32[12] all-gather(p0), dimensions={0}, replica_groups={}"), ALL, ((0, 1, 2),)
    ),
    "parts of all": (
        one("r = f32[2] reduce-scatter(p0), to_apply=add, dimensions={0}, replica_groups={}"), ALL,
        ((0, 1),),
    ),
    "an operand for each": (
        one("r = (f32[4], f32[4]) all-to-all(p0, p0), replica_groups={}"), ALL, ((0, 1),)
    ),
    "all partitions of one replica": (one(SUM + "replica_groups={{0}}, channel_id=1"), ALL, ()),
    "one device alone": (
        one("r = f32[4] all-gather(p0), dimensions={0}, replica_groups={{0}}, channel_id=1"),
        "ranks:0", ((0,),),
    ),
    "numbers of devices": (
        one(SUM + "replica_groups={{0,2},{1,3}}, channel_id=1, use_global_device_ids=true"),
        "ranks:0,2;1,3", ((0, 2), (1, 3)),
    ),
    "all of the assignment": (one(SUM + "replica_groups={}", (3, 1)), "ranks:0,1,2", ((0, 1, 2),)),
    "replicas, in each partition": (
        one(SUM + "replica_groups={{0,1}}", (2, 2)), "ranks:0,2;1,3", ((0, 2), (1, 3))
    ),
    "replicas with all partitions": (
        one(SUM + "replica_groups={{0},{1}}, channel_id=1", (2, 2)), "ranks:0,1;2,3",
        ((0, 1), (2, 3)),
    ),
    "partitions, in each replica": (
        one("r = f32[4] collective-broadcast(p0), replica_groups={{1,0}}, channel_id=1", (2, 2)),
        "ranks:1,0;3,2", ((1, 0), (3, 2)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_who_takes_part(name: str) -> None:
    content, ranks, groups = CASES[name]
    assert named(content) == [(ranks, groups)]


def test_pairs_are_of_partitions_with_a_channel_and_of_replicas_without() -> None:
    line = "r = f32[4] collective-permute(p0), source_target_pairs={{0,1}}"
    for more, pairs in (("", ((0, 2), (1, 3))), (", channel_id=1", ((0, 1), (2, 3)))):
        (node,) = [
            n
            for n in import_hlo(one(line + more, (2, 2))).graph.nodes()
            if n.op in Group.COLLECTIVE
        ]
        assert tuple(sorted(node["pairs"])) == pairs
        assert node["name"] == ALL


def test_a_sum_of_all_ranks() -> None:
    graph = import_hlo(one(SUM + "replica_groups={}")).graph
    for (got,) in evaluate_ranks(graph, [[X], [X * 2], [X * 3]]):
        np.testing.assert_array_equal(got, X * 6)


@pytest.mark.parametrize(
    ("content", "code", "text"),
    [
        (
            one("r = f32[4] all-to-all(p0), dimensions={0}, replica_groups={}"), "NCC_EUOC002",
            "whose number of ranks its shapes don't tell",
        ),
        (one(SUM + "replica_groups={{0,5}}", (2, 1)), "NCC_EVRF064", "groups ((0, 5),) among 2"),
        (
            one("r = f32[4000000000] all-gather(p0), dimensions={0}, replica_groups={}"),
            "NCC_EVRF064", "a collective of 1000000000 ranks",
        ),
        (
            one("r = f32[4] collective-permute(p0), source_target_pairs={{0,7}}", (2, 2)),
            "NCC_EVRF064", "collective-permute of [(0, 7)] among 2",
        ),
        (one(SUM + "replica_groups={}", (1 << 12, 1 << 12)), "NCC_EVRF064", "device assignment of"),
    ],
)  # fmt: skip
def test_what_is_refused(content: bytes, code: str, text: str) -> None:
    with pytest.raises(HloError) as caught:
        import_hlo(content)
    assert caught.value.code == code
    assert text in str(caught.value)


# ---- the number of the rank ---------------------------------------------------------------------

LOOP = """
body { s = (s32[], u32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = u32[4] get-tuple-element(s), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  y = u32[4] call(x), to_apply=plus
  ROOT t = (s32[], u32[4]) tuple(j, y) }
few { s = (s32[], u32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(3)
  ROOT c = pred[] compare(i, n), direction=LT }
times { x = u32[4] parameter(0)
  r = u32[] replica-id()
  b = u32[4] broadcast(r), dimensions={}
  ROOT y = u32[4] multiply(x, b) }
twice { x = u32[4] parameter(0)
  ROOT y = u32[4] add(x, x) }
"""
PLUS = """plus { x = u32[4] parameter(0)
  r = u32[] partition-id()
  b = u32[4] broadcast(r), dimensions={}
  ROOT y = u32[4] add(x, b) }
"""
BODY = """z = s32[] constant(0)
t = (s32[], u32[4]) tuple(z, p0)
w = (s32[], u32[4]) while(t), condition=few, body=body
v = u32[4] get-tuple-element(w), index=1
r = u32[4] conditional(p1, v, v), branch_computations={times, twice}"""


@pytest.mark.parametrize("branch", [0, 1])
def test_the_rank_is_known_inside_loops_and_branches(branch: int) -> None:
    args = [np.arange(4, dtype=np.uint32), np.array(branch, np.int32)]
    imported = import_hlo(proto_of(text_of(BODY, args, PLUS + LOOP)))
    assert imported.by_rank
    assert imported.graph.params[-1].type.shape == ()
    for rank in (0, 5):
        given = [*args, np.array(rank, np.int32)]
        looped = args[0] + 3 * rank
        expected = looped * 2 if branch else looped * rank
        np.testing.assert_array_equal(evaluate(imported.graph, given)[0], expected)
        np.testing.assert_array_equal(natively(imported, given)[0], expected)


def test_rank_replica_and_partition_of_an_assignment() -> None:
    main = Computation("main", 1)
    main.add("replica-id", "u32[]")
    proto = message("Module")()
    for opcode, wanted in (("replica-id", 1), ("partition-id", 2)):
        main.proto.instructions[-1].opcode = opcode
        proto.ParseFromString(module(main))
        proto.device_assignment.replica_count = 2
        proto.device_assignment.computation_count = 3
        imported = import_hlo(proto.SerializeToString())
        assert evaluate(imported.graph, [np.array(5, np.int32)])[0] == wanted


def test_a_reduction_may_not_ask_for_the_rank() -> None:
    main, odd = Computation("main", 1), Computation("odd", 2)
    a, _ = odd.parameter("u32[]"), odd.parameter("u32[]")
    odd.add("add", "u32[]", a, odd.add("replica-id", "u32[]"))
    x = main.parameter("u32[4]")
    zero = main.add("constant", "u32[]", literal=message("Literal")(u32s=[0]))
    main.add("reduce", "u32[]", x, zero, called_computation_ids=[2], dimensions=[0])
    with pytest.raises(HloError, match=r"NCC_EUOC002.*inside a computation on scalars"):
        import_hlo(module(main, odd))


JAX = """
import sys, jax, numpy as np
jax.config.update("jax_num_cpu_devices", 2)
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, PartitionSpec as P
mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
def work(x, w):
    def step(i, c):
        return lax.psum(jnp.sin(c) @ w + i, "x") + lax.axis_index("x") * c
    y = lax.fori_loop(0, 3, step, x)
    z = lax.psum_scatter(lax.all_gather(y, "x", tiled=True), "x", tiled=True)
    return z + lax.ppermute(y, "x", [(0, 1)]), lax.pmax(y, "x")
specs = {"mesh": mesh, "in_specs": (P("x"), P()), "out_specs": (P("x"), P())}
mapped = jax.jit(jax.shard_map(work, **specs))
x, w = np.arange(8, dtype=np.float32).reshape(4, 2), np.ones((2, 2), np.float32)
lowered = mapped.lower(x, w)
whole = lowered.compiler_ir("hlo")
parted = lowered.compile().runtime_executable().hlo_modules()[0]
results = [np.asarray(r) for r in mapped(x, w)]
np.savez(sys.argv[1], whole=np.frombuffer(whole.as_serialized_hlo_module_proto(), np.uint8),
    parted=np.frombuffer(parted.as_serialized_hlo_module_proto(), np.uint8),
    text=np.frombuffer(lowered.as_text().encode(), np.uint8), y=results[0], most=results[1])
"""


def test_what_jax_writes_for_a_mesh_of_two(tmp_path: Path) -> None:
    """Before and after XLA has partitioned it; in a process of its own, which has two devices."""
    path = tmp_path / "made.npz"
    environ = {**os.environ, "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", JAX, str(path)], check=True, env=environ)
    made = np.load(path)
    x, w = np.arange(8, dtype=np.float32).reshape(4, 2), np.ones((2, 2), np.float32)
    for form in ("whole", "parted", "text"):
        content = made[form].tobytes()
        imported = import_hlo(to_hlo(content) if form == "text" else content)
        assert imported.by_rank
        given = [[x[2 * rank : 2 * rank + 2], w, np.array(rank, np.int32)] for rank in range(2)]
        first, second = evaluate_ranks(imported.graph, given)
        atol = 1e-5 * float(np.abs(made["y"]).max())
        np.testing.assert_allclose(np.concatenate([first[0], second[0]]), made["y"], atol=atol)
        np.testing.assert_allclose(first[1], made["most"], atol=atol)


def test_a_rank_s_part_within_a_larger_computation_is_refused() -> None:
    main = Computation("main", 1)
    whole = main.add("negate", "f32[4]", main.parameter("f32[4]"))
    main.add("custom-call", "f32[2]", whole, custom_call_target="xla.sdy.GlobalToLocalShape")
    with pytest.raises(HloError, match="NCC_EUOC002") as caught:
        import_hlo(module(main))
    assert "give the module that XLA has partitioned" in str(caught.value)


def test_the_order_of_scalars_stays() -> None:
    """A computation of the module is imported again where it asks for the rank."""
    main = Computation("main", 1)
    main.add("all-reduce", "f32[4]", main.parameter("f32[4]"), called_computation_ids=[2])
    assert named(module(main, scalar("add"))) == [(ALL, ())]
