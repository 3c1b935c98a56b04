"""Every rule at work, and what rules must leave alone: hash-consing makes comparing nodes easy."""

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from neuronxcc.ir import DType, Graph, Loc, Node, Op, TensorType, build, indexing, parameter
from neuronxcc.ir.calls import CHECK
from neuronxcc.ir.node import Operand
from neuronxcc.passes.pipeline import SIMPLIFY
from neuronxcc.passes.rules import Rule, RuleError, RulePass, rule

b = build
Make = Callable[..., Node]

X = parameter(0, TensorType(DType.F32, (4, 6)))
Y = parameter(1, TensorType(DType.F32, (4, 6)))
I = parameter(2, TensorType(DType.S32, (4, 6)))  # noqa: E741 - integers
P = parameter(3, TensorType(DType.PRED, (4, 6)))
V = parameter(4, TensorType(DType.F32, (6,)))
S = parameter(5, TensorType(DType.F32))
H = parameter(6, TensorType(DType.BF16, (4, 6)))
N = parameter(7, TensorType(DType.S64, (3,)))
T = parameter(8, TensorType(DType.F32, (2, 3, 4)))
E = parameter(9, TensorType(DType.F32, (0, 6)))
U = parameter(10, TensorType(DType.U8, (4, 6)))
O = parameter(11, TensorType(DType.F32, (1, 6)))  # noqa: E741 - a one
C = parameter(12, TensorType(DType.C64, (3,)))
PARAMS = (X, Y, I, P, V, S, H, N, T, E, U, O, C)


def simplify(node: Node) -> tuple[Node, Counter[str]]:
    fired: Counter[str] = Counter()
    graph = RulePass(SIMPLIFY, fired)(Graph("g", PARAMS, (node,)))
    return graph.results[0], fired


def fill(value: complex, node: Node) -> Node:
    return b.full_like(node, value)


def wide(node: Node) -> Node:
    """Rows of V, four times."""
    return b.broadcast_in_dim(node, (4, 6), (1,))


