"""Device programs: what is fused, what is shared, what is said where there are no instructions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronxcc.ir import build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import Graph, Loc, parameter
from neuronxcc.ir.node import Node, TensorType
from neuronxcc.ir.op import Op
from neuronxcc.options import Options
from nki.device import InstructionLimitError, lower
from nki.device.views import boxes, collapsed, contiguous, moved

from .device_tools import arguments, check, compiled, graph_of


def f32(index: int, *shape: int) -> Node:
    return parameter(index, TensorType(DType.F32, shape))


def typed(index: int, dtype: DType, *shape: int) -> Node:
    return parameter(index, TensorType(dtype, shape))


def softmax(x: Node) -> Node:
    last = x.type.rank - 1
    top = build.reduce(x, "max", (last,), keep=True)
    powers = build.unary(Op.EXP, build.binary(Op.SUBTRACT, x, build.broadcast_to(top, x.shape)))
    total = build.reduce(powers, "add", (last,), keep=True)
    return build.binary(Op.DIVIDE, powers, build.broadcast_to(total, x.shape))


# --- fusion --------------------------------------------------------------------------------------


def test_a_softmax_is_one_section() -> None:
    graph = graph_of(softmax(f32(0, 300, 40)))
    program = check(graph, arguments(graph))
    assert [section.kind for section in program.sections] == ["rows"]
    apart = compiled(graph, optlevel=1)
    assert len(apart.sections) == 5
    check(graph, arguments(graph), apart)
    assert apart.predict().device_us > program.predict().device_us
    assert apart.predict().hbm_bytes > program.predict().hbm_bytes


def test_rows_that_do_not_fit_are_gone_through_several_times() -> None:
    graph = graph_of(softmax(f32(0, 3, 60_000)))
    program = check(graph, arguments(graph), most=64)
    assert len(program.sections) == 1


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
def test_what_follows_a_product_is_done_while_it_leaves_psum(dtype: DType) -> None:
    x, w, b, r = (
        typed(0, dtype, 200, 70), typed(1, dtype, 70, 600), typed(2, dtype, 600),
        typed(3, dtype, 200, 600),
    )  # fmt: skip
    y = build.matmul(x, w)
    y = build.binary(Op.ADD, y, build.broadcast_in_dim(b, y.shape, (1,)))
    graph = graph_of(build.binary(Op.ADD, build.unary(Op.TANH, y), r))
    program = check(graph, arguments(graph), most=70, floor=1)
    assert [section.kind for section in program.sections] == ["product"]


@pytest.mark.slow
@given(
    st.tuples(*[st.integers(1, 3)] * 2),
    st.tuples(*[st.sampled_from([1, 3, 130])] * 3),
    st.booleans(),
    st.booleans(),
)
def test_products_of_any_layout(
    batch: tuple[int, int], sizes: tuple[int, int, int], left: bool, right: bool
) -> None:
    m, k, n = sizes
    x = f32(0, *batch, *((k, m) if left else (m, k)))
    y = f32(1, *batch, *((n, k) if right else (k, n)))
    x = build.swap_dims(x) if left else x
    y = build.swap_dims(y) if right else y
    graph = graph_of(build.matmul(x, y))
    check(graph, arguments(graph), most=2 * k + 2, floor=math.sqrt(k))


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
@pytest.mark.parametrize("lnc", [1, 2])
def test_a_single_row_lies_over_all_partitions(dtype: DType, lnc: int) -> None:
    """As one token has it: a product, and a softmax of one row."""
    x, w, b = typed(0, dtype, 1, 64), typed(1, dtype, 64, 2048), typed(2, dtype, 2048)
    y = build.binary(Op.ADD, build.matmul(x, w), build.reshape(b, (1, 2048)))
    total = build.reduce(y, "add", (1,))
    graph = graph_of(softmax(y), total)
    # The sum is one of 2048 numbers of about 8, some of which are rounded the other way.
    floor = 2048 if dtype is DType.F32 else 32
    program = check(graph, arguments(graph), compiled(graph, lnc=lnc), most=16, floor=floor)
    shares = graph_of(softmax(y))
    check(shares, arguments(shares), compiled(shares, lnc=lnc), most=300)
    assert [section.kind for section in program.sections] == ["product", "rows"]
    plain = graph_of(softmax(f32(0, 1, 2048 + 1)))
    rows = program.sections[1]
    assert rows.recording is not None
    alone = program.predict().sections[1].prediction
    assert alone is not None
    assert alone.device_us < compiled(plain).predict().device_us


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
def test_products_over_many_elements(dtype: DType) -> None:
    """What of an operand does not fit is loaded in parts; rows are reduced apart if they must."""
    x, w = typed(0, dtype, 130, 30_000), typed(1, dtype, 600, 30_000)
    y = build.matmul(x, build.swap_dims(w))
    program = compiled(graph_of(build.reduce(y, "max", (1,)), y), lnc=2)
    # Rows of 600 numbers stay on the chip: each core has those that it has computed.
    assert [section.kind for section in program.sections] == ["chain"]
    assert program.predict().bound_by in ("tensor", "dma")


def test_attention_is_two_products() -> None:
    q, k, v = (f32(i, 2, 3, 130, 16) for i in range(3))
    scores = build.dot_general(
        q, k, lhs_batch=(0, 1), rhs_batch=(0, 1), lhs_contract=(3,), rhs_contract=(3,)
    )
    shares = softmax(build.binary(Op.MULTIPLY, scores, 0.25))
    out = build.matmul(shares, v)
    graph = graph_of(build.reshape(build.transpose(out, (0, 2, 1, 3)), (2, 130, 48)))
    program = check(graph, arguments(graph), most=400, floor=1)
    assert [section.kind for section in program.sections] == ["product", "product"]


def test_equal_sections_are_recorded_once() -> None:
    y = f32(0, 8, 64)
    for i in range(6):
        w = f32(i + 1, 64, 64)
        y = build.unary(Op.TANH, build.matmul(y, w))
    graph = graph_of(y)
    # At this level operators are on their own.
    program = check(graph, arguments(graph), compiled(graph, optlevel=1), most=400, floor=1)
    assert len(program.sections) == 12
    assert len({id(section.recording) for section in program.sections}) == 2


# --- views ---------------------------------------------------------------------------------------


@pytest.mark.slow
@given(st.data())
def test_chains_of_movement(data: st.DataObject) -> None:
    x = f32(0, 4, 6, 2)
    y: Node = x
    for _ in range(data.draw(st.integers(1, 4))):
        rank = y.type.rank
        kind = data.draw(st.sampled_from(["transpose", "reshape", "slice", "reverse", "spread"]))
        if kind == "transpose":
            y = build.transpose(y, data.draw(st.permutations(range(rank))))
        elif kind == "reshape":
            size = y.type.size
            first = data.draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0]))
            y = build.reshape(y, (first, size // first))
        elif kind == "slice":
            dim = data.draw(st.integers(0, rank - 1))
            start = data.draw(st.integers(0, y.shape[dim] - 1))
            y = build.slice_dim(y, dim, start, y.shape[dim], data.draw(st.integers(1, 2)))
        elif kind == "reverse":
            y = build.reverse(y, (data.draw(st.integers(0, rank - 1)),))
        elif y.type.size < 500:
            y = build.broadcast_in_dim(y, (*y.shape, 2), range(rank))
    graph = graph_of(y, build.unary(Op.NEGATE, y))
    check(graph, arguments(graph), most=0)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_ranges_of_positions_are_boxes(shape: list[int], data: st.DataObject) -> None:
    strides = [data.draw(st.integers(-9, 9)) for _ in shape]
    dims = collapsed(tuple(zip(shape, strides, strict=True)))
    offsets = [
        sum(i * s for i, s in zip(index, strides, strict=True)) for index in np.ndindex(*shape)
    ]
    begin = data.draw(st.integers(0, len(offsets) - 1))
    count = data.draw(st.integers(1, len(offsets) - begin))
    found: list[int] = []
    for first, offset, part in boxes(dims, begin, count):
        assert first == len(found)
        sizes = [size for size, _ in part]
        found += [
            offset + sum(i * s for i, (_, s) in zip(index, part, strict=True))
            for index in np.ndindex(*sizes)
        ]
    assert found == offsets[begin : begin + count]


def test_a_reshape_of_a_transpose_is_no_view() -> None:
    x = f32(0, 3, 4)
    turned = build.transpose(x, (1, 0))
    assert moved(build.reshape(turned, (12,)), contiguous((3, 4)).permuted((1, 0))) is None


# --- what is said --------------------------------------------------------------------------------


def test_what_has_no_instructions_is_said_and_computed() -> None:
    x = f32(0, 20_000)
    values = build.sort([x], 0)
    graph = graph_of(build.unary(Op.TANH, values))
    program = lower(graph, "trn2")
    (missing,) = program.missing
    assert missing.operator == "sort"
    assert missing.reason == "a line of 20000 elements is sorted; the searches take 16384"
    assert program.coverage == 0.5
    args = arguments(graph)
    check(graph, args, program)
    made = program.predict()
    assert made.estimated_us > 0
    assert any("sort" in note for note in made.notes)


def test_floats_of_64_bits_have_a_code() -> None:
    graph = graph_of(build.unary(Op.TANH, typed(0, DType.F64, 4)))
    (missing,) = lower(graph, "trn2").missing
    assert missing.code == "NCC_ESPP004"


def test_lines_are_those_of_the_user() -> None:
    x = f32(0, 128, 256)
    y = build.unary(Op.EXP, x)
    graph = Graph("located", (x,), (y,), locs={y: Loc("model.py", 42)})
    made = lower(graph, "trn2").predict()
    (section,) = made.sections
    assert section.prediction is not None
    assert {(line.file, line.line) for line in section.prediction.lines} == {("model.py", 42)}


def test_the_time_of_a_program_is_that_of_its_sections() -> None:
    x, w = f32(0, 256, 512), f32(1, 512, 512)
    program = compiled(graph_of(softmax(build.matmul(softmax(x), w))))
    made = program.predict()
    assert made.device_us == pytest.approx(sum(part.device_us for part in made.sections))
    # Neighbours overlap, but every engine has to do all of its work.
    alone = sum(part.prediction.device_us for part in made.sections if part.prediction)
    assert max(made.busy_us.values()) <= made.device_us <= alone + 1
    assert made.instructions == program.instructions
    assert made.flops == 2 * 256 * 512 * 512
    for name in ("trn1", "trn3"):
        assert program.predict(name).target == name


def test_two_cores_share_a_section() -> None:
    x, w = f32(0, 512, 512), f32(1, 512, 512)
    graph = graph_of(softmax(build.matmul(x, w)))
    one, two = (compiled(graph, lnc=lnc) for lnc in (1, 2))
    check(graph, arguments(graph), two, most=600)
    assert not two.notes
    assert two.predict().cores == 2
    assert two.predict().device_us < one.predict().device_us
    assert compiled(graph, "trn1", lnc=2).lnc == 1
    assert compiled(graph, "trn1", lnc=2).notes == (
        "--lnc 2 does not exist on trn1: 1 physical core(s) are used",
    )


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
def test_images_that_do_not_fit_are_divided(dtype: DType) -> None:
    x, w = typed(0, dtype, 1, 3, 230, 230), typed(1, dtype, 4, 3, 7, 7)
    graph = graph_of(build.convolution(x, w, strides=2, low=3, high=2))
    check(graph, arguments(graph), most=64, floor=4)
    pooled = build.reduce_window(
        x, "max", window=(1, 1, 3, 2), strides=(1, 1, 2, 1), low=(0, 0, 1, 0), high=(0, 0, 1, 0)
    )
    check(graph_of(pooled), arguments(graph)[:1], most=0)


def test_convolutions_of_many_channels_have_instructions() -> None:
    x, w = typed(0, DType.F32, 1, 1280, 32, 32), typed(1, DType.F32, 1280, 1280, 3, 3)
    assert compiled(graph_of(build.convolution(x, w, low=1, high=1))).predict().device_us > 1000


@pytest.mark.parametrize("lnc", [1, 2])
def test_two_cores_share_convolutions_and_windows(lnc: int) -> None:
    x, w, s = f32(0, 1, 5, 9, 12), f32(1, 6, 5, 3, 3), f32(2, 5, 1, 2, 2)
    y = build.convolution(x, w, low=1, high=1)
    pooled = build.reduce_window(
        y, "max", window=(1, 1, 2, 2), strides=(1, 1, 2, 2), low=(0, 0, 0, 0), high=(0, 0, 0, 0)
    )
    single = build.convolution(x, s, feature_group_count=5)
    graph = graph_of(build.unary(Op.TANH, pooled), single, build.pad(single, 2.0, 1, 1))
    check(graph, arguments(graph), compiled(graph, lnc=lnc), most=64, floor=1)


def test_casts_of_products_are_seen_in_the_time() -> None:
    # Large enough that the array's work counts, and not what the first instruction waits for.
    x, w = f32(0, 1024, 1024), f32(1, 1024, 1024)
    graph = graph_of(build.matmul(x, w))
    plain = compiled(graph, passes=True).predict()
    cast = compiled(graph, passes=True, auto_cast="matmult").predict()
    assert cast.busy_us["tensor"] < plain.busy_us["tensor"] / 2


def test_too_many_instructions_are_an_error() -> None:
    graph = graph_of(softmax(f32(0, 300, 40)))
    allowed = (("--internal-max-instruction-limit", "5"),)
    with pytest.raises(InstructionLimitError) as raised:
        compiled(graph, recorded=allowed)
    assert str(raised.value) == (
        f"[NCC_EBVF030] number of instructions generated exceeds the limit: "
        f"{raised.value.instructions}, allowed are 5 (--internal-max-instruction-limit). Split the "
        "model: pipeline or tensor parallelism, or several smaller graphs"
    )


def test_options_without_effect_are_said() -> None:
    graph = graph_of(build.unary(Op.EXP, f32(0, 4)))
    program = compiled(
        graph, lnc=1, optlevel=3, model_type="transformer", distribution_strategy="fsdp",
        enable_saturate_infinity=True,
    )  # fmt: skip
    assert program.notes == (
        "--model-type transformer changes no instruction of device programs",
        "--enable-saturate-infinity changes no instruction of device programs",
    )


def test_the_order_of_instructions_changes_no_value() -> None:
    """The scheduler moves instructions; padding writes some elements twice and keeps its order."""
    x = f32(0, 300, 200)
    padded = build.pad(build.unary(Op.NEGATE, x), 3.0, (2, 1), (0, 5))
    graph = graph_of(softmax(padded), padded)
    check(graph, arguments(graph), most=16)


def test_options_without_a_target_take_its_name() -> None:
    graph = graph_of(build.unary(Op.EXP, f32(0, 4)))
    assert lower(graph, options=Options(target="trn1")).target.name == "trn1"


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
@pytest.mark.parametrize("kind", ["max", "min"])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1025), (3, 5000), (16, 2048)])
def test_the_place_of_an_extreme_of_few_long_rows(
    rows: int, columns: int, kind: str, dtype: DType, lnc: int
) -> None:
    """Each row lies over several partitions: extremes that are equal, infinite, or no numbers."""
    wide = typed(0, dtype, rows, columns + 3)
    x = build.slice_(wide, (0, 1), (rows, columns + 1))  # its rows do not follow each other
    node = build.make(Op.ARG_REDUCE, (x,), dim=1, kind=kind, dtype=DType.S32)
    whole = build.make(Op.ARG_REDUCE, (wide,), dim=1, kind=kind, dtype=DType.S32)
    graph = graph_of(node, whole)
    (given,) = arguments(graph)
    sign = 1 if kind == "max" else -1
    given[0, [columns // 2, columns - 1, columns]] = 100 * sign
    if rows > 1:
        given[1, :] = -np.inf * sign
        given[2, [7, columns - 2]] = np.nan
    program = compiled(graph, lnc=lnc)
    check(graph, [given], program, most=0)
