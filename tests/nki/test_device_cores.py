"""Device programs of two physical cores: what they share, what that gives, and what it saves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuronxcc.ir import build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.perf import model_of
from neuronxcc.targets import get_target
from nki.device import DeviceProgram
from nki.perf.streams import stream_of

from .device_tools import arguments, compiled, given_, graph_of
from .test_device_chains import STEPS, block, compare, normalised, small


def works(program: DeviceProgram) -> Counter[int]:
    """How many instructions and transfers each core has."""
    found: Counter[int] = Counter()
    for section in program.sections:
        if section.recording is not None:
            stream = stream_of(section.recording)
            found.update(stream.works[number].core for number in stream.body.work.tolist())
    return found


def by_sequences(x: Node, sequences: int, heads: int) -> Node:
    """Attention of each sequence's rows among themselves; the rows of all are in x."""
    rows = x.shape[0] // sequences
    width = x.shape[1] // 3 // heads
    parts = []
    for at in range(3):
        part = build.slice_(x, (0, at * heads * width), (x.shape[0], (at + 1) * heads * width))
        part = build.reshape(part, (sequences, rows, heads, width))
        parts.append(build.transpose(part, (0, 2, 1, 3)))
    q, k, v = parts
    scores = build.dot_general(
        q, k, lhs_batch=(0, 1), rhs_batch=(0, 1), lhs_contract=(3,), rhs_contract=(3,),
        dtype=DType.F32,
    )  # fmt: skip
    top = build.broadcast_to(build.reduce(scores, "max", (3,), keep=True), scores.shape)
    powers = build.unary(Op.EXP, build.binary(Op.SUBTRACT, scores, top))
    total = build.broadcast_to(build.reduce(powers, "add", (3,), keep=True), powers.shape)
    shares = build.convert(build.binary(Op.DIVIDE, powers, total), x.dtype)
    out = build.dot_general(
        shares, v, lhs_batch=(0, 1), rhs_batch=(0, 1), lhs_contract=(3,), rhs_contract=(2,),
        dtype=x.dtype,
    )  # fmt: skip
    out = build.transpose(out, (0, 2, 1, 3))
    return build.reshape(out, (x.shape[0], heads * width))


def layer(sequences: int, rows: int, dtype: DType = DType.F32, width: int = 64) -> Node:
    x = given_(0, dtype, sequences * rows, width)
    y = build.matmul(normalised(x), given_(1, dtype, width, 3 * width))
    y = build.matmul(by_sequences(y, sequences, 2), given_(2, dtype, width, width))
    y = normalised(build.binary(Op.ADD, x, y))
    return build.binary(Op.ADD, y, build.matmul(y, given_(3, dtype, width, width)))


@pytest.mark.slow
@settings(deadline=None, max_examples=15)
@given(
    st.lists(st.sampled_from(sorted(STEPS)), min_size=2, max_size=5),
    st.sampled_from([64, 128, 192, 256, 320, 384, 512, 1152]),
)
def test_random_layers_on_two_cores(steps: list[str], rows: int) -> None:
    x = given_(0, DType.F32, rows, 64)
    for number, step in enumerate(steps):
        x = STEPS[step](x, given_(number + 1, DType.F32, 64, 64))
    graph = graph_of(x)
    args = small([np.clip(a, -2, 2) for a in arguments(graph)])
    compare(compiled(graph, lnc=2), args, DType.F32)


@pytest.mark.parametrize("rows", [64, 96, 128, 192, 256])
@pytest.mark.parametrize("sequences", [1, 2, 3, 4])
def test_attention_of_several_sequences(sequences: int, rows: int) -> None:
    graph = graph_of(layer(sequences, rows))
    compare(compiled(graph, lnc=2), small(arguments(graph)), DType.F32)