# name of the rule, before, after
CASES: list[tuple[str, Node, Node]] = [
    # algebraic
    ("constant to the right", b.add(2.0, X), b.add(X, 2.0)),
    ("constant to the right", b.less(2.0, X), b.greater(X, 2.0)),
    ("x + -0.0, x - 0.0, integer x + 0", b.add(X, -0.0), X),
    ("x + -0.0, x - 0.0, integer x + 0", b.subtract(X, 0.0), X),
    ("x + -0.0, x - 0.0, integer x + 0", b.add(I, 0), I),
    ("x * 1, x / 1", b.multiply(1.0, X), X),
    ("x * 1, x / 1", b.divide(H, 1.0), H),
    ("x * -1, x / -1, -0.0 - x", b.multiply(X, -1.0), b.negate(X)),
    ("x * -1, x / -1, -0.0 - x", b.subtract(0, I), b.negate(I)),
    ("integer x * 0", b.multiply(I, 0), fill(0, I)),
    ("x / 2**k", b.divide(X, 8.0), b.multiply(X, 0.125)),
    ("x / 2**k", b.divide(X, -0.5), b.multiply(X, -2.0)),
    ("x ** 0, x ** 1, x ** 2", b.power(X, 2.0), b.multiply(X, X)),
    ("x ** 0, x ** 1, x ** 2", b.power(X, 0.0), fill(1.0, X)),
    ("two constants of integer sums and products", b.add(b.add(I, 3), 4), b.add(I, 7)),
    ("x op x", b.subtract(I, I), fill(0, I)),
    ("x op x", b.maximum(X, X), X),
    ("bitwise with no bits or all bits", b.and_(I, -1), I),
    ("bitwise with no bits or all bits", b.xor(P, 1), b.not_(P)),
    ("sum with a negation", b.add(X, b.negate(Y)), b.subtract(X, Y)),
    ("sum with a negation", b.add(b.negate(X), Y), b.subtract(Y, X)),
    ("sum with a negation", b.subtract(X, b.negate(Y)), b.add(X, Y)),
    ("product of negations", b.multiply(b.negate(X), b.negate(Y)), b.multiply(X, Y)),
    ("done and undone", b.negate(b.negate(X)), X),
    ("done again", b.abs_(b.negate(X)), b.abs_(X)),
    ("done again", b.floor(b.trunc(X)), b.trunc(X)),
    ("comparison of integers with themselves", b.less_equal(I, I), fill(1, P)),
    ("pred compared with a constant", b.not_equal(b.convert(P, DType.S32), 0), P),
    ("pred compared with a constant", b.equal(P, 0), b.not_(P)),
    ("not of a comparison", b.not_(b.equal(X, Y)), b.not_equal(X, Y)),
    ("not of a comparison", b.not_(b.less(I, 3)), b.greater_equal(I, 3)),
    ("select without a choice", b.select(fill(1, P), X, Y), X),
    ("select without a choice", b.select(P, X, X), X),
    ("select by a negation", b.select(b.not_(P), X, Y), b.select(P, Y, X)),
    ("select within a select", b.select(P, b.select(P, X, Y), V_ := wide(V)), b.select(P, X, V_)),
    ("select true or false", b.select(P, fill(1, P), fill(0, P)), P),
    ("clamp with an open end", b.clamp(-math.inf, X, Y), b.minimum(X, Y)),
    ("extreme that decides nothing", b.maximum(X, -math.inf), X),
    ("extreme that decides nothing", b.maximum(U, 0), U),
    ("convert to the same type", Node.make(Op.CONVERT, X.type, (X,), {"dtype": DType.F32}), X),
    ("convert by way of a wider type", b.convert(b.convert(H, DType.F32), DType.BF16), H),
    (
        "bits as another type twice",
        b.bitcast_convert(b.bitcast_convert(X, DType.U32), DType.S32),
        b.bitcast_convert(X, DType.S32),
    ),
    (
        "rounding that changes nothing",
        b.reduce_precision(b.convert(H, DType.F32), 8, 10),
        b.convert(H, DType.F32),
    ),
    # canonical
    ("nothing at all", b.exp(E), fill(0.0, E)),
    ("constant of equal elements", b.constant(np.ones((4, 6), np.float32)), fill(1.0, X)),
    ("reshape of a reshape", b.reshape(b.reshape(X, (24,)), (4, 6)), X),
    (
        "reshape of a broadcast",
        b.reshape(wide(V), (4, 1, 6)),
        b.broadcast_in_dim(V, (4, 1, 6), (2,)),
    ),
    ("transpose of a transpose", b.transpose(b.transpose(T, (1, 2, 0)), (2, 0, 1)), T),
    ("transpose that only moves ones", b.transpose(O, (1, 0)), b.reshape(O, (6, 1))),
    ("transpose of a broadcast", b.transpose(wide(V), (1, 0)), b.broadcast_in_dim(V, (6, 4), (0,))),
    ("broadcast that repeats nothing", b.broadcast_in_dim(V, (1, 6), (1,)), b.reshape(V, (1, 6))),
    (
        "broadcast of a broadcast",
        b.broadcast_in_dim(wide(V), (4, 2, 6), (0, 2)),
        b.broadcast_in_dim(V, (4, 2, 6), (2,)),
    ),
    (
        "broadcast of extents of 1",
        b.broadcast_to(O, (4, 6)),
        b.broadcast_in_dim(b.reshape(O, (6,)), (4, 6), (1,)),
    ),
    ("elementwise on broadcasts", b.exp(wide(V)), wide(b.exp(V))),
    ("elementwise on broadcasts", b.add(wide(V), 2.0), wide(b.add(V, 2.0))),
    ("movement of a splat", b.reverse(fill(3.0, X), 0), fill(3.0, X)),
    ("slice of everything", b.slice_(X, (0, 0), (4, 6)), X),
    (
        "slice of a slice",
        b.slice_(b.slice_(X, (1, 0), (4, 6), (1, 2)), (1, 1), (3, 3)),
        b.slice_(X, (2, 2), (4, 5), (1, 2)),
    ),
    ("slice of one element", b.slice_(V, (1,), (4,), (3,)), b.slice_(V, (1,), (2,))),
    (
        "slice of a broadcast",
        b.slice_(wide(V), (1, 2), (3, 6)),
        b.broadcast_in_dim(b.slice_(V, (2,), (6,)), (2, 4), (1,)),
    ),
    (
        "slice of a concatenation",
        b.slice_(b.concatenate([X, Y], 0), (5, 0), (7, 6)),
        b.slice_(Y, (1, 0), (3, 6)),
    ),
    ("dynamic slice at constants", b.dynamic_slice(X, [9, 1], (2, 3)), b.slice_(X, (2, 1), (4, 4))),
    ("update of everything or nothing", b.dynamic_update_slice(X, Y, [1, 2]), Y),
    ("pad without padding", b.pad(X, 0.0, 0, 0), X),
    (
        "negative padding",
        b.pad(V, 0.0, -1, 2),
        b.slice_(b.pad(V, 0.0, 0, 2), (1,), (8,)),
    ),
    (
        "pad of a splat with the same",
        b.pad(fill(0.0, X), 0.0, 1, 0),
        b.constant(0.0, DType.F32, (5, 7)),
    ),
    ("concatenation of one, of nothing, of a concatenation", b.concatenate([E, X], 0), X),
    (
        "concatenation of neighbours",
        b.concatenate([b.slice_(X, (0, 0), (4, 2)), b.slice_(X, (0, 2), (4, 6))], 1),
        X,
    ),
    ("reverse of ones, of a reverse", b.reverse(b.reverse(X, 0), (0, 1)), b.reverse(X, 1)),
    ("reduction of nothing", b.reduce(E, "max", 0), b.constant(-math.inf, DType.F32, (6,))),
    ("reduction of ones", b.reduce(O, "add", 0), b.add(b.reshape(O, (6,)), 0)),
    ("reduction of ones", b.reduce(O, "max", 0), b.reshape(O, (6,))),
    ("reduction of a reduction", b.reduce(b.reduce(X, "max", 1), "max"), b.reduce(X, "max")),
    ("extreme of a broadcast", b.reduce(wide(V), "min"), b.reduce(V, "min")),
    ("position along an extent of 1", b.arg_reduce(O, "max", 0), b.constant(0, DType.S64, (6,))),
    ("running total of one", b.cumulative(O, "add", 0), b.add(O, 0)),
    ("running total of one", b.cumulative(O, "mul", 0), O),
    ("sort of one", b.get(b.sort([O, O], 0), 1), O),
    # products
    (
        "product over nothing",
        b.matmul(b.transpose(E, (1, 0)), E),
        b.constant(0.0, DType.F32, (6, 6)),
    ),
    (
        "product of a transpose",
        b.matmul(X, b.transpose(Y, (1, 0))),
        b.dot_general(X, Y, lhs_contract=(1,), rhs_contract=(1,)),
    ),
    (
        "product of extents of 1",
        b.matmul(O, b.transpose(X, (1, 0))),
        b.reshape(
            b.dot_general(b.reshape(O, (6,)), X, lhs_contract=(0,), rhs_contract=(1,)), (1, 4)
        ),
    ),
    # positions
    ("iota of one", b.iota(DType.S32, (1, 3), 0), b.constant(0, DType.S32, (1, 3))),
    (
        "iota moved about",
        b.transpose(b.iota(DType.S32, (2, 3), 1), (1, 0)),
        b.iota(DType.S32, (3, 2), 0),
    ),
    (
        "iota moved about",
        b.broadcast_in_dim(b.iota(DType.S32, (3,), 0), (3, 4), (0,)),
        b.iota(DType.S32, (3, 4), 0),
    ),
    (
        "slice of an iota",
        b.slice_(b.iota(DType.S32, (9,), 0), (0,), (4,)),
        b.iota(DType.S32, (4,), 0),
    ),
    (
        "iota of another type",
        b.convert(b.iota(DType.S64, (4,), 0), DType.F32),
        b.iota(DType.F32, (4,), 0),
    ),
    (
        "comparison that bounds decide",
        indexing.wrap(b.iota(DType.S64, (4,), 0), 4),
        b.iota(DType.S64, (4,), 0),
    ),
    (
        "check that bounds decide",
        b.custom_call(
            CHECK,
            (TensorType(DType.S64),),
            (b.minimum(b.maximum(N, 0), 3),),
            args=(Operand(0), -4, 3, "", True),
        ),
        b.constant(0, DType.S64),
    ),
    (
        "gather in order",
        indexing.take(X, b.iota(DType.S64, (3,), 0), 1),
        b.slice_(X, (0, 0), (4, 3)),
    ),
    (
        "gather in order",
        indexing.take(X, b.constant(9, DType.S64), 0),
        b.reshape(b.slice_(X, (3, 0), (4, 6)), (6,)),
    ),
    # folding
    ("constant folding", b.exp(fill(0.0, X)), fill(1.0, X)),
    (
        "constant folding",
        b.transpose(b.constant(np.arange(6.0).reshape(2, 3)), (1, 0)),
        b.constant(np.arange(6.0).reshape(2, 3).T),
    ),
    (
        "constant folding of several results",
        b.get(b.topk(b.constant(np.arange(4.0)), 2), 1),
        b.constant(np.array([3, 2])),
    ),
]


