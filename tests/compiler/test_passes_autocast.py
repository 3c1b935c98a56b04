"""Auto-cast rounds what the documentation says, sums stay float32, types of the graph stay."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronxcc.ir import DType, Graph, Node, Op, TensorType, build, parameter
from neuronxcc.ir.arithmetic import cast
from neuronxcc.ir.reference import evaluate
from neuronxcc.ir.verify import verify
from neuronxcc.passes import autocast, run
from tests.compiler.graphs import Case, graphs, same_bits
from tests.compiler.test_passes_exact import Casts

F32 = DType.F32
TYPES = ("bf16", "fp16", "tf32", "fp8_e4m3")


def tf32(x: np.ndarray) -> np.ndarray:
    """Ten bits of mantissa, to nearest even, by arithmetic: NumPy rounds to 24 bits for us."""
    scaled, exponent = np.frexp(x.astype(np.float64))
    return np.asarray(np.ldexp(np.rint(np.ldexp(scaled, 11)), exponent - 11), np.float32)


ROUND: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "bf16": lambda x: cast(cast(x, DType.BF16), F32),
    "fp16": lambda x: cast(cast(x, DType.F16), F32),
    "tf32": tf32,
    "fp8_e4m3": lambda x: cast(cast(x, DType.F8E4M3), F32),
}


def example(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def product() -> Graph:
    x, w = parameter(0, TensorType(F32, (3, 5))), parameter(1, TensorType(F32, (5, 4)))
    return Graph("g", (x, w), (build.tanh(build.matmul(build.exp(x), w)),))


@pytest.mark.parametrize("kind", TYPES)
def test_matmult_rounds_the_operands_of_products_alone(kind: str) -> None:
    graph = run(product(), Casts("matmult", kind), verify_all=True)
    x, w = example(3, 5), example(5, 4, seed=1)
    (found,) = evaluate(graph, [x, w])
    rounded = ROUND[kind]
    exact = rounded(np.exp(x.astype(np.float64)).astype(np.float32)).astype(np.float64)
    total = (exact @ rounded(w).astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(found, np.tanh(total.astype(np.float64)).astype(np.float32))


@pytest.mark.parametrize(
    ("kind", "operand"),
    [("bf16", DType.BF16), ("fp16", DType.F16), ("tf32", F32), ("fp8_e4m3", DType.BF16)],
)
def test_products_run_in_the_type_that_is_fast(kind: str, operand: DType) -> None:
    graph = run(product(), Casts("matmult", kind))
    (dot,) = [node for node in graph.nodes() if node.op is Op.DOT_GENERAL]
    assert dot.srcs[0].dtype is operand
    assert dot.dtype is F32
    assert [n.dtype for n in graph.results] == [F32]


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_tf32_is_rounded_to_nearest_even(values: list[float]) -> None:
    x = np.array(values, np.float32)
    x = x[(np.abs(x) > 1e-37) & (np.abs(x) < 3e38)]  # the check's own arithmetic is for normals
    p = parameter(0, TensorType(F32, x.shape))
    (found,) = evaluate(Graph("g", (p,), (build.reduce_precision(p, 8, 10),)), [x])
    np.testing.assert_array_equal(found, tf32(x))


def test_convolutions_are_products() -> None:
    x, w = parameter(0, TensorType(F32, (1, 2, 5))), parameter(1, TensorType(F32, (3, 2, 2)))
    graph = run(Graph("g", (x, w), (build.convolution(x, w),)), Casts("matmult", "bf16"))
    assert [src.dtype for src in graph.results[0].srcs] == [DType.BF16, DType.BF16]
    assert graph.results[0].dtype is F32


def test_none_changes_nothing() -> None:
    graph = product()
    assert autocast.cast(graph, "none", "bf16") is graph


@pytest.mark.parametrize(("kind", "dtype"), [("bf16", DType.BF16), ("fp16", DType.F16)])
def test_all_rounds_every_intermediate(kind: str, dtype: DType) -> None:
    x = parameter(0, TensorType(F32, (7,)))
    graph = Graph("g", (x,), (build.multiply(build.sin(x), build.exp(x)),), {0: 0})
    found = run(graph, Casts("all", kind), verify_all=True)
    assert found.results[0].dtype is F32
    assert found.aliases == {0: 0}
    value = example(7)
    narrow = cast(value, dtype).astype(np.float32)
    parts = [cast(f(narrow.astype(np.float64)), dtype).astype(np.float32) for f in (np.sin, np.exp)]
    want = cast(cast(parts[0] * parts[1], dtype), F32)
    np.testing.assert_array_equal(evaluate(found, [value])[0], want)


def test_all_with_a_type_of_the_tensor_engine_is_matmult() -> None:
    for kind in ("tf32", "fp8_e4m3"):
        everything = autocast.cast(product(), "all", kind)
        assert everything.results == autocast.cast(product(), "matmult", kind).results


def test_calls_keep_their_types() -> None:
    x = parameter(0, TensorType(F32, (4,)))
    body = Graph("body", (x,), (build.add(build.exp(x), x),))
    called = build.custom_call("aten::foo", [x.type], [build.sin(x)], sequence=1)
    graph = Graph("g", (x,), (build.call(body, [build.cos(x)]), build.negate(called)))
    verify(found := autocast.cast(graph, "all", "bf16"))
    assert all(node.dtype is F32 for node in found.results)
    calls = [n for n in found.nodes() if n.op in (Op.CALL, Op.CUSTOM_CALL)]
    assert [c.srcs[0].dtype for c in calls] == [F32, F32]
    (inner,) = [c["body"] for c in calls if c.op is Op.CALL]
    assert any(n.dtype is DType.BF16 for n in inner.nodes())


@given(graphs(), st.sampled_from(["matmult", "all"]), st.sampled_from(TYPES))
def test_casting_any_graph_is_valid(case: Case, mode: str, kind: str) -> None:
    found = run(case.graph, Casts(mode, kind), verify_all=True)
    assert [r.type for r in found.results] == [r.type for r in case.graph.results]
    evaluate(found, case.args)


@given(graphs(dtypes=[DType.F64, DType.S32, DType.BF16], families=["elementwise", "contraction"]))
def test_what_is_not_float32_is_not_cast(case: Case) -> None:
    found = autocast.cast(case.graph, "all", "bf16")
    results = zip(evaluate(case.graph, case.args), evaluate(found, case.args), strict=True)
    assert all(same_bits(a, b) for a, b in results)


def _cast_twice(node: Node) -> bool:
    return node.op is Op.CONVERT and node.srcs[0].op is Op.CONVERT


def test_weights_in_bfloat16_are_not_rounded_again() -> None:
    x, w = parameter(0, TensorType(F32, (3, 5))), parameter(1, TensorType(DType.BF16, (5, 4)))
    graph = Graph("g", (x, w), (build.matmul(x, build.convert(w, F32)),))
    found = run(graph, Casts("matmult", "bf16"))
    assert found.results[0].srcs[1] is w
    assert not any(_cast_twice(node) for node in found.nodes())
