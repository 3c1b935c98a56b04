"""Inlining, pruning, and the pipeline as a whole."""

import numpy as np
import pytest
from hypothesis import given

from neuronxcc.ir import DType, Graph, Loc, Node, Op, TensorType, build, parameter
from neuronxcc.ir.reference import evaluate
from neuronxcc.ir.text import parse, to_text
from neuronxcc.ir.verify import VerifierError, verify
from neuronxcc.passes import PassRecord, run
from neuronxcc.passes.inline import inline
from neuronxcc.passes.pipeline import PIPELINE
from neuronxcc.passes.prune import prune
from tests.compiler.graphs import Case, graphs, same_bits
from tests.compiler.test_passes_exact import Casts

F32 = DType.F32
X, Y = parameter(0, TensorType(F32, (4,))), parameter(1, TensorType(F32, (4,)))


def ops(graph: Graph) -> set[Op]:
    return {node.op for node in graph.nodes()}


def test_calls_are_inlined_with_their_positions() -> None:
    total = build.add(X, Y)
    inner = Graph("inner", (X, Y), (total, build.exp(X)), {}, {total: Loc("inner.py", 1)})
    call = build.call(inner, [build.sin(X), Y])
    outer = Graph("outer", (X, Y), (build.get(call, 0), build.get(call, 1)))
    nested = Graph("main", (X, Y), (build.get(build.call(outer, [X, Y]), 0),))
    found = inline(nested)
    assert found.results == (build.add(build.sin(X), Y),)
    assert found.locs[found.results[0]] == Loc("inner.py", 1)


def test_bodies_with_effects_stay_calls() -> None:
    random = build.custom_call("aten::rand", [X.type], [], sequence=0)
    body = Graph("body", (X,), (build.add(X, random),))
    graph = Graph("g", (X, Y), (build.call(body, [X]), build.call(body, [Y])))
    assert inline(graph).results == graph.results


@pytest.mark.parametrize(
    ("selector", "number"),
    [
        (np.array(1, np.int32), 1),
        (np.array(7, np.int32), 2),
        (np.array(-1, np.int32), 2),
        (np.array(1) > 0, 0),
        (np.array(0) > 0, 1),
    ],
)
def test_a_constant_takes_its_branch(selector: np.ndarray | np.bool, number: int) -> None:
    makers = (build.exp, build.sin, build.cos)
    branches = [Graph(f"b{i}", (X,), (make(X),)) for i, make in enumerate(makers)]
    branches = branches[: 2 if selector.dtype == bool else 3]
    node = build.conditional(build.constant(np.asarray(selector)), branches, [X])
    assert inline(Graph("g", (X,), (node,))).results == (makers[number](X),)


def test_calls_inside_loops_are_inlined() -> None:
    n = parameter(0, TensorType(DType.S64))
    double = Graph("double", (n,), (build.multiply(n, 2),))
    cond = Graph("cond", (n,), (build.less(n, 100),))
    body = Graph("body", (n,), (build.call(double, [n]),))
    graph = inline(Graph("g", (n,), (build.while_(cond, body, [n]),)))
    assert graph.results[0]["body"].results == (build.multiply(n, 2),)


@given(graphs(families=["control", "elementwise", "movement"]))
def test_inlining_keeps_bits(case: Case) -> None:
    found = inline(case.graph)
    verify(found)
    assert Op.CALL not in ops(found)
    pairs = zip(evaluate(case.graph, case.args), evaluate(found, case.args), strict=True)
    assert all(same_bits(a, b) for a, b in pairs)


def test_dead_state_of_a_loop_is_dropped() -> None:
    n = parameter(0, TensorType(DType.S64))
    a, x, dead = (parameter(i, X.type) for i in (1, 2, 3))
    state = (n, a, x, dead)
    cond = Graph("cond", state, (build.less(n, 3),))
    # `a` depends on `x`, so both stay; nobody asks for `dead`, which depends on `a`.
    step = Graph(
        "step", state, (build.add(n, 1), build.add(a, x), build.negate(x), build.add(dead, a))
    )
    loop = build.while_(cond, step, [build.constant(0, DType.S64), X, Y, X])
    graph = Graph("g", (X, Y), (build.get(loop, 1),))
    found = prune(graph)
    verify(found)
    (loop,) = [node for node in found.nodes() if node.op is Op.WHILE]
    assert len(loop.types) == 3
    args = [np.arange(4, dtype=np.float32), np.ones(4, np.float32)]
    np.testing.assert_array_equal(evaluate(found, args)[0], evaluate(graph, args)[0])


def test_dead_results_of_branches_and_sorts_are_dropped() -> None:
    branches = [
        Graph(f"b{i}", (X, Y), (build.exp(X), make(Y)))
        for i, make in enumerate((build.sin, build.cos))
    ]
    pred = build.less(build.reduce(X, "add"), 0.0)
    chosen = build.conditional(pred, branches, [X, Y])
    sort = build.sort([X, Y, build.negate(Y)], 0)
    found = prune(Graph("g", (X, Y), (build.get(chosen, 1), build.get(sort, 2))))
    verify(found)
    branch, pair = found.results[0], found.results[1].srcs[0]
    assert branch.op is Op.CONDITIONAL
    assert branch.srcs[1:] == (Y,)
    assert pair.srcs == (X, build.negate(Y))
    key_only = prune(Graph("g", (X, Y), (build.get(sort, 0),)))
    assert key_only.results[0].srcs == (X,)


