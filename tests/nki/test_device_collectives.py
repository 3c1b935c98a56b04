"""Device programs of one rank of a job: values that ranks exchange, and the time that takes."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from neuronxcc.ir import build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import Graph, parameter
from neuronxcc.ir.node import Node, TensorType
from neuronxcc.ir.op import Op
from neuronxcc.ir.reference import evaluate_ranks, on_ranks
from neuronxcc.options import Options
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
    "all_gather of columns": lambda x: build.make(Op.ALL_GATHER, (x,), dim=1, group=GROUP),
    "mean": lambda x: build.make(Op.ALL_REDUCE, (x,), kind="avg", group=GROUP),
    "mean of columns": lambda x: build.make(
        Op.REDUCE_SCATTER, (x,), kind="avg", dim=1, group=GROUP
    ),
    "columns for rows": lambda x: build.make(
        Op.ALL_TO_ALL, (x,), split_dim=1, concat_dim=0, group=GROUP
    ),
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
    (exchanged,) = (section for section in program.sections if section.kind == "collective")
    if name == "broadcast":
        assert exchanged.reason == "NKI has no collective that sends one tensor to all ranks"
    else:
        assert not program.missing
        assert exchanged.recording is not None
        (template,) = exchanged.recording.templates
        named = {"send": "collective_permute", "mean": "all_reduce"}
        named |= {"mean of columns": "reduce_scatter", "columns for rows": "all_to_all"}
        assert template.row.name == named.get(name, name.partition(" ")[0])
        assert exchanged.instructions == 1
    found = on_ranks(2, lambda rank, exchange: program.run(
        args[rank], by="reference", exchange=exchange
    ))  # fmt: skip
    for got, wanted in zip(found, evaluate_ranks(graph, args), strict=True):
        assert roundings(got[0], wanted[0]) <= 4


_TIMED = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send")


@pytest.mark.parametrize("name", _TIMED)
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
    (cc,) = (time for time in whole.sections if time.section.kind == "collective")
    assert cc.end_us - cc.begin_us == pytest.approx(expected)
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


# --- beside the computation ----------------------------------------------------------------------


def layers(count: int, width: int = 512, rows: int = 1024, *, shared: int = 2) -> Graph:
    """Products with weights that are gathered, and a gradient's sum that nobody waits for."""
    group = (tuple(range(shared)),)
    x = parameter(0, TensorType(DType.F32, (rows, width)), "x")
    params, results, y = [x], [], x
    for number in range(count):
        part = parameter(1 + number, TensorType(DType.F32, (width // shared, width)), f"w{number}")
        params.append(part)
        gathered = build.make(Op.ALL_GATHER, (part,), dim=0, group=group)
        y = build.unary(Op.TANH, build.matmul(y, gathered))
        results.append(build.make(Op.REDUCE_SCATTER, (y,), kind="add", dim=0, group=group))
    return Graph("layers", tuple(params), (*results, y))


@pytest.mark.parametrize("strategy", ["fsdp", "llm-training"])
def test_a_strategy_lets_collectives_run_beside_the_computation(strategy: str) -> None:
    chip, graph = get_target("trn2"), layers(4)
    job = Job(2, chip, 1)
    plain = lower(graph, chip, Options(lnc=1), passes=False)
    beside = lower(
        graph, chip, Options(lnc=1, distribution_strategy=strategy), passes=False
    )  # fmt: skip
    waits, runs = plain.predict(job=job), beside.predict(job=job)
    assert plain.instructions == beside.instructions
    assert runs.busy_us["cc"] == pytest.approx(waits.busy_us["cc"])
    work = {name: us for name, us in runs.busy_us.items() if name != "cc"}
    assert runs.device_us >= max(runs.busy_us["cc"], *work.values())
    # Here collectives take longer than the computation, nearly all of which is beside them.
    computation = waits.device_us - waits.busy_us["cc"]
    assert waits.device_us - runs.device_us > 0.8 * computation
    for made in (waits, runs):
        assert made.device_us == pytest.approx(sum(time.device_us for time in made.sections))
    # On the timeline products run while weights of later layers come.
    links = [time for time in runs.sections if time.section.kind == "collective"]
    products = [time for time in runs.sections if time.section.kind != "collective"]
    assert any(
        link.begin_us < made.end_us and made.begin_us < link.end_us
        for link in links
        for made in products
    )
    for a, b in itertools.pairwise(links):
        assert a.end_us <= b.begin_us  # the cores of collectives do one after the other
    assert not beside.notes


def test_the_order_of_collectives_is_that_of_all_ranks() -> None:
    """Ranks may compute other things, and must meet in one order. Weights come first."""
    found = []
    for extra in (False, True):
        graph = layers(3)
        results = graph.results
        if extra:  # only this rank
            results = (*results, build.unary(Op.EXP, graph.results[-1]))
        options = Options(lnc=1, distribution_strategy="fsdp")
        program = lower(Graph("rank", graph.params, results), options=options, passes=False)
        sections = [s for s in program.sections if s.kind == "collective"]
        found.append([(section.operator, section.nodes[0].types) for section in sections])
        made: set[Node] = set(graph.params)
        for section in program.sections:
            assert made.issuperset(section.inputs)
            made.update(section.outputs)
    assert found[0] == found[1]
    assert [name for name, _ in found[0]] == ["all_gather"] * 3 + ["reduce_scatter"] * 3


def test_what_a_collective_sends_is_brought_along() -> None:
    """A weight is converted early, too, so that its gathering can begin."""
    x, w = (parameter(i, TensorType(DType.F32, (512, 512)), "xw"[i]) for i in range(2))
    narrow = build.convert(w, DType.BF16)
    gathered = build.make(Op.ALL_GATHER, (narrow,), dim=0, group=GROUP)
    y = build.convert(build.matmul(build.unary(Op.TANH, x), x), DType.BF16)
    graph = Graph("test", (x, w), (build.matmul(gathered, y),))
    options = Options(lnc=1, distribution_strategy="fsdp")
    program = lower(graph, options=options, passes=False)
    assert [section.kind for section in program.sections][:2] == ["rows", "collective"]


def test_values_are_the_same_with_a_strategy() -> None:
    graph = layers(2, 128, 128)
    rng = np.random.default_rng(0)
    args = [
        [(rng.normal(size=p.shape) * 0.1).astype(np.float32) for p in graph.params]
        for _ in range(2)
    ]
    program = lower(graph, "trn1", Options(distribution_strategy="fsdp"), passes=False)
    found = on_ranks(2, lambda rank, exchange: program.run(
        args[rank], by="reference", exchange=exchange
    ))  # fmt: skip
    for got, wanted in zip(found, evaluate_ranks(graph, args), strict=True):
        for a, b in zip(got, wanted, strict=True):
            # Sums of 128 products, in one order or another, which are some tenths.
            assert roundings(a, b, floor=0.1) <= np.sqrt(128)


def test_no_more_is_gathered_ahead_than_there_should_be() -> None:
    """Weights of 16 MB each: two of them are there early, and not all of eight."""
    graph = layers(8, 2048, 256)
    program = lower(graph, options=Options(lnc=1, distribution_strategy="fsdp"), passes=False)
    ahead = most = 0
    needed = {node: at for at, s in enumerate(program.sections) for node in s.inputs}
    for at, section in enumerate(program.sections):
        ahead = sum(
            t.nbytes
            for earlier in program.sections[: at + 1]
            if earlier.kind == "collective" and earlier.operator == "all_gather"
            for node in earlier.outputs
            if needed.get(node, 0) > at
            for t in node.types
        )
        most = max(most, ahead)
        assert section.recording is not None
    assert 16 << 20 <= most <= 32 << 20
