"""Printed IR, golden, and what the parser, the verifier and the shape rules say about errors."""

import inspect
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronxcc.ir import DType, Graph, Loc, Node, Op, Operand, TensorType, build, parameter
from neuronxcc.ir.operators.checks import ShapeError
from neuronxcc.ir.text import ParseError, parse, to_text
from neuronxcc.ir.verify import VerifierError, verify

F32 = DType.F32


def p(index: int, *shape: int, dtype: DType = F32, name: str = "") -> Node:
    return parameter(index, TensorType(dtype, shape), name)


def text(source: str) -> str:
    return inspect.cleandoc(source) + "\n"


def test_golden() -> None:
    x, bias = p(0, 4, 8, name="x"), p(1, 8, name="layer.bias")
    unused = p(2, name="x")
    total = build.add(x, build.broadcast_to(bias, (4, 8)))
    top = build.topk(build.multiply(total, 0.5), 2)
    updated = build.dot_general(x, total, lhs_contract=(0,), rhs_contract=(0,))
    graph = Graph("main", (x, bias, unused), (*build.results(top), updated, bias), {3: 1})
    graph.locs[total] = Loc("model.py", 12, "y = x + b", "aten.add.Tensor")
    assert to_text(graph) == text("""
        graph @main(%x: f32[4,8], %layer.bias: f32[8], %arg2: f32[] "x") {
          %0 = f32[4,8] broadcast_in_dim(%layer.bias) {dims = [1], shape = [4, 8]}
          %1 = f32[4,8] add(%x, %0)  // model.py:12 aten.add.Tensor
          %2 = f32[] constant(0.5)
          %3 = f32[4,8] broadcast_in_dim(%2) {dims = [], shape = [4, 8]}
          %4 = f32[4,8] multiply(%1, %3)
          %5 = (f32[4,2], s64[4,2]) topk(%4) {k = 2, largest = true}
          %6 = f32[4,2] get_tuple_element(%5) {index = 0}
          %7 = s64[4,2] get_tuple_element(%5) {index = 1}
          %8 = f32[8,8] dot_general(%x, %1) {dtype = f32, lhs_batch = [], lhs_contract = [0], rhs_batch = [], rhs_contract = [0]}
          return %6, %7, %8, %layer.bias => %layer.bias
        }
    """)  # noqa: E501 - one line per node
    again = parse(to_text(graph))
    assert again.results == graph.results
    assert (again.params, again.aliases) == (graph.params, graph.aliases)


def test_calls_and_graphs_of_one_name() -> None:
    x = p(0, 2)
    first, second = Graph("f", (x,), (build.exp(x),)), Graph("f", (x,), (x,))
    both = build.add(build.call(first, [x]), build.call(second, [x]))
    call = build.host_call(
        "aten::foo", [x.type], [both], args=(Operand(0), (1, -0.0, None), 'a "b"\n', F32),
        kwargs={"flag": True, "z": complex(1, float("inf"))}, sequence=7,
    )  # fmt: skip
    graph = Graph("my graph", (x,), (build.get(call, 0),))
    printed = to_text(graph)
    assert printed == text(r"""
        graph @f(%p0: f32[2]) {
          %0 = f32[2] exponential(%p0)
          return %0
        }

        graph @f#2(%p0: f32[2]) {
          return %p0
        }

        graph @"my graph"(%p0: f32[2]) {
          %0 = f32[2] call(%p0) {body = @f}
          %1 = f32[2] call(%p0) {body = @f#2}
          %2 = f32[2] add(%0, %1)
          %3 = f32[2] host_call(%2) {args = [$0, [1, -0.0, none], "a \"b\"\n", f32], device = false, kwargs = [["flag", true], ["z", complex(1.0, inf)]], sequence = 7, target = "aten::foo"}
          return %3
        }
    """)  # noqa: E501
    again = parse(printed)
    assert to_text(again) == printed
    assert again.name == "my graph"
    assert again.results[0].attrs == call.attrs