@given(graphs(families=["sorting", "control", "elementwise"]))
def test_pruning_keeps_bits(case: Case) -> None:
    found = prune(case.graph)
    verify(found)
    pairs = zip(evaluate(case.graph, case.args), evaluate(found, case.args), strict=True)
    assert all(same_bits(a, b) for a, b in pairs)


def softmax(x: Node) -> Node:
    top = build.broadcast_to(build.reduce(x, "max", -1, keep=True), x.shape)
    exp = build.exp(build.subtract(x, top))
    return build.divide(exp, build.broadcast_to(build.reduce(exp, "add", -1, keep=True), x.shape))


ATTENTION = """\
graph @attention(%q: f32[1,8,32], %k: f32[1,8,32]) {
  %0 = s64[8,8] iota() {dim = 0}
  %1 = s64[8,8] iota() {dim = 1}
  %2 = pred[8,8] compare(%0, %1) {direction = "GE"}
  %3 = pred[1,2,8,8] broadcast_in_dim(%2) {dims = [2, 3], shape = [1, 2, 8, 8]}
  %4 = f32[8,2,16] reshape(%q) {shape = [8, 2, 16]}
  %5 = f32[8,2,16] reshape(%k) {shape = [8, 2, 16]}
  %6 = f32[2,8,8] dot_general(%4, %5) {dtype = f32, lhs_batch = [1], lhs_contract = [2], rhs_batch = [1], rhs_contract = [2]}
  %7 = f32[1,2,8,8] reshape(%6) {shape = [1, 2, 8, 8]}
  %8 = f32[] constant(0.25)
  %9 = f32[1,2,8,8] broadcast_in_dim(%8) {dims = [], shape = [1, 2, 8, 8]}
  %10 = f32[1,2,8,8] multiply(%7, %9)
  %11 = f32[] constant(-inf)
  %12 = f32[1,2,8,8] broadcast_in_dim(%11) {dims = [], shape = [1, 2, 8, 8]}
  %13 = f32[1,2,8,8] select(%3, %10, %12)
  %14 = f32[1,2,8] reduce(%13) {dims = [3], kind = "max"}
  %15 = f32[2,8] reshape(%14) {shape = [2, 8]}
  %16 = f32[1,2,8,8] broadcast_in_dim(%15) {dims = [1, 2], shape = [1, 2, 8, 8]}
  %17 = f32[1,2,8,8] subtract(%13, %16)
  %18 = f32[1,2,8,8] exponential(%17)
  %19 = f32[1,2,8] reduce(%18) {dims = [3], kind = "add"}
  %20 = f32[2,8] reshape(%19) {shape = [2, 8]}
  %21 = f32[1,2,8,8] broadcast_in_dim(%20) {dims = [1, 2], shape = [1, 2, 8, 8]}
  %22 = f32[1,2,8,8] divide(%18, %21)
  return %22
}
"""  # noqa: E501 - one line per node


def test_golden_attention() -> None:
    """Scores, scaled by a power of two, masked by position; heads moved about with transposes."""
    q, k = (parameter(i, TensorType(F32, (1, 8, 32)), n) for i, n in enumerate("qk"))
    heads = [build.transpose(build.reshape(x, (1, 8, 2, 16)), (0, 2, 1, 3)) for x in (q, k)]
    scores = build.divide(build.matmul(heads[0], build.swap_dims(heads[1])), 4.0)
    rows, columns = build.iota(DType.S64, (8, 1), 0), build.iota(DType.S64, (1, 8), 1)
    mask = build.greater_equal(*build.broadcast_together(rows, columns))
    masked = build.select(build.broadcast_to(mask, scores.shape), scores, -np.inf)
    printed = to_text(run(Graph("attention", (q, k), (softmax(masked),)), Casts()))
    assert printed == ATTENTION
    assert to_text(parse(printed)) == printed


def test_records_and_observers_see_every_pass() -> None:
    graph = Graph("g", (X, Y), (build.multiply(build.exp(X), 1.0),))
    records: list[PassRecord] = []
    seen: dict[str, str] = {}
    run(graph, Casts(), records=records, observe=lambda name, text: seen.update({name: text()}))
    assert [record.name for record in records] == [name for name, _ in PIPELINE]
    assert records[0].fired == {"x * 1, x / 1": 1}
    assert (records[0].before, records[0].after) == (5, 2)
    assert all(0 <= record.seconds < 5 for record in records)
    assert list(seen) == ["input", "simplify"]
    assert "exponential(%p0)\n  return %0" in seen["simplify"]


def test_an_invalid_graph_is_named() -> None:
    bad = Graph("g", (X,), (Node.make(Op.EXP, TensorType(F32), (X,)),))
    with pytest.raises(VerifierError, match="graph 'g' is invalid"):
        run(bad, Casts(), verify_all=True)


def test_program_order_is_kept() -> None:
    """What lives shortest is computed where the program says, not where results are listed."""
    chain = [X]
    for _ in range(6):
        chain.append(build.divide(build.exp(chain[-1]), 2.0))
    sums = [build.reduce(node, "add") for node in chain[1:]]
    found = run(Graph("g", (X,), tuple(reversed(sums))), Casts())
    serials = [node.serial for node in reversed(found.results)]
    assert serials == sorted(serials)