@pytest.mark.parametrize(("sequences", "rows", "chains"), [(1, 512, 2), (2, 256, 1), (4, 128, 1)])
def test_a_layer_stays_on_the_chip_but_for_the_keys_of_others(
    sequences: int, rows: int, chains: int
) -> None:
    """Two sequences are a core each; of one, each core needs keys and values of all rows."""
    graph = graph_of(layer(sequences, rows, width=128))
    one, two = (compiled(graph, lnc=lnc) for lnc in (1, 2))
    assert [section.kind for section in one.sections] == ["chain"]
    assert [section.kind for section in two.sections] == ["chain"] * chains
    if chains == 1:
        # Weights are loaded by both, and no result of a step is.
        weights = sum(t.nbytes for node in graph.params[1:] for t in node.types)
        assert two.predict().hbm_bytes <= one.predict().hbm_bytes + weights


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
@pytest.mark.parametrize("rows", [512, 1024])
def test_two_cores_need_little_more_than_half_of_the_time(dtype: DType, rows: int) -> None:
    graph = graph_of(block(dtype, rows=rows, width=256))
    one, two = (compiled(graph, lnc=lnc) for lnc in (1, 2))
    assert max(two.predict().busy_us.values()) < 0.6 * max(one.predict().busy_us.values())
    # What 512 rows take is mostly waiting.
    most = 0.7 if rows > 512 else 0.8
    assert two.predict().device_us < most * one.predict().device_us
    shares = works(two)
    assert shares[0] == pytest.approx(shares[1], rel=0.05)


def side_by_side(x: Node) -> Node:
    return build.concatenate([x, build.transpose(x, (1, 0))], 1)


#: What one core did alone before, or two with all of the rows on one: 1024 by 1024 numbers.
SHARED: dict[str, Callable[[Node], Node]] = {
    "elements": lambda x: build.unary(Op.TANH, build.reshape(x, (128, 8192))),
    "columns of 128 rows": lambda x: build.binary(
        Op.ADD,
        build.reshape(x, (128, 8192)),
        build.broadcast_in_dim(build.slice_(build.reshape(x, (2**20,)), (0,), (8192,)), (128, 8192),
                               (1,)),
    ),
    "move": lambda x: build.transpose(x, (1, 0)),
    "move of long rows": lambda x: build.transpose(build.reshape(x, (8, 128, 1024)), (1, 0, 2)),
    "concatenate": side_by_side,
    "reduction": lambda x: build.reduce(x, "max", (0,)),
    "norm": normalised,
}  # fmt: skip


@pytest.mark.parametrize("name", SHARED)
def test_both_cores_have_as_much_to_do(name: str) -> None:
    x = given_(0, DType.F32, 1024, 1024)
    graph = graph_of(SHARED[name](x))
    one, two = (compiled(graph, lnc=lnc) for lnc in (1, 2))
    compare(two, arguments(graph), DType.F32)
    shares = works(two)
    assert shares[0] == pytest.approx(shares[1], rel=0.1)
    assert two.predict().device_us < 0.75 * one.predict().device_us
    assert not two.notes


def test_what_one_core_does_alone_is_said() -> None:
    x = given_(0, DType.F32, 64, 32)
    graph = graph_of(build.pad(normalised(x), 1.0, 1, 1))
    program = compiled(graph, lnc=2)
    compare(program, arguments(graph), DType.F32)
    assert program.notes == (
        (
            "--lnc 2: one core alone does 2 of 2 sections, which have too few rows for more or "
            "write in an order that more would not keep: pad, reduce"
        ),
    )


def test_a_program_of_two_cores_takes_longer_for_more() -> None:
    """And never less than its bytes need at the rate of both cores."""
    times = []
    for rows in (128, 256, 384, 512, 768, 1024):
        made = compiled(graph_of(block(DType.BF16, rows=rows)), lnc=2).predict()
        model = model_of(get_target("trn2"))
        assert made.device_us >= made.hbm_bytes / (2 * model.hbm_gbps) / 1e3
        assert made.device_us >= max(made.busy_us.values())
        times.append(made.device_us)
    assert times == sorted(times)
