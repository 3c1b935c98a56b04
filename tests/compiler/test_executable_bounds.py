"""What a kernel is said to touch, against running it with every place written down."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from neuronxcc.codegen import build
from neuronxcc.codegen.bounds import Reach, reaches
from neuronxcc.codegen.loop import Access, Dim, Kernel, Kind, Scalar, Slot, Store
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.op import Op
from neuronxcc.program.steps.loop import LoopStep
from tests.compiler.executable_programs import Maker, random
from torch_neuronx.program.executable import Executable


def kernel(value: Scalar, *slots: DType, extent: int = 10) -> Kernel:
    """Stores `value` at its position into the last slot."""
    store = Store(Access(len(slots) - 1, (1,)), value)
    return Kernel("k", (Dim(extent),), tuple(map(Slot, slots)), (store,))


def gathered(index: Scalar) -> Kernel:
    """out[i] = x[index]; the kernel's slots are x, where indices come from, and out."""
    value = build.load(DType.F32, 0, (0,), indices=[(index, 1)])
    return kernel(value, DType.F32, DType.S64, DType.F32)


DATA = build.load(DType.S64, 1, (1,))
POSITION = build.index(0)
EVERYTHING = Reach(-(1 << 63), 1 << 63, written=False)


@pytest.mark.parametrize(
    ("index", "low", "high"),
    [
        (build.op(Op.CLAMP, 0, DATA, 7), 0, 8),
        (build.op(Op.MINIMUM, build.op(Op.MAXIMUM, DATA, 2), 5), 2, 6),
        (build.op(Op.REMAINDER, build.op(Op.ABS, build.op(Op.CLAMP, -9, DATA, 9)), 4), 0, 4),
        (build.op(Op.REMAINDER, DATA, 4), -3, 4),
        (build.op(Op.AND, DATA, 15), 0, 16),
        (POSITION, 0, 10),
        (build.op(Op.SUBTRACT, 9, POSITION), 0, 10),
        (build.op(Op.ADD, build.op(Op.MULTIPLY, POSITION, 3), -2), -2, 26),
        (build.op(Op.DIVIDE, POSITION, 3), 0, 4),
        (build.op(Op.DIVIDE, build.op(Op.SUBTRACT, POSITION, 5), 2), -2, 3),
        (build.op(Op.NEGATE, POSITION), -9, 1),
        (build.select(build.compare("LT", DATA, 0), 3, POSITION), 0, 10),
        (build.convert(build.load(DType.U8, 1, (1,)), DType.S64), 0, 256),
        (build.convert(build.load(DType.S8, 1, (1,)), DType.S64), -128, 128),
    ],
)
def test_ranges_of_indices(index: Scalar, low: int, high: int) -> None:
    slots = {s.access.slot: s.dtype for s in [index, *index.srcs] if s.access is not None}
    if slots.get(1) in (None, DType.S64):
        assert reaches(gathered(index))[0] == Reach(low, high, written=False)
    else:
        value = build.load(DType.F32, 0, (0,), indices=[(index, 1)])
        assert reaches(kernel(value, DType.F32, slots[1], DType.F32))[0] == Reach(
            low, high, written=False
        )


@pytest.mark.parametrize(
    "index",
    [
        DATA,
        build.op(Op.ADD, build.op(Op.MAXIMUM, DATA, 0), 1),  # wraps around
        build.op(Op.DIVIDE, DATA, DATA),
        build.op(Op.SHIFT_LEFT, POSITION, 1),  # not understood
    ],
)
def test_indices_that_cannot_be_bounded(index: Scalar) -> None:
    assert reaches(gathered(index))[0] == EVERYTHING
    maker = Maker()
    x, i = maker.buffer("input", (10,)), maker.buffer("input", (10,), DType.S64)
    out = maker.buffer("output", (10,))
    maker.steps.append(LoopStep(gathered(index), ((x, 0), (i, 0), (out, 0))))
    with pytest.raises(ValueError, match="kernel k: nothing keeps its index into slot 0"):
        Executable(maker.program(), "neuron")


def masked(mask: Scalar, offset: int) -> Kernel:
    """out[i] = x[i + offset] where the mask holds."""
    value = build.load(DType.F32, 0, (1,), offset, mask=mask)
    return kernel(value, DType.F32, DType.F32)