@pytest.mark.parametrize(
    ("name", "before", "after"), CASES, ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)]
)
def test_rule(name: str, before: Node, after: Node) -> None:
    found, fired = simplify(before)
    assert found is after
    assert name in fired


def test_every_rule_is_shown() -> None:
    assert {entry.name for entry in SIMPLIFY} == {name for name, _, _ in CASES}


KEPT: list[tuple[str, Node]] = [
    ("-0.0 + 0.0 is 0.0", b.add(X, 0.0)),
    ("0.0 - 0.0 is 0.0, -(0.0) is not", b.subtract(0.0, X)),
    ("NaN * 0.0 is NaN", b.multiply(X, 0.0)),
    ("inf - inf is NaN", b.subtract(X, X)),
    ("NaN differs from itself", b.equal(X, X)),
    ("NaN is neither less nor not less", b.not_(b.less(X, Y))),
    ("a third is no float", b.divide(X, 3.0)),
    ("2**-150 is no float", b.divide(X, 2.0**127 * 1.5)),
    ("x ** 0.5 is not sqrt of -0.0", b.power(X, 0.5)),
    ("float32 to bfloat16 loses bits", b.convert(b.convert(X, DType.BF16), DType.F32)),
    ("wraps, by way of float saturates", b.convert(b.convert(I, DType.F64), DType.U8)),
    ("sums of floats round", b.reduce(b.reduce(X, "add", 1), "add", 0)),
    ("float sums are not associative", b.add(b.add(X, 1e30), -1e30)),
    ("-(least) is negative", b.divide(b.negate(I), b.negate(I))),
    ("complex quotients turn zeros", b.divide(b.negate(C), b.negate(C))),
    ("f8e4m3fn has no infinity", b.convert(b.convert(X, DType.F8E4M3FN), DType.F32)),
    ("real indices", indexing.take(X, N, 0)),
]


