"""The operator table: documented gaps per target, engines, costs; what conversions keep."""

import numpy as np
import pytest

from neuronxcc.ir import DType, Group, Node, Op, TensorType, build, indexing, parameter
from neuronxcc.ir.arithmetic import cast
from neuronxcc.ir.gaps import GAPS, gaps
from neuronxcc.ir.operators.definition import Cost
from neuronxcc.ir.table import TABLE
from neuronxcc.passes.match import lossless
from neuronxcc.targets import TARGETS, Engine, get_target


def p(dtype: DType, *shape: int) -> Node:
    return parameter(0, TensorType(dtype, shape))


F, S32, S64 = p(DType.F32, 4, 8), p(DType.S32, 4, 8), p(DType.S64, 4, 8)
IMAGE, WEIGHTS = p(DType.F32, 1, 2, 8), p(DType.F32, 3, 2, 2)
ROWS = build.iota(DType.S32, (5,), 0)
EVERYWHERE = {target.name for target in TARGETS}
OLD = {"trn1", "trn1n", "inf2", "trn2"}
NEW = {"trn2", "trn3"}

HIT: list[tuple[str, set[str], Node]] = [
    ("NCC_EUOC002", EVERYWHERE, build.host_call("aten::foo", [F.type], [F])),
    ("NCC_ESPP004", EVERYWHERE, build.exp(p(DType.F64, 2))),
    ("NCC_EVRF004", EVERYWHERE, build.reduce(p(DType.C64, 4), "add")),
    ("NCC_EVRF051", OLD, build.convert(p(DType.F8E4M3FN, 4), DType.BF16)),
    ("NCC_ESFH002", EVERYWHERE, build.constant(1 << 40, DType.U64)),
    ("NCC_EVRF010", EVERYWHERE, build.convolution(IMAGE, WEIGHTS, lhs_dilation=2, rhs_dilation=2)),
    ("NCC_EVRF011", EVERYWHERE, build.convolution(IMAGE, WEIGHTS, lhs_dilation=2, strides=2)),
    ("NCC_EVRF013", EVERYWHERE, build.topk(S32, 2)),
    ("NCC_EVRF016", EVERYWHERE, indexing.put(S32, ROWS, p(DType.S32, 5, 8), 0, "max")),
    ("NCC_EVRF017", EVERYWHERE, build.reduce_window(F, "max", 2, base_dilation=2)),
    ("NCC_EVRF018", EVERYWHERE, build.reduce_window(F, "max", 2, window_dilation=2)),
    ("NCC_EVRF022", EVERYWHERE, build.shift_right_arithmetic(S64, 1)),
    ("NCC_EVRF031", EVERYWHERE, indexing.put(F, ROWS, p(DType.F32, 5, 8), 0, "set")),
    ("NCC_EVRF056", EVERYWHERE, indexing.take(F, ROWS, 0)),
    ("NCC_EVRF035", EVERYWHERE, build.matmul(S64, build.transpose(S64, (1, 0)))),
    ("NCC_EVRF035", NEW, build.matmul(S32, build.transpose(S32, (1, 0)))),
    ("NCC_EVRF060", EVERYWHERE, indexing.put(S32, p(DType.S32, 2), p(DType.S32, 2, 8), 0, "add")),
    ("NCC_EVRF061", EVERYWHERE, build.all_reduce(S32, "add", [(0, 1)])),
    ("NCC_EVRF062", EVERYWHERE, build.power(S64, S64)),
    ("NCC_EVRF063", EVERYWHERE, build.reduce_scatter(S32, "add", 0, [(0, 1)])),
]


@pytest.mark.parametrize(
    ("code", "targets", "node"), HIT, ids=[f"{c}-{n.op.value}" for c, _, n in HIT]
)
def test_gap(code: str, targets: set[str], node: Node) -> None:
    for target in EVERYWHERE:
        codes = {gap.code for gap in gaps(node, get_target(target))}
        assert (code in codes) == (target in targets)


def test_every_gap_is_shown() -> None:
    # EVRF052 is about chips that do not exist yet: test_made_up_chip.py has one.
    assert {gap.code for gap in GAPS} == {code for code, _, _ in HIT} | {"NCC_EVRF052"}
    for gap in GAPS:
        assert gap.text
        assert gap.remedy


def test_what_the_hardware_has_meets_no_gap() -> None:
    fine = [
        build.matmul(F, build.transpose(F, (1, 0))),
        build.add(p(DType.C64, 2), p(DType.C64, 2)),
        build.shift_right_arithmetic(S32, 1),
        indexing.take(F, build.iota(DType.S32, (4,), 0), 0),
        build.topk(F, 2),
        build.convolution(IMAGE, WEIGHTS, strides=2, rhs_dilation=2),
    ]
    assert [gaps(node, get_target(target)) for node in fine for target in EVERYWHERE] == [[]] * (
        len(fine) * len(EVERYWHERE)
    )


def test_engines_and_costs() -> None:
    assert {op for op in Op if TABLE[op].engine is Engine.TENSOR} == {
        Op.DOT_GENERAL,
        Op.CONVOLUTION,
    }
    assert {op for op in Op if TABLE[op].engine is Engine.CC} == Group.COLLECTIVE
    assert {op for op in Op if TABLE[op].engine is Engine.HOST} == {Op.HOST_CALL}
    assert TABLE[Op.ADD].engine is Engine.VECTOR
    assert TABLE[Op.EXP].engine is Engine.SCALAR
    assert TABLE[Op.TRANSPOSE].cost is Cost.BYTES
    assert all(TABLE[op].cost is Cost.ELEMENTS for op in Group.ELEMENTWISE)


@pytest.mark.parametrize("source", list(DType), ids=lambda d: d.value)
@pytest.mark.parametrize("target", list(DType), ids=lambda d: d.value)
def test_lossless_conversions_come_back(source: DType, target: DType) -> None:
    """All values of small types, the extremes and neighbours of one of large ones."""
    if not lossless(source, target):
        return
    if source.itemsize <= 2 and source is not DType.PRED:
        count = 1 << (8 * source.itemsize)
        values = np.arange(count).astype(f"u{source.itemsize}").view(source.numpy)
    elif source.is_float:
        info = np.finfo(source.numpy)
        listed = [0.0, -0.0, np.inf, np.nan, info.max, info.smallest_subnormal, 1 + info.eps]
        values = np.array(listed, source.numpy)
    elif source.is_integer:
        limits = np.iinfo(source.numpy)
        values = np.array([limits.min, 0, 1, limits.max - 1, limits.max], source.numpy)
    else:
        values = np.array([False, True]) if source is DType.PRED else np.array([1j], source.numpy)
    with np.errstate(all="ignore"):
        back = cast(cast(values, target), source)
        nan, nan_back = (np.isnan(v.astype(np.complex128)) for v in (values, back))
    assert (nan == nan_back).all()
    bits = f"V{source.itemsize}"
    assert (nan | (back.view(bits) == values.view(bits))).all()


def test_lossy_conversions_are_not_lossless() -> None:
    lossy = [
        (DType.F32, DType.BF16), (DType.F16, DType.BF16), (DType.BF16, DType.F16),
        (DType.S32, DType.F32), (DType.S64, DType.F64), (DType.S8, DType.U8), (DType.U8, DType.S8),
        (DType.F8E4M3, DType.F8E4M3FN), (DType.F32, DType.S64), (DType.S8, DType.PRED),
        (DType.F8E5M2, DType.F8E4M3),
    ]  # fmt: skip
    assert not any(lossless(*pair) for pair in lossy)
