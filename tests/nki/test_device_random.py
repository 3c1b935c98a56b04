"""Random numbers by instructions: their distributions are right, and dropout fits its mask."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from neuronxcc.ir import build
from neuronxcc.ir.calls import CHECK
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import Graph, parameter
from neuronxcc.ir.node import Node, Operand, TensorType
from neuronxcc.ir.op import Op
from neuronxcc.options import Options
from nki.device import DeviceProgram, lower

TYPE = TensorType(DType.F32, (301, 67))


def call(
    target: str, args: tuple[Any, ...], types: tuple[TensorType, ...] = (TYPE,),
    given: tuple[Node, ...] = (), kwargs: tuple[tuple[str, Any], ...] = (),
) -> Node:  # fmt: skip
    return Node.make(
        Op.CUSTOM_CALL, types, given,
        {"target": target, "args": args, "kwargs": kwargs, "device": True, "sequence": 0},
    )  # fmt: skip


def lowered(
    graph: Graph, target: str = "trn2", *, optlevel: int = 2, lnc: int = 1
) -> DeviceProgram:
    options = Options(target=target, optlevel=optlevel, lnc=lnc)
    program = lower(graph, target, options, passes=False)
    assert not program.missing, [section.reason for section in program.missing]
    return program


def drawn(node: Node, target: str = "trn2") -> np.ndarray:
    (found,) = lowered(Graph("test", (), (node,)), target).run([], by="reference")
    return found.astype(np.float64)


def moments(found: np.ndarray, mean: float, deviation: float) -> None:
    """Six standard errors of a mean and of a deviation: of 20167 numbers."""
    error = deviation / math.sqrt(found.size)
    assert abs(found.mean() - mean) < 6 * error
    assert abs(found.std() / deviation - 1) < 6 * 2 / math.sqrt(found.size)


CHIPS = ["trn1", "trn2", "trn3"]


@pytest.mark.parametrize("chip", CHIPS)
def test_uniform(chip: str) -> None:
    found = drawn(call("aten::rand.default", (TYPE.shape,)), chip)
    assert found.shape == TYPE.shape
    assert found.min() >= 0
    assert found.max() < 1
    moments(found, 0.5, math.sqrt(1 / 12))
    shares, _ = np.histogram(found, 16, (0, 1))
    # Each has its share within six standard errors.
    expected = found.size / 16
    assert abs(shares - expected).max() < 6 * math.sqrt(expected)


@pytest.mark.parametrize("chip", CHIPS)
def test_normal(chip: str) -> None:
    node = call("aten::normal.float_float", (3.0, 0.5, TYPE.shape))
    found = drawn(node, chip)
    moments(found, 3.0, 0.5)
    within = [(abs(found - 3.0) < k * 0.5).mean() for k in (1, 2, 3)]
    np.testing.assert_allclose(within, [0.6827, 0.9545, 0.9973], atol=0.02)


def test_of_a_range() -> None:
    source = build.constant(np.zeros(TYPE.shape, np.float32), DType.F32)
    found = drawn(call("aten::uniform.default", (Operand(0), -2.0, 6.0), given=(source,)))
    moments(found, 2.0, 8 / math.sqrt(12))
    assert found.min() >= -2
    assert found.max() < 6


def test_exponential() -> None:
    source = build.constant(np.zeros(TYPE.shape, np.float32), DType.F32)
    found = drawn(call("aten::exponential.default", (Operand(0), 2.0), given=(source,)))
    assert found.min() >= 0
    assert found.mean() == pytest.approx(0.5, rel=0.05)
    assert np.median(found) == pytest.approx(math.log(2) / 2, rel=0.05)


@pytest.mark.parametrize("dtype", [DType.S32, DType.S64, DType.F32])
def test_integers(dtype: DType) -> None:
    node = call("aten::randint.low", (-3, 4, TYPE.shape), (TensorType(dtype, TYPE.shape),))
    values, counts = np.unique(drawn(node), return_counts=True)
    assert values.tolist() == list(range(-3, 4))
    expected = TYPE.size / 7
    assert abs(counts - expected).max() < 6 * math.sqrt(expected)


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("p", [0.0, 0.1, 1.0])
def test_choices(chip: str, p: float) -> None:
    source = build.constant(np.zeros(TYPE.shape, np.float32), DType.F32)
    found = drawn(call("aten::bernoulli.p", (Operand(0), p), given=(source,)), chip)
    assert set(np.unique(found)) <= {0.0, 1.0}
    assert abs(found.mean() - p) <= 6 * math.sqrt(p * (1 - p) / found.size)


def test_choices_by_a_probability_each() -> None:
    x = parameter(0, TYPE, "x")
    node = call("aten::bernoulli.default", (Operand(0),), given=(x,))
    program = lowered(Graph("test", (x,), (node,)))
    chances = np.linspace(0, 1, TYPE.size, dtype=np.float32).reshape(TYPE.shape)
    (found,) = program.run([chances], by="reference")
    assert set(np.unique(found)) == {0.0, 1.0}
    for low in (0.0, 0.25, 0.5, 0.75):
        here = (chances >= low) & (chances < low + 0.25)
        assert found[here].mean() == pytest.approx(low + 0.125, abs=0.05)


@pytest.mark.parametrize("optlevel", [1, 2])
@pytest.mark.parametrize("shape", [TYPE.shape, (1, 67), (301, 1), (1,), ()])
@pytest.mark.parametrize("constant", [True, False])
def test_a_parameter_for_each_number_is_its_own(
    shape: tuple[int, ...], optlevel: int, *, constant: bool
) -> None:
    """Given by number, broadcast, or one for each: what is drawn fits it, or none are drawn."""
    x = parameter(0, TYPE, "x")
    type_ = TensorType(DType.F32, shape)
    p = build.splat(1.0, type_) if constant else parameter(1, type_, "p")
    node = call("aten::bernoulli.Tensor", (Operand(0), Operand(1)), given=(x, p))
    params = (x,) if constant else (x, p)
    options = Options(target="trn2", optlevel=optlevel)
    program = lower(Graph("test", params, (node,)), "trn2", options, passes=False)
    if program.missing:
        assert shape != TYPE.shape
        assert "do not lie as the numbers" in program.missing[0].reason
        return
    values = [np.zeros(TYPE.shape, np.float32), np.ones(shape, np.float32)]
    (found,) = program.run(values[: len(params)], by="reference")
    assert (found == 1).all()


MEANS = np.linspace(-100, 100, TYPE.size, dtype=np.float32).reshape(TYPE.shape)
WIDTHS = np.linspace(0, 3, TYPE.size, dtype=np.float32).reshape(TYPE.shape)


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("overload", ["Tensor_Tensor", "Tensor_float", "float_Tensor"])
def test_normal_with_a_mean_or_a_deviation_each(overload: str, chip: str) -> None:
    tensors = [MEANS, WIDTHS][overload.startswith("float") : 1 + overload.endswith("Tensor")]
    given = tuple(parameter(i, TYPE) for i in range(len(tensors)))
    args: tuple[Any, ...] = tuple(Operand(i) for i in range(len(tensors)))
    mean: Any = MEANS
    width: Any = WIDTHS
    if overload == "Tensor_float":
        args, width = (*args, 0.5), np.float32(0.5)
    elif overload == "float_Tensor":
        args, mean = (2.0, *args), np.float32(2.0)
    node = call(f"aten::normal.{overload}", args, given=given)
    (found,) = lowered(Graph("test", given, (node,)), chip).run(tensors, by="reference")
    with np.errstate(invalid="ignore", divide="ignore"):
        z = ((found - mean) / width).astype(np.float64)[1:]  # the first deviation is 0
    moments(z, 0.0, 1.0)


def like_a_distribution(found: np.ndarray, cdf: Callable[[np.ndarray], np.ndarray]) -> None:
    """The largest distance of what was drawn from its distribution function: one in a million."""
    assert stats.kstest(found.reshape(-1), cdf).pvalue > 1e-6


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize(("median", "width"), [(0.0, 1.0), (3.0, 0.25)])
def test_cauchy(chip: str, median: float, width: float) -> None:
    source = build.constant(np.zeros(TYPE.shape, np.float32), DType.F32)
    found = drawn(call("aten::cauchy.default", (Operand(0), median, width), given=(source,)), chip)
    assert np.isfinite(found).all()
    like_a_distribution(found, stats.cauchy(median, width).cdf)


@pytest.mark.parametrize("chip", CHIPS)
def test_log_normal(chip: str) -> None:
    source = build.constant(np.zeros(TYPE.shape, np.float32), DType.F32)
    found = drawn(call("aten::log_normal.default", (Operand(0), 0.5, 0.75), given=(source,)), chip)
    like_a_distribution(found, stats.lognorm(0.75, scale=math.exp(0.5)).cdf)


@pytest.mark.parametrize("dtype", [DType.F32, DType.S64])
@pytest.mark.parametrize("p", [0.05, 0.5, 0.9, 1.0])
def test_geometric(p: float, dtype: DType) -> None:
    source = build.constant(np.zeros(TYPE.shape, dtype.numpy), dtype)
    types = (TensorType(dtype, TYPE.shape),)
    found = drawn(call("aten::geometric.default", (Operand(0), p), types, (source,)))
    assert (found == np.round(found)).all()
    values, counts = np.unique(found, return_counts=True)
    assert values[0] == 1
    shares = stats.geom(p).pmf(values)
    error = np.sqrt(found.size * shares * (1 - shares)) + 1
    assert (abs(counts - found.size * shares) <= 6 * error).all()


def dropout(dtype: DType, p: float = 0.25) -> Graph:
    """Of x * 2, with the sum of rows after it, and the mask as backward needs it."""
    type_ = TensorType(dtype, TYPE.shape)
    x = parameter(0, type_, "x")
    given = build.binary(Op.MULTIPLY, x, 2.0)
    node = call(
        "aten::native_dropout.default", (Operand(0), p, True),
        (type_, TensorType(DType.PRED, TYPE.shape)), (given,),
    )  # fmt: skip
    out, mask = build.results(node)
    return Graph("test", (x,), (build.binary(Op.ADD, out, 1.0), mask))


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("optlevel", [1, 2])
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
def test_dropout(dtype: DType, optlevel: int, lnc: int) -> None:
    graph = dropout(dtype)
    program = lowered(graph, optlevel=optlevel, lnc=lnc)
    x = np.random.default_rng(0).normal(size=TYPE.shape).astype(dtype.numpy)
    found, mask = program.run([x], by="reference")
    assert abs(mask.mean() - 0.75) <= 6 * math.sqrt(0.25 * 0.75 / mask.size)
    np.testing.assert_array_equal(found[~mask], np.ones((), dtype.numpy))
    wide = x.astype(np.float64) * 2 / 0.75 + 1
    eps = 2.0**-7 if dtype is DType.BF16 else 2.0**-22
    np.testing.assert_allclose(
        found[mask].astype(np.float64), wide[mask], rtol=2 * eps, atol=2 * eps
    )
    if lnc == 1 and optlevel == 2:
        # What is left is computed with its neighbours: x goes in, the mask and the result out.
        assert [section.kind for section in program.sections].count("random") == 1
        assert len(program.sections) <= 3
    halves = mask[: len(mask) // 2], mask[-(len(mask) // 2) :]
    assert (halves[0] != halves[1]).any()


def test_who_calls_draws_them() -> None:
    """So that a seed means the same: the call gives the mask, and instructions do the rest."""
    program = lowered(dropout(DType.F32))
    wanted = np.zeros(TYPE.shape, np.bool_)
    wanted[::3] = True
    asked = []

    def run(node: Node, arrays: Any) -> list[np.ndarray]:
        asked.append(node["target"])
        return [arrays[0] * wanted / np.float32(0.75), wanted]

    x = np.ones(TYPE.shape, np.float32)
    found, mask = program.run([x], run)
    assert asked == ["aten::native_dropout.default"]
    np.testing.assert_array_equal(mask, wanted)
    np.testing.assert_allclose(found, np.where(wanted, 2 / 0.75 + 1, 1), rtol=1e-6)


def test_a_check_has_its_place_and_is_the_hosts() -> None:
    x = parameter(0, TensorType(DType.S32, (5,)))
    every = build.reduce(build.compare(x, build.splat(0, x.type), "NE"), "and", (0,))
    node = call(
        CHECK, (Operand(0), 1, 1, "ZeroDivisionError", False), (every.type,), (every,),
    )  # fmt: skip
    program = lowered(Graph("test", (x,), (build.multiply(x, x), node)))
    values = np.arange(1, 6, dtype=np.int32)
    squares, zero = program.run([values], by="reference")
    np.testing.assert_array_equal(squares, values**2)
    assert zero == 0
    asked: list[Any] = []

    def run(node: Node, arrays: Any) -> list[np.ndarray]:
        asked.append((node["target"], bool(arrays[0])))
        return [np.zeros((), np.bool_)]

    program.run([values], run)
    program.run([values - 1], run)
    assert asked == [(CHECK, True), (CHECK, False)]


def chosen(
    weights: np.ndarray, count: int, *, replaced: bool, chip: str = "trn2", lnc: int = 1
) -> np.ndarray:
    p = parameter(0, TensorType(DType.F32, weights.shape))
    type_ = TensorType(DType.S64, (*weights.shape[:-1], count))
    node = call("aten::multinomial.default", (Operand(0), count, replaced), (type_,), (p,))
    program = lowered(Graph("test", (p,), (node,)), chip, lnc=lnc)
    (found,) = program.run([weights], by="reference")
    assert found.dtype == np.int64
    assert found.shape == type_.shape
    return found


def frequencies(found: np.ndarray, chances: np.ndarray) -> None:
    """Six standard errors of each number's share."""
    counts = np.bincount(found.reshape(-1), minlength=len(chances))
    error = np.sqrt(found.size * chances * (1 - chances))
    assert (abs(counts - found.size * chances) <= 6 * error).all()


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("count", [1, 3])
def test_weighed_choices(chip: str, count: int) -> None:
    weights = np.array([1, 0, 4, 2, 0, 3], np.float32)
    rows = np.broadcast_to(weights, (4000, 6)).copy()
    frequencies(chosen(rows, count, replaced=True, chip=chip), weights / weights.sum())


