"""Stochastic rounding: every float32 result that becomes bfloat16 or float16 is rounded by chance.

A number between two neighbours of the type becomes the farther from zero with the probability that
its distance from the nearer to zero has in that of the two, so that it is right on average. Numbers
that the type represents never change. What is beyond the largest number is rounded to that or to
the next power of two, which is infinity.

The pass writes this down as tensor IR, so whatever lowers, fuses or interprets the graph rounds
alike, and an element that is computed twice is rounded alike both times: its chance is a hash of

    the two words of state that are the program's last parameter (the run: seed and call),
    the number of the rounding in the program, and the element's number in its tensor.

Which operators: those that compute (`_COMPUTE`), conversions, products, convolutions, sums. They
compute in float32, which rounds to nearest, and the result is rounded to 16 bits by chance. Custom
and host calls, scatters, collectives and `nextafter` are left alone: who runs them decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from neuronxcc.ir import build
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.graph import Graph, parameter
from neuronxcc.ir.node import Node, TensorType
from neuronxcc.ir.op import Op
from neuronxcc.ir.operators.definition import Rounding
from neuronxcc.ir.table import TABLE, Group
from neuronxcc.ir.verify import called_graphs, with_called
from neuronxcc.passes.rules import rebuilt

STATE = TensorType(DType.U32, (2,))
STATE_NAME = "stochastic_rounding_state"

# Bits of float32's mantissa that a type lacks, by type, where both have normal numbers.
DROPPED = {DType.BF16: 16, DType.F16: 13}
F16_NORMAL = 2.0**-14  # the least normal number of float16; below, numbers are 2**-24 apart
F16_STEP = 2.0**-24

# Multipliers and shifts of the hash, which is 32 bits to 32 bits and one-to-one: chosen by Wellons'
# published search for the least bias (each bit of the result depends on each of the operand).
MIX = ((16, 0x21F0AAAD), (15, 0x735A2D97), (15, None))
_SITE = (0x9E3779B1, 0x85EBCA77)  # odd, so that numbers of roundings stay different
_WORD = 0xFFFFFFFF

_EXACT = frozenset(op for op, operator in TABLE.items() if operator.rounding is Rounding.NONE)
_COMPUTE = (Group.UNARY | Group.BINARY) - _EXACT
_SUMS = frozenset({Op.REDUCE, Op.REDUCE_WINDOW, Op.CUMULATIVE})
_SUM_KINDS = frozenset({"add", "mul", "logaddexp"})
_PRODUCTS = frozenset({Op.DOT_GENERAL, Op.CONVOLUTION})
# Both 16-bit types hold all of their values.
_NARROW = frozenset(
    {DType.PRED, DType.S8, DType.U8, DType.F8E4M3, DType.F8E4M3FN, DType.F8E5M2}
)  # fmt: skip


def with_state(graph: Graph) -> Graph:
    """The graph with stochastic rounding, and with one more parameter.

    Args:
        graph: Without it; its parameters, results and aliases stay.

    Returns:
        The graph, whose last parameter is the state of a run: u32[2], any numbers. Runs of equal
        state and arguments give equal results.
    """
    return _Rounding().graph(graph)


def mix(word: Node) -> Node:
    """The hash of 32-bit words (u32, any shape)."""
    return _mixed(word, None)


def rounded(x: Node, words: Node, dtype: DType) -> Node:
    """Round float32 numbers.

    Args:
        x: f32, any shape.
        words: u32 of the same shape: the chances, evenly distributed.
        dtype: BF16 or F16.

    Returns:
        Of type `dtype`. A number moves away from zero exactly if its fraction of the way to the
        next number, plus the word's highest bits as a fraction, is one or more.
    """
    u32 = partial(build.constant, dtype=DType.U32, shape=x.shape)
    f32 = partial(build.constant, dtype=DType.F32, shape=x.shape)
    dropped = DROPPED[dtype]
    # The bits of a float in order are those of an integer, so a carry goes into the exponent and
    # from the largest number to infinity by itself.
    noise = build.shift_right_logical(words, u32(32 - dropped))
    bits = build.add(build.bitcast_convert(x, DType.U32), noise)
    kept = build.and_(bits, u32(_WORD & -(1 << dropped)))
    found = build.bitcast_convert(kept, DType.F32)
    if dtype is DType.F16:
        # float32 has no denormal numbers here; 24 bits of chance are exact in it.
        magnitude = build.abs_(x)
        scaled = build.multiply(magnitude, f32(1 / F16_STEP))
        whole = build.floor(scaled)
        fraction = build.subtract(scaled, whole)
        word = build.bitcast_convert(build.shift_right_logical(words, u32(8)), DType.S32)
        chance = build.multiply(build.convert(word, DType.F32), f32(2.0**-24))
        away = build.compare(fraction, build.subtract(f32(1.0), chance), "GE")
        steps = build.add(whole, build.select(away, f32(1.0), f32(0.0)))
        small = build.copysign(build.multiply(steps, f32(F16_STEP)), x)
        found = build.select(build.compare(magnitude, f32(F16_NORMAL), "LT"), small, found)
    # The bits of a NaN could become those of infinity.
    return build.convert(build.select(build.is_nan(x), x, found), dtype)


def chances(state: Node, site: int, shape: Sequence[int]) -> Node:
    """Words for the elements of a tensor.

    Args:
        state: u32[2].
        site: Number of the rounding.
        shape: Of the tensor. From 2**32 elements on, numbers of elements begin again.

    Returns:
        u32 of that shape.
    """
    first = mix(build.xor(_word(state, 0), _number(site * _SITE[0])))
    second = mix(build.xor(build.xor(_word(state, 1), _number(site * _SITE[1])), first))
    index: Node = build.constant(0, DType.U32, shape)
    stride = 1
    for dim in reversed(range(len(shape))):
        if shape[dim] > 1:
            along = build.iota(DType.U32, shape, dim)
            index = build.add(index, build.multiply(along, stride & _WORD)) if stride > 1 else along
        stride *= shape[dim]
    return _mixed(build.xor(index, _spread(first, shape)), _spread(second, shape))


def _mixed(word: Node, key: Node | None) -> Node:
    """The hash; `key` is added after the first multiplication, so pairs of words are hashed."""
    for number, (shift, factor) in enumerate(MIX):
        moved = build.shift_right_logical(word, build.constant(shift, DType.U32, word.shape))
        word = build.xor(word, moved)
        if factor is not None:
            word = build.multiply(word, build.constant(factor, DType.U32, word.shape))
        if key is not None and number == 0:
            word = build.add(word, key)
    return word


def _number(value: int) -> Node:
    return build.constant(value & _WORD, DType.U32)


def _word(state: Node, number: int) -> Node:
    return build.reshape(build.slice_dim(state, 0, number, number + 1), ())


def _spread(scalar: Node, shape: Sequence[int]) -> Node:
    return build.broadcast_in_dim(scalar, shape, ()) if shape else scalar


class _Rounding:
    def __init__(self) -> None:
        self.sites = 0
        self.graphs: dict[tuple[int, bool], tuple[Graph, Graph]] = {}

    def graph(self, graph: Graph, *, next_state: bool = False) -> Graph:
        """With the state as last parameter; `next_state` also returns the state of the next run."""
        key = (id(graph), next_state)
        if key not in self.graphs:
            state = parameter(len(graph.params), STATE, STATE_NAME)
            new, locs = rebuilt(graph, partial(self.node, state))
            results = tuple(new[r] for r in graph.results)
            if next_state:
                results = (*results, self.derived(state))
            params = (*graph.params, state)
            made_graph = Graph(graph.name, params, results, graph.aliases, locs)
            self.graphs[key] = (graph, made_graph)
        return self.graphs[key][1]

    def node(self, state: Node, node: Node, srcs: list[Node]) -> Node:
        if any(map(_rounds, called_graphs(node))):
            return self.calling(node, srcs, state)
        if not _is_rounded(node):
            return node.replace(srcs)
        wide = _wide(node, srcs)
        return rounded(wide, chances(state, self.site(), wide.shape), node.dtype)

    def calling(self, node: Node, srcs: list[Node], state: Node) -> Node:
        """Control flow: what it calls takes the state too, and a loop changes it every time."""
        operands = [*srcs, self.derived(state)]
        if node.op is not Op.WHILE:
            return build.make(node.op, operands, **with_called(node, self.graph))
        attrs = node.attrs
        attrs["cond"] = self.graph(attrs["cond"])
        attrs["body"] = self.graph(attrs["body"], next_state=True)
        made = build.make(node.op, operands, **attrs)
        return build.get(made, 0) if len(node.types) == 1 else made

    def derived(self, state: Node) -> Node:
        """Another state: two calls of one graph don't share their chances, nor do two runs."""
        site = self.site()
        words = [
            build.reshape(mix(build.xor(_word(state, i), _number(site * _SITE[i]))), (1,))
            for i in (0, 1)
        ]
        return build.concatenate(words, 0)

    def site(self) -> int:
        self.sites += 1
        return self.sites


def _rounds(graph: Graph) -> bool:
    """Return whether a graph rounds anything, control flow included."""
    return any(
        _is_rounded(node) or any(map(_rounds, called_graphs(node))) for node in graph.nodes()
    )


def _is_rounded(node: Node) -> bool:
    """Return whether a node has a 16-bit result that is the rounding of a wider number."""
    if len(node.types) != 1 or node.dtype not in DROPPED:
        return False
    if node.op is Op.CONVERT:
        return node.srcs[0].dtype not in {*_NARROW, node.dtype}
    if node.op in _SUMS:
        return node["kind"] in _SUM_KINDS
    return node.op in _PRODUCTS or node.op in _COMPUTE


def _wide(node: Node, srcs: list[Node]) -> Node:
    """The float32 numbers that a node rounds; `srcs` are its new operands."""
    if node.op is Op.CONVERT:
        return build.convert(srcs[0], DType.F32)
    if node.op in _PRODUCTS:  # they multiply 16-bit operands as they are
        return build.make(node.op, srcs, **{**node.attrs, "dtype": DType.F32})
    return build.make(node.op, [build.convert(src, DType.F32) for src in srcs], **node.attrs)