@pytest.mark.parametrize("node", [n for _, n in KEPT], ids=[w for w, _ in KEPT])
def test_what_is_not_exact_is_left_alone(node: Node) -> None:
    found, _ = simplify(node)
    constants_to_the_right = {Op.MULTIPLY, Op.ADD}
    assert found is node or found.op in constants_to_the_right & {node.op}


def test_unsigned_abs_of_a_negation_is_the_negation() -> None:
    assert simplify(b.abs_(b.negate(U)))[0] is b.negate(U)


def test_what_rules_make_comes_from_where_the_node_was() -> None:
    node = b.divide(b.exp(X), 8.0)
    loc = Loc("model.py", 3)
    graph = RulePass(SIMPLIFY)(Graph("g", PARAMS, (node,), {}, {node: loc}))
    assert graph.locs[graph.results[0]] == loc


def test_graphs_that_are_called_are_simplified() -> None:
    x = parameter(0, X.type)
    body = Graph("body", (x,), (b.multiply(x, 1.0),))
    graph = RulePass(SIMPLIFY)(Graph("g", (X,), (b.call(body, [X]),)))
    assert graph.results[0]["body"].results == (x,)


def _pass(*rules: Rule) -> RulePass:
    return RulePass(rules)


def test_rules_that_undo_each_other_are_found_out() -> None:
    @rule("there", Op.EXP)
    def there(node: Node) -> Node:
        return b.log(node.srcs[0])

    @rule("back", Op.LOG)
    def back(node: Node) -> Node:
        return b.exp(node.srcs[0])

    with pytest.raises(RuleError, match=r"g: rules turn <\w+ .*> and <\w+ .*> around"):
        _pass(there, back)(Graph("g", (X,), (b.exp(X),)))


def test_rules_without_end_are_found_out() -> None:
    @rule("more", Op.ADD)
    def more(node: Node) -> Node:
        return b.add(b.negate(node.srcs[0]), node.srcs[1])

    with pytest.raises(RuleError, match="g: no end of rules, last 'more'"):
        _pass(more)(Graph("g", (X, Y), (b.add(X, Y),)))


def test_rules_keep_types() -> None:
    @rule("wrong", Op.EXP)
    def wrong(node: Node) -> Node:
        return b.reduce(node.srcs[0], "add")

    with pytest.raises(
        RuleError, match=r"rule 'wrong' made <reduce f32\[\] .*> out of <exponential"
    ):
        _pass(wrong)(Graph("g", (X,), (b.exp(X),)))
