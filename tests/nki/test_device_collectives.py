"""Device programs of one rank of a job: values that ranks exchange, and the time that takes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from neuronxcc.ir import build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import Graph, parameter
from neuronxcc.ir.node import Node, TensorType
from neuronxcc.ir.op import Op
from neuronxcc.ir.reference import evaluate_ranks, on_ranks
from neuronxcc.perf.graphs.collectives import Reach, collective_us
from neuronxcc.perf.graphs.parameters import GraphParameters
from neuronxcc.targets import get_target
from nki.device import Job, lower

from .device_tools import roundings

GROUP = ((0, 1),)
FLOOR = GraphParameters().collective_floor
CASES: dict[str, Callable[[Node], Node]] = {
    "all_reduce": lambda x: build.make(Op.ALL_REDUCE, (x,), kind="add", group=GROUP),
    "all_gather": lambda x: build.make(Op.ALL_GATHER, (x,), dim=0, group=GROUP),
    "reduce_scatter": lambda x: build.make(Op.REDUCE_SCATTER, (x,), kind="max", dim=0, group=GROUP),
    "all_to_all": lambda x: build.make(Op.ALL_TO_ALL, (x,), split_dim=0, concat_dim=1, group=GROUP),
    "broadcast": lambda x: build.make(Op.COLLECTIVE_BROADCAST, (x,), root=1, group=GROUP),
    "send": lambda x: build.make(Op.COLLECTIVE_PERMUTE, (x,), pairs=((0, 1), (1, 0))),
}


def graph_of(name: str, rows: int = 128) -> Graph:
    """An exponential, the collective, and a product with a number."""
    x = parameter(0, TensorType(DType.F32, (rows, 64)), "x")
    return Graph(name, (x,), (build.unary(Op.NEGATE, CASES[name](build.unary(Op.EXP, x))),))


@pytest.mark.parametrize("name", CASES)
def test_ranks_exchange_what_their_instructions_give(name: str) -> None:
    graph = graph_of(name)
    rng = np.random.default_rng(0)
    args = [[rng.normal(size=(128, 64)).astype(np.float32)] for _ in range(2)]
    program = lower(graph, "trn1", passes=False)
    (missing,) = program.missing
    assert "cores of their own" in missing.reason
    found = on_ranks(2, lambda rank, exchange: program.run(
        args[rank], by="reference", exchange=exchange
    ))  # fmt: skip
    for got, wanted in zip(found, evaluate_ranks(graph, args), strict=True):
        assert roundings(got[0], wanted[0]) <= 4


@pytest.mark.parametrize("name", CASES)
def test_a_job_says_how_long_a_collective_takes(name: str) -> None:
    """As the table of collectives has it, beside the sections before and behind it."""
    chip = get_target("trn1")
    program = lower(graph_of(name), chip, passes=False)
    whole = program.predict(job=Job(2, chip, 1))
    nbytes = 128 * 64 * 4 * (2 if name == "all_gather" else 1)
    instance = max(chip.instances, key=lambda one: one.chips)
    reach = Reach(2, 1, 1, 2, 2, 2, chip.logical_cores_per_chip(1) * instance.chips, None)
    reach = reach._replace(cores_per_chip=chip.logical_cores_per_chip(1))
    expected = collective_us(name, nbytes, reach, chip, era="models", floor_us=FLOOR)
    assert expected is not None
    (cc,) = (time for time in whole.sections if time.prediction is None)
    assert cc.device_us == whole.busy_us["cc"] == pytest.approx(expected)
    assert whole.device_us == pytest.approx(sum(time.device_us for time in whole.sections))
    assert any("collectives by bytes and links (models)" in note for note in whole.notes)
    # Nobody says of what job it is: by bytes.
    alone = program.predict()
    assert "cc" not in alone.busy_us
    assert any("its time is that of its bytes" in note for note in alone.notes)


def test_larger_and_farther_takes_longer() -> None:
    chip = get_target("trn1")
    every: tuple[tuple[int, ...], ...] = ()

    def us(rows: int, ranks: int) -> float:
        x = parameter(0, TensorType(DType.F32, (rows, 64)), "x")
        reduced = build.make(Op.ALL_REDUCE, (x,), kind="add", group=every)
        program = lower(Graph("test", (x,), (reduced,)), chip, passes=False)
        return program.predict(job=Job(ranks, chip, 1)).busy_us["cc"]

    times = [us(128, 2), us(4096, 2), us(4096, 8), us(4096, 32), us(4096, 64)]
    assert times == sorted(set(times))


def test_a_group_of_one_waits_for_nobody() -> None:
    chip = get_target("trn2")
    x = parameter(0, TensorType(DType.F32, (128, 64)), "x")
    reduced = build.make(Op.ALL_REDUCE, (x,), kind="add", group=((0,),))
    program = lower(Graph("test", (x,), (reduced,)), chip, passes=False)
    assert program.predict(job=Job(1, chip, 1)).busy_us["cc"] == 0