@pytest.mark.parametrize("lnc", [1, 2])
def test_choices_without_replacement(lnc: int) -> None:
    weights = np.array([1, 0, 4, 2, 0, 3, 2, 2, 2, 1], np.float32)
    found = chosen(np.broadcast_to(weights, (3000, 10)).copy(), 2, replaced=False, lnc=lnc)
    assert (found[:, 0] != found[:, 1]).all()
    p = weights / weights.sum()
    frequencies(found[:, 0], p)
    # The second one is of what the first one leaves.
    with np.errstate(invalid="ignore"):
        left = sum(first * np.where(np.arange(10) == at, 0, p) / (1 - first)
                   for at, first in enumerate(p))  # fmt: skip
    frequencies(found[:, 1], left)


def test_choices_among_more_than_a_part() -> None:
    """As tokens of a vocabulary are: what is large may lie in any part."""
    weights = np.full((256, 10_000), 1e-9, np.float32)
    wanted = np.arange(256) * 39
    weights[np.arange(256), wanted] = 1.0
    found = chosen(weights, 1, replaced=False)[:, 0]
    assert (found == wanted).mean() > 0.99
    (one,) = chosen(weights[7], 1, replaced=False)
    assert one == wanted[7]


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("rows", [1, 3, 16])
def test_few_rows_of_many_weights(rows: int, chip: str) -> None:
    """A row lies over several partitions; what its last one does not have is never chosen."""
    weights = np.zeros((rows, 2500), np.float32)
    places = np.array([0, 1, 700, 1250, 2499])
    shares = np.array([1, 2, 3, 4, 2], np.float32)
    weights[:, places] = shares
    found = chosen(weights, 100, replaced=True, chip=chip)
    assert np.isin(found, places).all()
    frequencies(np.searchsorted(places, found), shares / shares.sum())


