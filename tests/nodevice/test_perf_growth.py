"""The estimate of graphs by bytes and flops: more work takes no less, and what is copied counts."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuronxcc.ir import build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import Graph, parameter
from neuronxcc.ir.node import Node, TensorType
from neuronxcc.ir.op import Op
from neuronxcc.perf.graphs import Machine, Section, sections_of
from neuronxcc.targets import TARGETS, get_target

FLOATS = (DType.F32, DType.BF16, DType.F16)
machines = st.sampled_from(
    [Machine.of(target, lnc) for target in TARGETS for lnc in target.supported_lnc]
)


def total(sections: list[Section]) -> float:
    return sum(section.us for section in sections)


def product(dtype: DType, batch: int, m: int, k: int, n: int) -> Graph:
    x = parameter(0, TensorType(dtype, (batch, m, k)))
    w = parameter(1, TensorType(dtype, (batch, k, n)))
    made = build.dot_general(
        x, w, lhs_batch=(0,), rhs_batch=(0,), lhs_contract=(2,), rhs_contract=(1,)
    )
    return build.graph("product", [x, w], [build.exp(made)])


def pointwise(dtype: DType, rows: int, columns: int) -> Graph:
    x, y = (parameter(i, TensorType(dtype, (rows, columns))) for i in range(2))
    return build.graph("pointwise", [x, y], [build.tanh(build.multiply(build.add(x, y), x))])


def reduction(dtype: DType, outer: int, kept: int, inner: int) -> Graph:
    x = parameter(0, TensorType(dtype, (outer, kept, inner)))
    return build.graph("reduction", [x], [build.reduce(build.exp(x), "add", (0, 2))])


def softmax(dtype: DType, rows: int, columns: int) -> Graph:
    x = parameter(0, TensorType(dtype, (rows, columns)))
    top = build.broadcast_in_dim(build.reduce(x, "max", (1,)), x.shape, (0,))
    powers = build.exp(build.subtract(x, top))
    sums = build.broadcast_in_dim(build.reduce(powers, "add", (1,)), x.shape, (0,))
    return build.graph("softmax", [x], [build.divide(powers, sums)])


def attention(dtype: DType, batch: int, heads: int, rows: int, width: int) -> Graph:
    given_ = [parameter(i, TensorType(dtype, (batch, heads, rows, width))) for i in range(3)]
    call = Node.make(
        Op.CUSTOM_CALL, (given_[0].type,), given_,
        {"target": "aten::scaled_dot_product_attention", "args": (True,), "kwargs": ()},
    )  # fmt: skip
    return build.graph("attention", given_, [call])


def convolution(dtype: DType, images: int, channels: int, size: int, made: int) -> Graph:
    x = parameter(0, TensorType(dtype, (images, channels, size, size)))
    w = parameter(1, TensorType(dtype, (made, channels, 3, 3)))
    return build.graph("convolution", [x, w], [build.convolution(x, w, low=1, high=1)])


def turned(dtype: DType, rows: int, columns: int) -> Graph:
    x = parameter(0, TensorType(dtype, (rows, columns)))
    return build.graph("turned", [x], [build.transpose(x, (1, 0))])


def moved(dtype: DType, rows: int, columns: int) -> Graph:
    x = parameter(0, TensorType(dtype, (rows, columns)))
    return build.graph("moved", [x], [x, build.concatenate([x, x], 0)])


FAMILIES = (product, pointwise, reduction, softmax, attention, convolution, turned, moved)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=60)
@given(machine=machines, dtype=st.sampled_from(FLOATS), data=st.data())
def test_one_more_or_twice_an_extent_takes_no_less(
    family: Callable[..., Graph], machine: Machine, dtype: DType, data: st.DataObject
) -> None:
    rank = len(inspect.signature(family).parameters) - 1
    extents = data.draw(st.tuples(*[st.integers(1, 700)] * rank))
    which = data.draw(st.integers(0, rank - 1))
    more = data.draw(st.sampled_from([extents[which] + 1, 2 * extents[which]]))
    larger = tuple(more if at == which else one for at, one in enumerate(extents))
    us, longer = (total(sections_of(family(dtype, *one), machine)) for one in (extents, larger))
    assert 0 < us <= longer * (1 + 1e-9)


# What nobody computes and is yet written.

TRN1 = Machine.of(get_target("trn1"))
X = parameter(0, TensorType(DType.F32, (256, 512)))
Y = parameter(1, TensorType(DType.F32, (2, 512)))
SIZE, PART = X.type.nbytes, Y.type.nbytes


def read_and_written(graph: Graph) -> tuple[int, int]:
    sections = sections_of(graph, TRN1)
    read, written = sum(one.read for one in sections), sum(one.written for one in sections)
    assert total(sections) >= TRN1.dma_us(read + written)
    assert sum(sum(one.of) for one in sections) == read + written
    return read, written


@pytest.mark.parametrize(
    ("result", "read", "written"),
    [
        (X, SIZE, SIZE),
        (build.convert(X, DType.BF16), SIZE, SIZE // 2),
        (build.slice_(X, (0, 0), (2, 512)), PART, PART),
        (build.reshape(build.slice_(X, (0, 0), (2, 512)), (1024,)), PART, PART),
        (build.reverse(X, (0,)), SIZE, SIZE),
        (build.broadcast_in_dim(Y, (9, 2, 512), (1, 2)), PART, 9 * PART),
        (build.splat(1.0, X.type), 0, SIZE),
    ],
)
def test_a_result_that_no_engine_computes_is_copied(result: Node, read: int, written: int) -> None:
    graph = build.graph("copied", [X, Y], [result])
    assert read_and_written(graph) == (read, written)
    (section,) = sections_of(graph, TRN1)
    assert set(section.busy) == {"dma"}
    assert section.latency_us == TRN1.graph.section_gap


def test_a_parameter_that_stays_where_it_is_is_not_copied() -> None:
    assert read_and_written(build.graph("same", [X], [X], {0: 0})) == (0, 0)
    # The other one's memory gets what this one has.
    z = parameter(1, X.type)
    assert read_and_written(build.graph("other", [X, z], [X], {0: 1})) == (SIZE, SIZE)


def test_a_result_that_is_given_twice_is_written_twice() -> None:
    made = build.exp(X)
    assert read_and_written(build.graph("twice", [X], [made, made])) == (SIZE, 2 * SIZE)


def test_a_part_is_changed_in_place_or_of_a_copy() -> None:
    start = build.splat(0, TensorType(DType.S32, ()))
    made = build.dynamic_update_slice(X, Y, (start, start))
    in_place = build.graph("in place", [X, Y], [made], {0: 0})
    copied = build.graph("copied", [X, Y], [made])
    assert read_and_written(in_place) == (2 * PART, PART)
    assert read_and_written(copied) == (SIZE + PART, SIZE)


def test_parts_of_a_value_are_read_once_each() -> None:
    parts = [build.slice_(X, (at, 0), (at + 64, 512)) for at in range(0, 256, 64)]
    joined = build.concatenate(parts[1:] + parts[:1], 0)
    assert read_and_written(build.graph("rolled", [X], [joined])) == (SIZE, SIZE)
    same = build.add(build.exp(parts[0]), build.tanh(parts[0]))
    assert read_and_written(build.graph("same", [X], [same])) == (SIZE // 4, SIZE // 4)
    # Not more than all of it.
    over = build.concatenate([build.slice_(X, (at, 0), (at + 200, 512)) for at in (0, 56)], 0)
    assert read_and_written(build.graph("over", [X], [over]))[0] == SIZE


# Loops.

COUNT = TensorType(DType.S32, ())


def loop(bound: Node) -> Graph:
    """While n < bound: x = exp(x @ w), n += 1."""
    x, w = (parameter(i, TensorType(DType.F32, (256, 256))) for i in range(2))
    n, most = parameter(2, COUNT), parameter(3, COUNT)
    cond = Graph("cond", (x, w, n, most), (build.compare(n, most, "LT"),))
    body = Graph(
        "body", (x, w, n, most),
        (build.exp(build.matmul(x, w)), w, build.add(n, build.splat(1, COUNT)), most),
    )  # fmt: skip
    given_ = (x, w, build.splat(0, COUNT), bound)
    call = Node.make(Op.WHILE, (x.type, w.type, COUNT, COUNT), given_, {"cond": cond, "body": body})
    params = [x, w, *([bound] if bound.op is Op.PARAMETER else [])]
    return build.graph("loop", params, [build.get(call, 0)])


@pytest.mark.parametrize("turns", [1, 7, 1024])
def test_a_loop_takes_as_often_as_constants_say(turns: int) -> None:
    sections = sections_of(loop(build.splat(turns, COUNT)), TRN1)
    assert sum(one.flops for one in sections) == turns * 2 * 256**3
    assert [note for one in sections for note in one.notes] == []
    # A turn, and what is around the loop.
    (once,) = (total(sections_of(loop(build.splat(n, COUNT)), TRN1)) for n in (1,))
    turn = total(sections_of(loop(build.splat(2, COUNT)), TRN1)) - once
    assert turn > 2 * 256**3 / TRN1.peak_tflops(DType.F32) / 1e6
    assert total(sections) == pytest.approx(once + (turns - 1) * turn)


@pytest.mark.parametrize("bound", [parameter(2, COUNT), build.splat(1025, COUNT)])
def test_a_loop_whose_turns_nobody_counts_is_one_turn_and_says_so(bound: Node) -> None:
    sections = sections_of(loop(bound), TRN1)
    assert sum(one.flops for one in sections) == 2 * 256**3
    assert "a loop is counted as one iteration" in [n for one in sections for n in one.notes]