@pytest.mark.parametrize(
    ("mask", "offset", "low", "high"),
    [
        (build.compare("GE", POSITION, 2), -2, 0, 8),
        (build.compare("LT", POSITION, 4), 0, 0, 4),
        (build.compare("GT", 4, POSITION), 0, 0, 4),
        (build.compare("EQ", POSITION, 4), 0, 4, 5),
        # 3 - position == 0, and 3 - 2 * position >= -4: backwards
        (
            build.compare("EQ", build.op(Op.ADD, build.op(Op.MULTIPLY, POSITION, -1), 3), 0),
            -3,
            0,
            1,
        ),
        (
            build.compare("GE", build.op(Op.ADD, build.op(Op.MULTIPLY, POSITION, -2), 3), -4),
            0,
            0,
            4,
        ),
        (build.op(Op.NOT, build.compare("GE", POSITION, 4)), 0, 0, 4),
        (
            build.op(Op.AND, build.compare("GE", POSITION, 2), build.compare("LT", POSITION, 7)),
            -2,
            0,
            5,
        ),
        (
            build.op(
                Op.NOT,
                build.op(Op.OR, build.compare("LT", POSITION, 2), build.compare("GE", POSITION, 7)),
            ),
            -2,
            0,
            5,
        ),
        (build.compare("GE", build.op(Op.SUBTRACT, POSITION, 3), 0), -3, 0, 7),
        (build.compare("LE", build.op(Op.MULTIPLY, POSITION, 2), 7), 0, 0, 4),
        (build.compare("LT", build.op(Op.SUBTRACT, 9, POSITION), 3), -7, 0, 3),
        (build.compare("LT", POSITION, 0), -100, 0, 0),  # never
        (build.const(0, DType.PRED), -100, 0, 0),
        (build.compare("NE", POSITION, 3), 0, 0, 10),
        (
            build.op(Op.OR, build.compare("LT", POSITION, 2), build.compare("GE", POSITION, 7)),
            0,
            0,
            10,
        ),
        (
            build.compare("LT", build.convert(build.index(0, DType.S32), DType.S64), 4),
            0,
            0,
            4,
        ),
    ],
)
def test_masks_narrow_what_is_touched(mask: Scalar, offset: int, low: int, high: int) -> None:
    assert reaches(masked(mask, offset))[0] == Reach(low, high, written=False)


def test_stores() -> None:
    value = build.load(DType.F32, 0, (1,))
    mask = build.compare("GE", POSITION, 4)
    stores = (
        Store(Access(1, (2,), 3), value),
        Store(Access(2, (-1,), 9), value, mask=mask),
        Store(Access(3, (0,), 0, ((build.op(Op.CLAMP, 1, DATA4, 3), 2),)), value, combine=Op.ADD),
    )
    slots = (Slot(DType.F32),) * 4 + (Slot(DType.S64),)
    assert reaches(Kernel("k", (Dim(10),), slots, stores)) == (
        Reach(0, 10, written=False),
        Reach(3, 22, written=True),
        Reach(0, 6, written=True),
        Reach(2, 7, written=True),
        Reach(0, 10, written=False),
    )


DATA4 = build.load(DType.S64, 4, (1,))


def test_tiles_and_empty_spaces_are_not_touched() -> None:
    store = Store(Access(1, (1,)), build.load(DType.F32, 0, (0,)))
    slots = (Slot(DType.F32, tile=True), Slot(DType.F32))
    found = reaches(Kernel("k", (Dim(4),), slots, (store,)))
    assert found == (Reach(0, 0, written=False), Reach(0, 4, written=True))
    store = Store(Access(1, (1,)), build.load(DType.F32, 0, (0,)))
    found = reaches(Kernel("k", (Dim(0),), (Slot(DType.F32),) * 2, (store,)))
    assert found == (Reach(0, 0, written=False), Reach(0, 0, written=True))


def test_the_position_of_an_extreme() -> None:
    row = build.load(DType.F32, 0, (5, 1))
    best = build.arg(Op.MAXIMUM, row)
    value = build.load(DType.F32, 1, (0, 0), indices=[(best, 1)])
    dims = (Dim(3), Dim(5, Kind.REDUCE))
    found = reaches(Kernel("k", dims, (Slot(DType.F32),) * 3, (Store(Access(2, (1, 0)), value),)))
    assert found[1] == Reach(0, 5, written=False)


# ---- against brute force


@st.composite
def expressions(draw: st.DrawFn) -> Scalar:
    pool: list[Scalar] = [build.index(0), build.index(1), build.load(DType.S64, 1, (3, 1))]
    for _ in range(draw(st.integers(1, 6))):
        x, y = draw(st.sampled_from(pool)), draw(st.sampled_from([*pool, None]))
        other = draw(st.integers(-5, 9)) if y is None else y
        op = draw(st.sampled_from([Op.ADD, Op.SUBTRACT, Op.MULTIPLY, Op.MAXIMUM, Op.MINIMUM,
                                   Op.DIVIDE, Op.REMAINDER, Op.AND, Op.NEGATE, Op.ABS, Op.CLAMP,
                                   Op.SELECT]))  # fmt: skip
        if op in {Op.NEGATE, Op.ABS}:
            pool.append(build.op(op, x))
        elif op is Op.CLAMP:
            low = draw(st.integers(-5, 5))
            pool.append(build.op(op, low, x, low + draw(st.integers(0, 5))))
        elif op is Op.SELECT:
            pool.append(build.select(build.compare("LT", x, other), other, x))
        else:
            pool.append(build.op(op, x, other))
    return pool[-1]


