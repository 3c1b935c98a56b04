"""Hypothesis strategies of random, valid tensor IR graphs with arguments, for everybody's tests.

    @given(graphs())                          # everything, special values included
    @given(graphs(exact=True))                # float arithmetic without any rounding: compare bits
    @given(graphs(families=["elementwise"], dtypes=[DType.F32]))

A graph grows node by node: a step picks a family, the family picks operands among the nodes so far
and makes what fits them. Extents are small and include 0 and 1.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from neuronxcc.ir import DType, Graph, Group, Node, Op, TensorType, build, indexing, parameter
from neuronxcc.ir.operators.checks import REDUCE_KINDS, ShapeError
from neuronxcc.ir.table import infer
from neuronxcc.ir.text import to_text
from tests.compiler.ir_samples import values

DTYPES = (DType.F32, DType.BF16, DType.F16, DType.F64, DType.S32, DType.S64, DType.U8, DType.PRED)
LARGEST = 512  # elements of a node

# What is exact on small whole numbers, whatever the order in which it is done.
EXACT_UNARY: Sequence[Op] = (
    Op.ABS,
    Op.NEGATE,
    Op.SIGN,
    Op.CEIL,
    Op.FLOOR,
    Op.ROUND_EVEN,
    Op.TRUNC,
    Op.NOT,
)
EXACT_BINARY: Sequence[Op] = (
    *(Op.ADD, Op.SUBTRACT, Op.MULTIPLY, Op.MAXIMUM, Op.MINIMUM, Op.COPYSIGN),
    *(Op.AND, Op.OR, Op.XOR),
)


@dataclass(frozen=True)
class Case:
    """A graph with arguments for it."""

    graph: Graph
    args: tuple[np.ndarray, ...]

    def __repr__(self) -> str:  # what Hypothesis prints of a failing example
        return f"{to_text(self.graph)}{[a.tolist() for a in self.args]}"


@dataclass
class Maker:
    """The state of a graph that is being made."""

    draw: Callable[..., Any]
    dtypes: tuple[DType, ...]
    exact: bool
    params: list[Node] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)

    def pick(self, fits: Callable[[Node], bool] = lambda _: True) -> Node:
        """One of the nodes that fit, the latest in half of all cases, so that chains grow."""
        fitting = [node for node in reversed(self.nodes) if fits(node)]
        if not fitting:
            raise ShapeError(Op.PARAMETER, "no node fits")
        return fitting[0] if self.flag() else self.node(fitting)

    def one(self, options: Sequence[Any]) -> Any:
        if not options:
            raise ShapeError(Op.PARAMETER, "nothing to choose from")
        return self.draw(st.sampled_from(options))

    def node(self, options: Sequence[Node]) -> Node:
        node = self.one(options)
        assert isinstance(node, Node)
        return node

    def number(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))

    def flag(self) -> bool:
        return bool(self.draw(st.booleans()))

    def parameter(self, type_: TensorType) -> Node:
        node = parameter(len(self.params), type_)
        self.params.append(node)
        self.nodes.append(node)
        return node

    def of(self, type_: TensorType) -> Node:
        """A node of exactly that type: an existing one, one made to fit, or a new parameter."""
        same = [node for node in self.nodes if node.type == type_]
        if same and self.number(0, 3):
            return self.node(same)
        wide = [
            n for n in self.nodes if n.dtype is type_.dtype and _broadcasts(n.shape, type_.shape)
        ]
        if wide and self.number(0, 2):
            return build.broadcast_to(self.node(wide), type_.shape)
        if self.flag() and type_.dtype is not DType.PRED:
            return build.splat(self.one((0, 1, 2, -1 if not type_.dtype.is_unsigned else 3)), type_)
        return self.parameter(type_)

    def dim(self, node: Node) -> int:
        if not node.shape:
            raise ShapeError(node.op, "no dimension")
        return self.number(0, node.type.rank - 1)

    def shape(self, rank: int = 3) -> tuple[int, ...]:
        extents = st.sampled_from((2, 3, 1, 4, 5, 7, 0))
        return tuple(self.draw(st.lists(extents, max_size=rank)))


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    pairs = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(a in (1, b) for a, b in pairs)


def _numeric(node: Node) -> bool:
    return node.dtype is not DType.PRED


def elementwise(m: Maker) -> Node:  # noqa: PLR0911 - one per form
    x = m.pick()
    form = m.one(("binary", "unary", "compare", "select", "convert", "clamp", "precision", "is"))
    if form == "unary":
        ops = EXACT_UNARY if m.exact else _sorted(Group.UNARY)
        return build.unary(m.one([op for op in ops if _takes(op, x)]), x)
    if form == "binary":
        ops = EXACT_BINARY if m.exact else _sorted(Group.BINARY)
        op = m.one([op for op in ops if _takes(op, x, x)])
        pair = [x, m.of(x.type)]
        return build.binary(op, *(pair if m.flag() else reversed(pair)))
    if form == "compare":
        return build.compare(x, m.of(x.type), m.one(("EQ", "NE", "LT", "LE", "GT", "GE")))
    if form == "select":
        return build.select(m.of(TensorType(DType.PRED, x.shape)), x, m.of(x.type))
    if form == "clamp":
        return build.clamp(m.of(x.type), x, m.of(x.type))
    if form == "convert":
        return build.convert(x, m.one(m.dtypes))
    if form == "precision":
        return build.reduce_precision(x, 8, m.one((10, 7, 3)))
    return build.unary(m.one((Op.IS_NAN, Op.IS_FINITE)), x)


def _sorted(ops: frozenset[Op]) -> list[Op]:
    return [op for op in Op if op in ops]


def _takes(op: Op, *operands: Node, **attrs: Any) -> bool:
    try:
        infer(op, tuple(node.type for node in operands), attrs)
    except ShapeError:
        return False
    return True


def movement(m: Maker) -> Node:  # noqa: PLR0911 - one per form
    x = m.pick()
    form = m.one(
        ("transpose", "reshape", "broadcast", "slice", "pad", "concatenate", "reverse", "dynamic")
    )
    rank = x.type.rank
    if form == "transpose":
        return build.transpose(x, m.draw(st.permutations(range(rank))))
    if form == "reshape":
        return build.reshape(x, _other_shape(m, x.shape))
    if form == "broadcast":
        lead = m.shape(2)
        shape = [m.number(2, 3) if n == 1 and m.flag() else n for n in x.shape]
        if m.flag():  # leading dimensions, as NumPy does
            return build.broadcast_in_dim(x, (*lead, *shape), range(len(lead), len(lead) + rank))
        return build.broadcast_in_dim(x, (*shape, *lead), range(rank))
    if form == "slice":
        starts = [m.number(0, n) for n in x.shape]
        limits = [m.number(a, n) for a, n in zip(starts, x.shape, strict=True)]
        return build.slice_(x, starts, limits, [m.number(1, 3) for _ in x.shape])
    if form == "pad":
        low, high, interior = (
            [m.number(a, b) for _ in x.shape] for a, b in ((-1, 2), (-1, 2), (0, 1))
        )
        return build.pad(x, m.of(TensorType(x.dtype)), low, high, interior)
    if form == "concatenate":
        dim = m.dim(x)
        return build.concatenate([x, m.of(x.type), x][: m.number(1, 3)], dim)
    if form == "reverse":
        return build.reverse(x, [d for d in range(rank) if m.flag()])
    sizes = [m.number(0, n) for n in x.shape]
    index = m.one((DType.S32, DType.S64))
    starts_at = [m.of(TensorType(index)) if m.flag() else m.number(-1, 3) for _ in sizes]
    if m.flag():
        return build.dynamic_slice(x, starts_at, sizes)
    update = m.of(TensorType(x.dtype, tuple(sizes)))
    return build.dynamic_update_slice(x, update, starts_at)


def _other_shape(m: Maker, shape: tuple[int, ...]) -> list[int]:
    """Insert and drop ones, merge neighbours, split at a divisor."""
    result = list(shape)
    for _ in range(m.number(1, 3)):
        form = m.one(("insert", "merge", "split", "drop"))
        if form == "insert" and len(result) < 5:
            result.insert(m.number(0, len(result)), 1)
        elif form == "merge" and len(result) > 1:
            at = m.number(0, len(result) - 2)
            result[at : at + 2] = [result[at] * result[at + 1]]
        elif form == "split" and any(n > 3 for n in result):
            at = m.one([i for i, n in enumerate(result) if n > 3])
            divisors = [d for d in range(1, result[at] + 1) if result[at] % d == 0]
            first = m.one(divisors)
            result[at : at + 1] = [first, result[at] // first]
        elif form == "drop" and 1 in result:
            result.remove(1)
    return result


def reduction(m: Maker) -> Node:
    x = m.pick()
    form = m.one(("reduce", "arg", "cumulative", "window"))
    if form == "reduce":
        kinds = [k for k in REDUCE_KINDS if _takes(Op.REDUCE, x, kind=k, dims=())]
        kind = m.one([k for k in kinds if not (m.exact and k == "mul")])
        dims = {m.dim(x), *(d for d in range(x.type.rank) if m.flag())}
        return build.reduce(x, kind, sorted(dims), keep=m.flag())
    if form == "arg":
        return build.arg_reduce(x, m.one(("max", "min")), m.dim(x), m.one((DType.S32, DType.S64)))
    if form == "cumulative":
        return build.cumulative(x, m.one(("add", "max", "min")), m.dim(x))
    rank = x.type.rank
    return build.reduce_window(
        x,
        m.one(("max", "min", "add")),
        [m.number(1, 2) for _ in range(rank)],
        strides=[m.number(1, 2) for _ in range(rank)],
        low=[m.number(0, 1) for _ in range(rank)],
        high=[m.number(0, 1) for _ in range(rank)],
        window_dilation=[m.number(1, 2) for _ in range(rank)],
    )


def contraction(m: Maker) -> Node:
    x = m.pick(_numeric)
    rank = x.type.rank
    roles = [m.one(("contract", "row", "batch")) for _ in range(rank)]
    batch = [d for d in range(rank) if roles[d] == "batch"]
    contract = [d for d in range(rank) if roles[d] == "contract"]
    columns = m.shape(2)
    # The other operand's dimensions in a drawn order.
    extents = [*(x.shape[d] for d in batch), *(x.shape[d] for d in contract), *columns]
    order = m.draw(st.permutations(range(len(extents))))
    other = m.of(TensorType(x.dtype, tuple(extents[i] for i in order)))
    place = {role: where for where, role in enumerate(order)}
    return build.dot_general(
        x,
        other,
        lhs_batch=batch,
        rhs_batch=[place[i] for i in range(len(batch))],
        lhs_contract=contract,
        rhs_contract=[place[len(batch) + i] for i in range(len(contract))],
    )


def gathers(m: Maker) -> Node:
    x = m.pick()
    dim = m.dim(x)
    index = m.one((DType.S32, DType.S64))
    rest = (*x.shape[:dim], *x.shape[dim + 1 :])
    form = m.one(("take", "along", "put", "put_along"))
    if form == "take":
        return indexing.take(x, m.of(TensorType(index, m.shape(2))), dim)
    if form == "along":
        shape = (*x.shape[:dim], m.number(0, 3), *x.shape[dim + 1 :])
        return indexing.take_along(x, m.of(TensorType(index, shape)), dim)
    kind = m.one(("set", "add", "max"))
    if form == "put":
        places = m.of(TensorType(index, (m.number(0, 3),)))
        updates = m.of(TensorType(x.dtype, (*rest[:dim], *places.shape, *rest[dim:])))
        return indexing.put(x, places, updates, dim, kind)
    shape = (*x.shape[:dim], m.number(0, 3), *x.shape[dim + 1 :])
    updates = m.of(TensorType(x.dtype, shape))
    return indexing.put_along(x, m.of(TensorType(index, shape)), updates, dim, kind)


def sorting(m: Maker) -> Node:
    x = m.pick(lambda node: bool(node.shape))
    if m.flag():
        return m.node(build.results(build.topk(x, m.number(0, x.shape[-1]), largest=m.flag())))
    other = m.pick(lambda node: node.shape == x.shape)
    return m.node(build.results(build.sort([x, other], m.dim(x), descending=m.flag())))


def control(m: Maker) -> Node:
    x = m.pick()
    p = parameter(0, x.type)
    same, other = Graph("same", (p,), (p,)), Graph("reversed", (p,), (build.reverse(p, ()),))
    if m.flag():
        return build.call(other, [x])
    return build.conditional(m.of(TensorType(DType.PRED)), [same, other], [x])


def redundant(m: Maker) -> Node:
    """What simplification takes apart: each form is the left side of some rule."""
    x = m.pick()
    form = m.one(
        (
            *(_redundant_movement, _redundant_arithmetic, _redundant_values),
            *(_redundant_integers, _redundant_positions, _redundant_extents),
        )
    )
    assert callable(form)
    node = form(m, x)
    assert isinstance(node, Node)
    return node


def _constant(m: Maker, x: Node) -> Node:
    """A tensor like `x`, filled with a number that rules care about."""
    numbers: Sequence[float] = (1, 0, 2)
    if x.dtype.is_float and not m.exact:
        inf, nan = float("inf"), float("nan")
        numbers = (1.0, -1.0, 0.0, -0.0, 2.0, 0.5, -4.0, 3.0, inf, -inf, nan)
    return build.full_like(x, m.one(numbers))


def _redundant_arithmetic(m: Maker, x: Node) -> Node:
    """A tensor and a constant, or itself."""
    ops = [Op.MULTIPLY, Op.ADD, Op.SUBTRACT, Op.MAXIMUM, Op.MINIMUM]
    ops += [] if m.exact else [Op.DIVIDE, Op.POWER]
    other = x if m.number(0, 3) == 3 else _constant(m, x)
    pair = (x, other) if m.number(0, 3) else (other, x)
    return build.binary(m.one(ops), *pair)


def _redundant_extents(m: Maker, x: Node) -> Node:
    """Dimensions with one position, or none."""
    dim = m.dim(x)
    one = build.slice_dim(x, dim, 0, min(1, x.shape[dim]))
    none = build.slice_dim(x, dim, 0, 0)
    other = m.of(one.type)
    makers: list[Callable[[], Node]] = [
        lambda: build.reduce(one, m.one(("add", "max")), dim),
        lambda: build.reduce(none, m.one(("add", "max", "min")), dim),
        lambda: build.arg_reduce(one, "max", dim),
        lambda: build.cumulative(one, "add", dim),
        lambda: build.get(build.sort([one, other], dim), m.number(0, 1)),
        lambda: build.get(build.topk(build.constant(np.arange(6.0).reshape(2, 3)), 2), 1),
        lambda: build.concatenate([none, x, none], dim),
        lambda: build.pad(none, m.of(TensorType(x.dtype)), 1, 0),
        lambda: build.pad(x, m.of(TensorType(x.dtype)), 0, 0),
        lambda: build.dynamic_update_slice(x, m.one((x, none)), [1] * x.type.rank),
        lambda: build.constant(np.full((2, 3), 7, x.dtype.numpy)),
        lambda: build.dot_general(none, none, lhs_contract=(dim,), rhs_contract=(dim,)),
        lambda: build.dot_general(one, other, lhs_contract=(dim,), rhs_contract=(dim,)),
        lambda: build.dot_general(one, other, lhs_batch=(dim,), rhs_batch=(dim,)),
    ]
    return m.one(makers)()  # type: ignore[no-any-return]


def _redundant_values(m: Maker, x: Node) -> Node:
    """Operations that undo, decide or repeat each other."""
    constant = _constant(m, x)
    other = m.one((constant, x))
    makers: list[Callable[[], Node]] = [
        lambda: build.negate(build.negate(x)),
        lambda: build.abs_(build.negate(x)),
        lambda: build.add(x, build.negate(m.of(x.type))),
        lambda: build.add(build.negate(x), m.of(x.type)),
        lambda: build.multiply(build.negate(x), build.negate(m.of(x.type))),
        lambda: build.floor(build.trunc(x)),
        lambda: build.convert(build.convert(x, m.one(m.dtypes)), m.one(m.dtypes)),
        lambda: build.reduce_precision(build.convert(x, DType.F32), 8, 10),
        lambda: build.clamp(constant, x, m.of(x.type)),
        lambda: build.clamp(m.of(x.type), x, constant),
        lambda: build.compare(x, other, m.one(("EQ", "NE", "LT", "LE", "GT", "GE"))),
        lambda: build.not_(build.compare(x, m.of(x.type), m.one(("EQ", "LT", "GE")))),
        lambda: build.select(build.full_like(m.of(_pred(x)), m.number(0, 1)), x, m.of(x.type)),
        lambda: build.select(build.not_(m.of(_pred(x))), x, m.of(x.type)),
        lambda: build.select(p := m.of(_pred(x)), build.select(p, x, other), m.of(x.type)),
    ]
    return m.one(makers)()  # type: ignore[no-any-return]


def _pred(x: Node) -> TensorType:
    return TensorType(DType.PRED, x.shape)


def _redundant_integers(m: Maker, x: Node) -> Node:
    """Whole numbers and truth values; made of `x` by conversion if it is neither."""
    pred = build.not_equal(x, 0) if x.dtype is not DType.PRED else x
    integer = x if x.dtype.is_integer else build.convert(pred, m.one((DType.S32, DType.U8)))
    a, b = (build.full_like(integer, m.number(0, 3)) for _ in range(2))
    every = build.not_(build.full_like(integer, 0))
    op = m.one((Op.ADD, Op.MULTIPLY, Op.AND, Op.OR, Op.XOR))
    makers: list[Callable[[], Node]] = [
        lambda: build.binary(op, build.binary(op, integer, a), b),
        lambda: build.binary(op, integer, m.one((every, a))),
        lambda: build.binary(m.one((Op.SUBTRACT, Op.XOR, Op.AND)), integer, integer),
        lambda: build.compare(integer, integer, m.one(("EQ", "NE", "LT", "LE"))),
        lambda: build.compare(pred, m.number(0, 1), m.one(("EQ", "NE"))),
        lambda: build.compare(build.convert(pred, DType.F32), 0.0, m.one(("EQ", "NE"))),
        lambda: build.select(pred, build.full_like(pred, 1), build.full_like(pred, 0)),
        lambda: build.convert(build.convert(integer, DType.F64), m.one((DType.U8, DType.S64))),
        lambda: build.maximum(integer, build.full_like(integer, m.one(_limits(integer)))),
        lambda: build.bitcast_convert(
            build.bitcast_convert(integer, _twin(integer)), integer.dtype
        ),
        lambda: build.abs_(build.negate(integer)),
        lambda: build.divide(build.negate(integer), build.negate(integer)),
    ]
    return m.one(makers)()  # type: ignore[no-any-return]


def _limits(x: Node) -> tuple[int, int]:
    info = np.iinfo(x.dtype.numpy)
    return int(info.min), int(info.max)


def _twin(x: Node) -> DType:
    """The integer type of the same size and the other kind."""
    name = x.dtype.value
    return DType(("u" if name[0] == "s" else "s") + name[1:])


def _redundant_movement(m: Maker, x: Node) -> Node:
    rank = x.type.rank
    permutations = st.permutations(range(rank))
    wide = build.broadcast_in_dim(x, (*x.shape, m.number(1, 3)), range(rank))
    dim = m.dim(x)
    middle = m.number(0, x.shape[dim])
    halves = [build.slice_dim(x, dim, 0, middle), build.slice_dim(x, dim, middle, x.shape[dim])]

    def part(node: Node) -> Node:
        starts = [m.number(0, n // 2) for n in node.shape]
        limits = [m.number(a, n) for a, n in zip(starts, node.shape, strict=True)]
        return build.slice_(node, starts, limits, [m.number(1, 2) for _ in starts])

    kind = m.one(("max", "min"))
    makers: list[Callable[[], Node]] = [
        lambda: build.transpose(build.transpose(x, m.draw(permutations)), m.draw(permutations)),
        lambda: build.transpose(wide, m.draw(st.permutations(range(rank + 1)))),
        lambda: build.reshape(wide, _other_shape(m, wide.shape)),
        lambda: build.broadcast_to(wide, (2, *wide.shape)),
        lambda: build.broadcast_to(build.expand_dims(x, dim), (*x.shape[:dim], 3, *x.shape[dim:])),
        lambda: part(part(x)),
        lambda: part(wide),
        lambda: part(build.concatenate([x, m.of(x.type)], dim)),
        lambda: build.concatenate(halves, dim),
        lambda: build.concatenate([build.concatenate(halves, dim), x], dim),
        lambda: build.reverse(build.reverse(x, dim), m.number(0, rank - 1)),
        lambda: build.reduce(wide, kind, m.one((dim, rank))),
        lambda: build.reduce(build.reduce(x, kind, dim), kind),
        lambda: build.pad(build.full_like(x, 0), 0, 1, m.number(-1, 1)),
        lambda: build.dynamic_slice(
            x, [m.number(-1, 3) for _ in x.shape], [n // 2 for n in x.shape]
        ),
        lambda: build.add(wide, build.broadcast_to(build.reshape(x, (*x.shape, 1)), wide.shape)),
        lambda: build.dot_general(
            build.transpose(x, order := m.draw(permutations)),
            x,
            lhs_contract=(order.index(dim),),
            rhs_contract=(dim,),
        ),
    ]
    return m.one(makers)()  # type: ignore[no-any-return]


def _redundant_positions(m: Maker, x: Node) -> Node:
    dim = m.dim(x)
    dtype = m.one((DType.S32, DType.S64, DType.U8))
    length = m.number(1, 5)
    places = build.iota(dtype, (length,), 0)
    row = build.constant(m.number(0, 4), dtype)
    makers: list[Callable[[], Node]] = [
        lambda: indexing.take(x, build.reshape(places, (1, length)), dim),
        lambda: indexing.take(x, build.broadcast_in_dim(places, (2, length), (1,)), dim),
        lambda: indexing.take(x, build.broadcast_to(row, m.shape(2)), dim),
        lambda: indexing.take(x, indexing.wrap(build.slice_dim(places, 0, 0, length), 5), dim),
        lambda: build.convert(build.slice_dim(places, 0, m.number(0, length), length), x.dtype),
        lambda: build.compare(build.add(places, 2), m.number(0, 5), m.one(("LT", "GE", "EQ"))),
        lambda: build.transpose(build.iota(dtype, (length, 3), m.number(0, 1)), (1, 0)),
    ]
    return m.one(makers)()  # type: ignore[no-any-return]


FAMILIES: dict[str, Callable[[Maker], Node]] = {
    "elementwise": elementwise,
    "movement": movement,
    "reduction": reduction,
    "contraction": contraction,
    "gather": gathers,
    "sorting": sorting,
    "control": control,
    "redundant": redundant,
}


@st.composite
def graphs(
    draw: Callable[..., Any],
    *,
    families: Sequence[str] = tuple(FAMILIES),
    dtypes: Sequence[DType] = DTYPES,
    steps: int = 8,
    exact: bool = False,
    special: bool = True,
) -> Case:
    """A valid graph and arguments.

    Args:
        draw: Hypothesis's.
        families: Which kinds of operators (keys of FAMILIES); the first is what shrinking prefers.
        dtypes: Of parameters and conversions (operators may bring pred and index types besides).
        steps: Nodes to make at most, apart from helpers.
        exact: Only operators and values (small whole numbers) whose float results are exact in
            any order of evaluation, so that every implementation agrees in all bits. Values may
            still grow: 16-bit types are left out.
        special: Arguments hold zeros of both signs, infinities, NaN, denormals, extreme integers.
    """
    if exact:
        dtypes = [d for d in dtypes if d not in (DType.BF16, DType.F16)]
    m = Maker(draw, tuple(dtypes), exact)
    for _ in range(m.number(1, 2)):
        m.parameter(TensorType(m.one(m.dtypes), m.shape()))
    for _ in range(m.number(1, steps)):
        try:
            node = FAMILIES[m.one(families)](m)
        except ShapeError:
            continue  # the operands drawn do not suit the operator drawn
        if node.type.size <= LARGEST:
            m.nodes.append(node)
    count = min(m.number(1, 3), len(m.nodes))
    results = tuple(itertools.islice(reversed(m.nodes), count))
    return Case(
        Graph("random", tuple(m.params), results, _aliases(m, results)),
        arguments(m.params, m.number(0, 1 << 16), special=special and not exact, whole=exact),
    )


def _aliases(m: Maker, results: tuple[Node, ...]) -> dict[int, int]:
    aliases: dict[int, int] = {}
    for number, result in enumerate(results):
        free = [p["index"] for p in m.params if p["index"] not in aliases.values()]
        fitting = [i for i in free if m.params[i].type == result.type]
        if fitting and m.number(0, 3) == 3:
            aliases[number] = m.one(fitting)
    return aliases


def arguments(
    params: Sequence[Node], seed: int, *, special: bool, whole: bool = False
) -> tuple[np.ndarray, ...]:
    """Arrays for parameters; `whole`: floats are small whole numbers."""
    rng = np.random.default_rng(seed)
    arrays = []
    for param in params:
        array = values(param.type, rng, special=special, low=-3)
        if whole and param.dtype.is_float:
            array = rng.integers(-3, 4, param.shape).astype(param.dtype.numpy)
        arrays.append(array)
    return tuple(arrays)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal type, shape and bits; any NaN equals any NaN."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.kind == "c":
        return same_bits(a.real.copy(), b.real.copy()) and same_bits(a.imag.copy(), b.imag.copy())
    if a.dtype.kind in "biu":
        return bool((a == b).all())
    bits = np.dtype(f"u{a.dtype.itemsize}")
    nan = np.isnan(a) & np.isnan(b)
    equal = np.ascontiguousarray(a).view(bits) == np.ascontiguousarray(b).view(bits)
    return bool((equal.reshape(a.shape) | nan).all())
