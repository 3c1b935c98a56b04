"""Collectives in graphs and programs: meaning, order, buckets, overlap, what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neuronxcc.cache.key import make_key
from neuronxcc.ir import build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import Graph, parameter
from neuronxcc.ir.node import Node, TensorType
from neuronxcc.ir.operators.checks import ShapeError
from neuronxcc.ir.reference import evaluate_ranks, on_ranks
from neuronxcc.ir.text import parse, to_text
from neuronxcc.lowering.errors import LoweringUnsupportedError
from neuronxcc.lowering.lower import lower
from neuronxcc.lowering.scheduling import overlap
from neuronxcc.neff import NeffError
from neuronxcc.neff.codec import decode, encode
from neuronxcc.options import Options
from neuronxcc.program.program import Program
from neuronxcc.program.reference import run_program
from neuronxcc.program.steps.collective import CollectiveStep, WaitStep
from torch_neuronx.program.executable import Executable

PAIR = [(0, 1)]
F32 = DType.F32


def graph_of(outs: Sequence[Node]) -> Graph:
    """A graph with these results; its parameters are those that they reach."""
    bare = Graph("g", (), tuple(outs))
    params = sorted(
        (n for n in bare.nodes() if n.op.value == "parameter"), key=lambda n: n["index"]
    )
    return Graph("g", tuple(params), tuple(outs))


def stored(program: Program) -> Program:
    """As a file gives it back."""
    encoded = encode(program)
    return decode(encoded.document, encoded.contents)


def compare(graph: Graph, ranks: int = 2, seed: int = 0) -> Program:
    """The program does on all ranks what the graph means; small whole numbers, so to the bit."""
    rng = np.random.default_rng(seed)
    args = [
        [rng.integers(-3, 4, p.shape).astype(p.dtype.numpy) for p in graph.params]
        for _ in range(ranks)
    ]
    program = stored(lower(graph, Options()))
    want = evaluate_ranks(graph, args)
    got = on_ranks(ranks, lambda rank, meet: run_program(program, args[rank], exchange=meet))
    for mine, theirs in zip(got, want, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(a, b)
    return program


def x_of(*shape: int, index: int = 0, dtype: DType = F32) -> Node:
    return parameter(index, TensorType(dtype, shape))


# ---- meaning -------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_every_collective_along_every_dimension(data: Any) -> None:
    ranks = data.draw(st.sampled_from([1, 2, 3]))
    group = [tuple(range(ranks))]
    name: dict[str, Any] = {"name": "world", "channel": 0}
    shape = data.draw(st.lists(st.integers(0, 2).map(lambda n: n * ranks), min_size=1, max_size=3))
    dtype = data.draw(st.sampled_from([F32, DType.S32, DType.BF16, DType.C64]))
    x = x_of(*shape, dtype=dtype)
    dims = st.integers(0, len(shape) - 1)
    kinds = ["add", "avg"] if dtype is not DType.C64 else ["add"]
    y = build.add(x, x) if data.draw(st.booleans()) else x
    made = data.draw(
        st.sampled_from(["reduce", "gather", "scatter", "exchange", "broadcast", "permute"])
    )
    kind, a, b = data.draw(st.sampled_from(kinds)), data.draw(dims), data.draw(dims)
    match made:
        case "reduce":
            node = build.all_reduce(y, kind, group, **name)
        case "gather":
            node = build.all_gather(y, a, group, **name)
        case "scatter":
            node = build.reduce_scatter(y, kind, a, group, **name)
        case "exchange":
            node = build.all_to_all(y, a, b, group, **name)
        case "broadcast":
            node = build.collective_broadcast(y, group, ranks - 1, **name)
        case _:
            pairs = [(r, (r + 1) % ranks) for r in range(1, ranks)]
            node = build.collective_permute(y, pairs, **name)
    transposed = build.transpose(node, tuple(reversed(range(node.type.rank))))
    graph = graph_of([build.add(node, y) if node.type == y.type else node, transposed])
    assert to_text(parse(to_text(graph))) == to_text(graph)
    compare(graph, ranks, data.draw(st.integers(0, 100)))


def test_an_average_rounds_as_documented() -> None:
    for dtype, values, want in (
        (DType.S32, (-3, 0), -1),
        (DType.S32, (7, 0), 3),
        (DType.BF16, (1.0, 1.0078125), 1.0),
    ):
        x = x_of(1, dtype=dtype)
        graph = graph_of([build.all_reduce(x, "avg", PAIR)])
        got = evaluate_ranks(graph, [[np.array([v], dtype.numpy)] for v in values])
        assert float(got[0][0][0]) == want


def test_rows_go_where_they_are_sent() -> None:
    args = [np.arange(3, dtype=np.float32), 10 + np.arange(2, dtype=np.float32)]
    graphs = [
        graph_of([build.all_to_all(x_of(3), 0, 0, PAIR, send=[1, 2], receive=[1, 0], name="w")]),
        graph_of([build.all_to_all(x_of(2), 0, 0, PAIR, send=[0, 2], receive=[2, 2], name="w")]),
    ]
    programs = [stored(lower(graph, Options())) for graph in graphs]
    got = on_ranks(2, lambda rank, meet: run_program(programs[rank], [args[rank]], exchange=meet))
    np.testing.assert_array_equal(got[0][0], [0])
    np.testing.assert_array_equal(got[1][0], [1, 2, 10, 11])


def test_what_collectives_do_not_take() -> None:
    x = x_of(4)
    with pytest.raises(ShapeError, match=r"all_reduce: kind 'mean'; allowed: add, .*, avg"):
        build.all_reduce(x, "mean", PAIR)
    with pytest.raises(ShapeError, match="all_reduce: pred has no avg"):
        build.all_reduce(x_of(4, dtype=DType.PRED), "avg", PAIR)
    with pytest.raises(ShapeError, match="root 2 of a group of 2"):
        build.collective_broadcast(x, PAIR, 2)
    for send, receive in (((1, 2), (1, 1)), ((2, 2), (1,)), ((5, -1), (1, 1))):
        with pytest.raises(ShapeError, match="need a number of rows for each of 2 ranks"):
            build.all_to_all(x, 0, 0, PAIR, send=send, receive=receive)


def test_channels_keep_equal_collectives_apart() -> None:
    x = x_of(4)
    assert build.all_reduce(x, "add", PAIR) is build.all_reduce(x, "add", PAIR)
    one, other = (build.all_reduce(x, "add", PAIR, channel=i) for i in range(2))
    assert one is not other


# ---- programs ------------------------------------------------------------------------------------


def layered(layers: int = 3, width: int = 8) -> Graph:
    """Forward and backward of a stack of layers whose weights are sharded, one product split."""
    x = x_of(4, width)
    weights = [x_of(width // 2, width, index=1 + i) for i in range(layers)]
    h, channel, whole = x, iter(range(100)), []
    for w in weights:
        whole.append(build.all_gather(w, 0, PAIR, name="fsdp", channel=next(channel)))
        h = build.add(build.matmul(h, whole[-1]), 1.0)
        h = build.all_reduce(h, "max", PAIR, name="tp", channel=next(channel))
    grad, grads = h, []
    for w in reversed(whole):
        full = build.matmul(build.transpose(h, (1, 0)), grad)
        grads.append(build.reduce_scatter(full, "add", 0, PAIR, name="fsdp", channel=next(channel)))
        grad = build.clamp(-3.0, build.matmul(grad, build.transpose(w, (1, 0))), 3.0)
    return graph_of([grad, *grads])


def test_weights_are_gathered_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "BUCKET", 0)
    program = compare(layered())
    kinds = [step.kind for step in program.steps if isinstance(step, CollectiveStep)]
    # The next layer's weights before this layer's results; gradients in order.
    assert kinds[:6] == ["all_gather", "all_gather", "all_reduce", "all_gather", "all_reduce",
                         "all_reduce"]  # fmt: skip
    starts = {i: s for i, s in enumerate(program.steps) if isinstance(s, CollectiveStep)}
    waits = {s.start: i for i, s in enumerate(program.steps) if isinstance(s, WaitStep)}
    between = [waits[i] - i - 1 for i, s in starts.items() if s.kind == "all_gather"]
    assert between[1] > 1
    assert between[2] > 1


def test_small_ones_go_together() -> None:
    program = compare(layered())
    by_kind: dict[str, list[int]] = {}
    for step in program.steps:
        if isinstance(step, CollectiveStep):
            by_kind.setdefault(step.kind, []).append(len(step.inputs))
    assert by_kind["reduce_scatter"] == [3]
    assert by_kind["all_reduce"] == [1, 1, 1]  # each needs the one before
    assert max(by_kind["all_gather"]) > 1


def test_what_is_gathered_ahead_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "BUCKET", 0)
    x = x_of(2, 64)
    h = x
    for i in range(6):
        w = x_of(32, 64, index=1 + i)
        h = build.matmul(h, build.all_gather(w, 0, PAIR, name="fsdp", channel=i))
    graph = graph_of([h])

    def most(program: Program) -> int:
        running = found = 0
        for step in program.steps:
            running += isinstance(step, CollectiveStep) - isinstance(step, WaitStep)
            found = max(found, running)
        return found

    assert most(compare(graph)) == 6
    monkeypatch.setattr(overlap, "AHEAD", 2 * 64 * 64 * 4)
    assert most(compare(graph)) == 2
    monkeypatch.setattr(overlap, "AHEAD", 0)
    assert most(compare(graph)) == 1


def test_memory_of_a_collective_is_its_own() -> None:
    # Without the wait's claim on both, the scratch of x + 1 would be given to the next product.
    x = x_of(16, 16)
    sent = build.add(x, 1.0)
    got = build.all_reduce(sent, "add", PAIR, name="w", channel=0)
    y = x
    for _ in range(3):
        y = build.clamp(-3.0, build.matmul(y, y), 3.0)
    compare(graph_of([build.add(got, y)]))


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_graph_keeps_its_meaning(data: Any) -> None:
    """Random graphs of products, sums and collectives of two groups."""
    nodes = [x_of(4, 4, index=i) for i in range(2)]
    for channel in range(data.draw(st.integers(2, 12))):
        a, b = (nodes[data.draw(st.integers(0, len(nodes) - 1))] for _ in range(2))
        name = {"name": data.draw(st.sampled_from(["p", "q"])), "channel": channel}
        made = [
            lambda a=a, b=b: build.clamp(-2.0, build.matmul(a, b), 2.0),
            lambda a=a, b=b: build.subtract(a, b),
            lambda a=a, n=name: build.all_reduce(a, "max", PAIR, **n),
            lambda a=a, n=name: build.slice_dim(build.all_gather(a, 0, PAIR, **n), 0, 2, 6),
            lambda a=a, n=name: build.concatenate(
                [build.reduce_scatter(a, "min", 0, PAIR, **n)] * 2, 0
            ),
            lambda a=a, n=name: build.reshape(build.all_to_all(a, 1, 0, PAIR, **n), (4, 4)),
        ]
        nodes.append(made[data.draw(st.integers(0, len(made) - 1))]())
    wanted = data.draw(st.lists(st.sampled_from(nodes[2:]), min_size=1, max_size=3))
    graph = graph_of([*wanted, build.add(nodes[0], nodes[1])])
    bucket = overlap.BUCKET
    try:
        overlap.BUCKET = data.draw(st.sampled_from([0, 128, bucket]))
        compare(graph)
    finally:
        overlap.BUCKET = bucket


def test_one_rank_needs_nobody() -> None:
    x = x_of(4, 2)
    node = build.all_gather(build.all_reduce(x, "avg", [(0,)]), 1, [(0,)])
    program = lower(graph_of([node]), Options())
    assert not any(isinstance(step, CollectiveStep) for step in program.steps)


def test_names_and_ranks_are_in_the_key() -> None:
    def key(name: str, ranks: tuple[int, ...]) -> str:
        node = build.all_reduce(x_of(4), "add", [ranks], name=name)
        return make_key(graph_of([node]), Options()).digest

    keys = {key("a", (0, 1)), key("b", (0, 1)), key("a", (2, 3)), key("a", (0, 1, 2))}
    assert len(keys) == 4


# ---- what is refused -----------------------------------------------------------------------------


def test_a_collective_without_a_group_is_refused() -> None:
    with pytest.raises(LoweringUnsupportedError, match="it names no process group to do it"):
        lower(graph_of([build.all_reduce(x_of(4), "add", PAIR)]), Options())
    product = build.all_reduce(x_of(4, dtype=DType.C64), "mul", PAIR, name="w")
    with pytest.raises(LoweringUnsupportedError, match="complex numbers have no mul"):
        lower(graph_of([product]), Options())


def reduction() -> Program:
    x = x_of(4)
    node = build.all_reduce(build.add(x, 1.0), "add", PAIR, name="nobody", channel=0)
    return lower(graph_of([node]), Options())


def changed(program: Program, **fields: Any) -> Program:
    steps = [
        replace(step, **fields) if isinstance(step, CollectiveStep) else step
        for step in program.steps
    ]
    return replace(program, steps=tuple(steps))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"kind": "all_things"}, "'all_things' is no collective"),
        ({"name": ""}, "a process group whose name has 0 characters"),
        ({"reduction": ""}, "all_reduce with the reduction ''"),
        ({"reduction": "mean"}, "kind 'mean'; allowed"),
        ({"group": ()}, "all_reduce with the group"),
        ({"group": ((0, 0),)}, "need disjoint groups"),
        ({"send": (1, 3)}, "all_reduce with rows"),
        ({"kind": "all_gather", "reduction": ""}, r"gives f32\[8\], its out is f32\[4\]"),
        ({"inputs": ()}, "all_reduce of 0 operands"),
    ],
)
def test_wrong_steps_are_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(NeffError, match=text):
        encode(changed(reduction(), **fields))


def test_a_collective_is_waited_for_once() -> None:
    program = reduction()
    waits = [step for step in program.steps if isinstance(step, WaitStep)]
    others = [step for step in program.steps if not isinstance(step, WaitStep)]
    for steps, text in (
        (others, "nobody waits for the collective of step"),
        ([*program.steps, *waits], "which is not running"),
        ([*waits, *others], "which is not running"),
    ):
        with pytest.raises(NeffError, match=text):
            encode(replace(program, steps=tuple(steps)))


def test_the_executor_checks_again() -> None:
    program = reduction()
    waits = [step for step in program.steps if isinstance(step, WaitStep)]
    others = [step for step in program.steps if not isinstance(step, WaitStep)]
    for bad, text in (
        (replace(program, steps=tuple(others)), "nobody waits for the collective"),
        (replace(program, steps=(*program.steps, *waits)), "which is no collective that is runn"),
        (replace(program, steps=(*others, *program.steps[:1], *waits)), "is at work on them"),
        (changed(program, reduction="mean"), "'mean' is no reduction"),
        (changed(program, kind="all_gather", reduction=""), "all_gather of 16 bytes in 'nobody'"),
    ):
        with pytest.raises(ValueError, match=text):
            Executable(bad, "cpu")


def test_a_group_that_is_not_there_is_named() -> None:
    program = Executable(reduction(), "cpu")
    with pytest.raises(ValueError, match="no process group 'nobody' of 2 ranks, which the program"):
        program([torch.zeros(4)])