@given(st.sampled_from(list(DType)), st.binary(min_size=1, max_size=80), st.booleans())
def test_literals_keep_their_bits(dtype: DType, data: bytes, scalar: bool) -> None:
    whole = data * 16 if len(data) < 16 else data
    array = np.frombuffer(whole[: len(whole) // 16 * 16], np.uint8)
    typed = np.asarray(array > 127 if dtype is DType.PRED else array.view(dtype.numpy))
    node = build.constant(typed[:1].reshape(()) if scalar else typed)
    graph = Graph("c", (), (node,))
    assert parse(to_text(graph)).results[0] is node


def test_literals_are_short_and_exact() -> None:
    values = [0.1, -0.0, float("inf"), float("nan"), 1 / 3, 1e-45]
    got = []
    for dtype in (np.float32, ml_dtypes.bfloat16, np.float16, ml_dtypes.float8_e4m3fn):
        with np.errstate(all="ignore"):
            node = build.constant(np.array(values).astype(np.float32).astype(dtype))
        got.append(to_text(Graph("c", (), (node,))).splitlines()[1].partition("constant")[2])
    assert got == [
        "([0.1, -0.0, inf, nan, 0.33333334, 1e-45])",
        "([0.100098, -0, inf, nan, 0.333984, 0])",
        "([0.1, -0.0, inf, nan, 0.3333, 0.0])",
        "([0.101562, -0, nan, nan, 0.34375, 0])",
    ]


def test_long_literals() -> None:
    node = build.constant(np.arange(100, dtype=np.float32))
    graph = Graph("c", (), (node,))
    assert "constant(base64 " in to_text(graph)
    assert parse(to_text(graph)).results[0] is node
    elided = to_text(graph, elide=16)
    assert "f32[100] constant(...)" in elided
    with pytest.raises(ParseError, match=r"line 2: unexpected '\.\.\.\)'"):
        parse(elided)


ERRORS = [
    ("", "line 1: no graph"),
    ("graph @g(", "line 1: expected %parameter, found 'end of text'"),
    ("graph @g(%x: f33[2]) { return %x }", "line 1: unknown type 'f33'"),
    ("graph @g(%x: f32[-2]) { return %x }", "line 1: expected an extent, found '-2'"),
    ("graph @g() {\n%0 = f32[] foo()\nreturn }", "line 2: unknown operator 'foo'"),
    ("graph @g() {\n%0 = f32[] sine(%9)\nreturn }", "line 2: %9 is not defined before this line"),
    ("graph @g(%x: f32[]) {\n%x = f32[] sine(%x)\nreturn }", "line 2: %x is defined twice"),
    ("graph @g() {\n%0 = s8[] constant(300)\nreturn }", r"line 2: no literal of type s8\[\]: "),
    ("graph @g() {\n%0 = s8[2] constant([1])\nreturn }", r"line 2: no literal of type s8\[2\]: "),
    ("graph @g() {\n%0 = f32[] iota() {dim = @f}\nreturn }", "line 2: unknown value '@f'"),
    ("graph @g() {\n?\nreturn }", r"line 2: unexpected '\?'"),
    ("graph @g() { return %0 => %1 }", "line 1: %0 is not defined"),
]


@pytest.mark.parametrize(("source", "message"), ERRORS)
def test_parse_errors_name_the_line(source: str, message: str) -> None:
    with pytest.raises(ParseError, match=message):
        parse(source)


@given(st.text(alphabet='graph @%x:f32[]{}()=,->"0123456789.\n', max_size=200))
def test_no_text_breaks_the_parser(source: str) -> None:
    try:
        parse("graph @g(%x: f32[2]) {\n" + source)
    except ParseError as error:
        assert error.line >= 1  # noqa: PT017 - any other exception is the failure


def _raw(op: Op, type_: TensorType, *srcs: Node, **attrs: object) -> Graph:
    return Graph("g", (X,) if srcs else (), (Node.make(op, type_, srcs, attrs),))


X = p(0, 2, 3)
TWO = build.topk(X, 1)
INVALID = [
    (_raw(Op.EXP, TensorType(F32, (3, 2)), X), r"#\d+>: must be f32\[2,3\]$"),
    (_raw(Op.EXP, X.type, X, X), "takes 1 operand"),
    (_raw(Op.EXP, X.type, X, fast=True), "has unknown attributes fast$"),
    (_raw(Op.REDUCE, TensorType(F32), X, kind="add"), "lacks dims$"),
    (_raw(Op.EXP, TWO.types[0], TWO), "uses all results of <topk"),
    (_raw(Op.GET, TWO.types[0], TWO, index=2), "is not result 2 of <topk"),
    (_raw(Op.IOTA, X.type, dim=2), r"dim 2 is not one of f32\[2,3\]"),
    (Graph("g", (), (build.exp(X),)), "is no parameter of the graph"),
    (Graph("g", (p(1, 2),), ()), "stands as parameter 0"),
    (Graph("g", (X,), (TWO,)), "returned with all its results"),
    (Graph("g", (X,), (X, X), {0: 0, 1: 0}), "two results update one parameter"),
    (Graph("g", (X,), (build.exp(p(0)),), {0: 0}), r"result 0, f32\[\], updates a f32\[2,3\]"),
    (Graph("g", (X,), (X,), {1: 0}), "alias 1: 0 names nothing"),
    (
        Graph("g", (X,), (build.host_call("a::b", [X.type], [X], args=(Operand(1),)),)),
        "names operand 1 of 1",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("graph", "message"), INVALID)
def test_verifier_says_what_is_wrong(graph: Graph, message: str) -> None:
    with pytest.raises(VerifierError, match=r"^\[NCC_EVRF064\] graph 'g' is invalid: ") as caught:
        verify(graph)
    assert caught.match(message)


def test_verifier_names_the_source_line() -> None:
    graph = _raw(Op.EXP, TensorType(F32), X)
    graph.locs[graph.results[0]] = Loc("model.py", 7)
    with pytest.raises(VerifierError, match=r"from model.py:7: must be f32\[2,3\]"):
        verify(graph)


def test_sequences_are_unique_in_a_graph() -> None:
    calls = [build.custom_call(t, [X.type], [X], sequence=1) for t in ("aten::a", "aten::b")]
    with pytest.raises(VerifierError, match="sequence 1 is used twice"):
        verify(Graph("g", (X,), tuple(calls)))


def test_called_graphs_are_verified() -> None:
    body = _raw(Op.EXP, TensorType(F32), X)
    with pytest.raises(VerifierError, match="must be"):
        verify(Graph("outer", (X,), (Node.make(Op.CALL, TensorType(F32), (X,), {"body": body}),)))


SHAPES: list[tuple[Callable[[], Node], str]] = [
    (
        lambda: build.add(X, p(1, 3, 2)),
        "add: operands have types f32[2,3] and f32[3,2]; they must be equal",
    ),
    (
        lambda: build.and_(X, X),
        "and: operand of type f32; allowed: pred s8 s16 s32 s64 u8 u16 u32 u64",
    ),
    (lambda: build.add(1, 2), "add: operands 1 and 2; one must be a tensor"),
    (lambda: build.constant(1.5, DType.S32), "constant: 1.5 as s32; it is not an integer"),
    (lambda: build.constant(-1, DType.U8), "constant: -1 as u8; its range is [0, 255]"),
    (lambda: build.constant(1j, F32), "constant: 1j as f32; it is complex"),
    (lambda: build.constant(1), "constant: number 1 without a dtype"),
    (lambda: build.compare(X, X, "LIKE"), "compare: direction 'LIKE'; allowed: EQ NE LT LE GT GE"),
    (lambda: build.select(X, X, X), "select: predicate f32[2,3]; must be pred of shape (2, 3)"),
    (
        lambda: build.reshape(X, (4,)),
        "reshape: f32[2,3] to [4]; the number of elements must stay 6",
    ),
    (
        lambda: build.broadcast_to(X, (3,)),
        "broadcast_in_dim: f32[2,3] to [3]; the rank may not drop",
    ),
    (
        lambda: build.transpose(X, (0, 0)),
        "transpose: permutation (0, 0); must be distinct dimensions in [0, 2)",
    ),
    (lambda: build.transpose(X, (0, 2)), "transpose: dim 2; must be in [-2, 2)"),
    (
        lambda: build.slice_(X, (0, 2), (2, 4)),
        "slice: [(0, 2), (2, 4)) of f32[2,3]; needs 0 <= start <= limit <= extent",
    ),
    (
        lambda: build.concatenate([X, p(1, 3, 3)], 1),
        "concatenate: (f32[2,3], f32[3,3]) along 1; may differ in that dimension only",
    ),
    (
        lambda: build.matmul(X, X),
        "dot_general: contract dims (1,) of f32[2,3] and (0,) of f32[2,3] differ in extent",
    ),
    (lambda: build.reduce(X, "mean"), "reduce: kind 'mean'; allowed: add mul min max and or xor"),
    (lambda: build.topk(X, 4), "topk: k 4 of f32[2,3]; must be in [0, last extent]"),
    (
        lambda: build.arg_reduce(p(0, 0), "max", 0),
        "arg_reduce: dim 0 of f32[0] is empty; it has no first element",
    ),
    (
        lambda: build.bitcast_convert(X, DType.S16),
        "bitcast_convert: f32 to s16; both must be numbers of one size",
    ),
    (
        lambda: build.convolution(p(0, 1, 3, 8), p(1, 4, 2, 3)),
        "convolution: 3 input features in 1 group(s) with weights of 2 input and 4 output features",
    ),
    (lambda: build.get(TWO, 2), "get_tuple_element: index 2 of 2 result(s)"),
    (
        lambda: build.conditional(X, [], []),
        "conditional: selector f32[2,3], 0 branches; need pred[] or s32[]",
    ),
    (
        lambda: build.all_gather(X, 0, [(0, 1), (1, 2)]),
        "all_gather: group ((0, 1), (1, 2)); need disjoint groups of ranks, of one size",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("make", "message"), SHAPES, ids=[m.partition(":")[0] for _, m in SHAPES])
def test_shape_errors_say_what_was_given_and_what_is_allowed(
    make: Callable[[], Node], message: str
) -> None:
    with pytest.raises(ShapeError) as caught:
        make()
    assert str(caught.value) == f"[NCC_EVRF064] {message}"