@st.composite
def masks(draw: st.DrawFn) -> Scalar:
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        direction = draw(st.sampled_from(["LT", "LE", "GT", "GE", "EQ", "NE"]))
        part = build.compare(direction, draw(expressions()), draw(st.integers(-6, 9)))
        parts.append(build.op(Op.NOT, part) if draw(st.booleans()) else part)
    mask = parts[0]
    for part in parts[1:]:
        mask = build.op(draw(st.sampled_from([Op.AND, Op.OR])), mask, part)
    return mask


def value_at(scalar: Scalar, place: tuple[int, int], data: np.ndarray) -> int:
    """Exact, without wrapping around."""
    srcs = [value_at(src, place, data) for src in scalar.srcs]
    if scalar.what == "const":
        return int(scalar.value)  # type: ignore[arg-type]
    if scalar.what == "index":
        return place[scalar.dim]
    if scalar.what == "load":
        return int(data[place])
    if scalar.op in {Op.DIVIDE, Op.REMAINDER}:
        assume(srcs[1] != 0)
        quotient = abs(srcs[0]) // abs(srcs[1]) * (1 if (srcs[0] < 0) == (srcs[1] < 0) else -1)
        return quotient if scalar.op is Op.DIVIDE else srcs[0] - quotient * srcs[1]
    assert scalar.op is not None
    meaning: dict[Op, Callable[[], int]] = {
        Op.ADD: lambda: srcs[0] + srcs[1],
        Op.SUBTRACT: lambda: srcs[0] - srcs[1],
        Op.MULTIPLY: lambda: srcs[0] * srcs[1],
        Op.MAXIMUM: lambda: max(srcs),
        Op.MINIMUM: lambda: min(srcs),
        Op.AND: lambda: srcs[0] & srcs[1],
        Op.OR: lambda: srcs[0] | srcs[1],
        Op.NOT: lambda: not srcs[0],
        Op.NEGATE: lambda: -srcs[0],
        Op.ABS: lambda: abs(srcs[0]),
        Op.CLAMP: lambda: min(max(srcs[1], srcs[0]), srcs[2]),
        Op.SELECT: lambda: srcs[1] if srcs[0] else srcs[2],
        Op.COMPARE: lambda: _COMPARE[scalar.direction](srcs[0], srcs[1]),
    }
    return int(meaning[scalar.op]())


_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
    "EQ": operator.eq,
    "NE": operator.ne,
}


@given(
    index=expressions(),
    mask=st.none() | masks(),
    strides=st.tuples(st.integers(-3, 3), st.integers(-3, 3)),
    seed=st.integers(0, 100),
)
@settings(max_examples=400)
def test_nothing_outside_is_touched(
    index: Scalar, mask: Scalar | None, strides: tuple[int, int], seed: int
) -> None:
    data = np.random.default_rng(seed).integers(-20, 20, (4, 3))
    value = build.load(DType.F32, 0, strides, 1, indices=[(index, 2)], mask=mask)
    store = Store(Access(2, (3, 1)), value)
    slots = (Slot(DType.F32), Slot(DType.S64), Slot(DType.F32))
    reach = reaches(Kernel("k", (Dim(4), Dim(3)), slots, (store,)))[0]
    for i, j in itertools.product(range(4), range(3)):
        if mask is not None and not value_at(mask, (i, j), data):
            continue
        at = 1 + strides[0] * i + strides[1] * j + 2 * value_at(index, (i, j), data)
        if abs(at) < 1 << 62:
            assert reach.low <= at < reach.high


def test_a_padded_copy_runs() -> None:
    """What LOW makes of PAD: a masked load whose place lies outside without its mask."""
    maker = Maker()
    x, out = maker.buffer("input", (6,)), maker.buffer("output", (10,))
    mask = build.op(Op.AND, build.compare("GE", POSITION, 2), build.compare("LT", POSITION, 8))
    maker.steps.append(LoopStep(masked(mask, -2), ((x, 0), (out, 0))))
    a = random((6,))
    (got,) = Executable(maker.program(), "neuron")((a.to("neuron"),))
    assert torch.equal(got.cpu(), torch.nn.functional.pad(a, (2, 2)))