@pytest.mark.parametrize("rows", [1, 4, 8])
def test_tokens_are_chosen_by_all_partitions(rows: int) -> None:
    p = parameter(0, TensorType(DType.F32, (rows, 50_257)))
    type_ = TensorType(DType.S64, (rows, 1))
    node = call("aten::multinomial.default", (Operand(0), 1), (type_,), (p,))
    few = lowered(Graph("test", (p,), (node,)), lnc=1).predict()
    assert few.device_us < 40 + 8 * rows  # 717 us for 4 rows with a partition for each
    assert few.hbm_bytes >= rows * 50_257 * 4


@pytest.mark.parametrize("count", [1, 5, 8, 1001])
def test_permutations(count: int) -> None:
    node = call("aten::randperm.default", (count,), (TensorType(DType.S64, (count,)),))
    found = drawn(node)
    assert sorted(found) == list(range(count))
    if count > 100:
        assert abs(np.corrcoef(found, np.arange(count))[0, 1]) < 6 / math.sqrt(count)


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (
            call(
                "aten::poisson.default",
                (Operand(0),),
                given=(build.constant(np.ones(TYPE.shape, np.float32), DType.F32),),
            ),
            "poisson",
        ),
        (call("aten::randperm.default", (20_000,), (TensorType(DType.S64, (20_000,)),)), "16384"),
        (
            call(
                "aten::multinomial.default",
                (Operand(0), 2),
                (TensorType(DType.S64, (2,)),),
                (parameter(0, TensorType(DType.F32, (20_000,))),),
            ),
            "16384",
        ),
        (call("aten::randint.low", (0, 1 << 30, TYPE.shape)), "more than 24 bits"),
    ],
)
def test_what_no_instructions_draw(node: Node, reason: str) -> None:
    program = lower(Graph("test", (), (node,)), "trn2", Options(), passes=False)
    (section,) = program.missing
    assert reason in section.reason
