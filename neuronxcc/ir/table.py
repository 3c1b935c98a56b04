"""The operator table: one entry per operator, holding all that is known about it.

Adding an operator means: a member of `Op`, a rule in `shapes`, a meaning in `reference`, a builder,
an entry here, samples in `samples`. Tests hold that no operator lacks one of these.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from neuronxcc.ir.gaps import GAPS, Gap
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Group, Op
from neuronxcc.ir.reference import MEANINGS, Meaning
from neuronxcc.ir.samples import Sample, samples_of
from neuronxcc.ir.shapes import RULES, Rule


class Engine(enum.Enum):
    """Who executes an operator on a NeuronCore."""

    TENSOR = "tensor"  # products
    VECTOR = "vector"  # arithmetic, reductions
    SCALAR = "scalar"  # functions, by tables
    GPSIMD = "gpsimd"  # general: positions, sorting, integers
    DMA = "dma"  # moving data
    CC = "cc"  # between cores
    HOST = "host"
    NONE = "none"  # nothing is executed, or what it calls is


class Cost(enum.Enum):
    """What the work of an operator is proportional to."""

    FREE = "free"
    ELEMENTS = "elements"  # of the result
    OPERANDS = "operands"  # elements of the operands: reductions
    BYTES = "bytes"  # moved
    PRODUCTS = "products"  # multiplications
    WINDOWS = "windows"  # elements of the result times elements of a window
    SORT = "sort"  # n log n along the dimension
    NESTED = "nested"  # of the graphs it calls
    COLLECTIVE = "collective"  # bytes and ranks
    EXTERNAL = "external"  # known to who runs it only


@dataclass(frozen=True, slots=True)
class OpInfo:
    """An entry.

    Attributes:
        op: The operator.
        attrs: Names of the attributes that every node of it has.
        optional: Names of those that a node may have.
        engine: Who executes it on a NeuronCore.
        cost: What its work is proportional to.
        rule: Operand types and attributes -> result types; None where the builder gives the types.
        meaning: The NumPy reference; None for parameters, calls and collectives, which `reference`
            evaluates itself.
        samples: Makes graphs with arguments whose result it is.
        gaps: Documented limits on real targets.
    """

    op: Op
    attrs: frozenset[str]
    optional: frozenset[str]
    engine: Engine
    cost: Cost
    rule: Rule | None
    meaning: Meaning | None
    samples: Callable[[], list[Sample]]
    gaps: tuple[Gap, ...]


_WINDOW = "window strides low high"
_ATTRS: dict[Op, str] = {
    Op.PARAMETER: "index name",
    Op.CONSTANT: "literal",
    Op.IOTA: "dim",
    Op.CONVERT: "dtype",
    Op.BITCAST_CONVERT: "dtype",
    Op.REDUCE_PRECISION: "exponent_bits mantissa_bits",
    Op.COMPARE: "direction",
    Op.BROADCAST_IN_DIM: "shape dims",
    Op.RESHAPE: "shape",
    Op.TRANSPOSE: "permutation",
    Op.SLICE: "starts limits strides",
    Op.PAD: "low high interior",
    Op.CONCATENATE: "dim",
    Op.REVERSE: "dims",
    Op.DYNAMIC_SLICE: "sizes",
    Op.GATHER: "offset_dims collapsed_slice_dims start_index_map slice_sizes index_vector_dim "
    "operand_batching_dims start_indices_batching_dims",
    Op.SCATTER: "kind update_window_dims inserted_window_dims scatter_dims_to_operand_dims "
    "index_vector_dim input_batching_dims scatter_indices_batching_dims",
    Op.DOT_GENERAL: "lhs_batch rhs_batch lhs_contract rhs_contract dtype",
    Op.CONVOLUTION: "strides low high lhs_dilation rhs_dilation feature_group_count "
    "batch_group_count lhs_spec rhs_spec out_spec dtype",
    Op.REDUCE: "kind dims",
    Op.ARG_REDUCE: "kind dim dtype",
    Op.REDUCE_WINDOW: f"kind {_WINDOW} base_dilation window_dilation",
    Op.SELECT_AND_SCATTER: f"kind select {_WINDOW}",
    Op.CUMULATIVE: "kind dim",
    Op.SORT: "dim descending stable",
    Op.TOPK: "k largest",
    Op.GET: "index",
    Op.WHILE: "cond body",
    Op.CONDITIONAL: "branches",
    Op.CALL: "body",
    Op.CUSTOM_CALL: "target args kwargs device",
    Op.HOST_CALL: "target args kwargs device",
    Op.ALL_REDUCE: "kind group",
    Op.ALL_GATHER: "dim group",
    Op.REDUCE_SCATTER: "kind dim group",
    Op.ALL_TO_ALL: "split_dim concat_dim group",
    Op.COLLECTIVE_BROADCAST: "root group",
    Op.COLLECTIVE_PERMUTE: "pairs",
}
# outs: for every result of the ATen operator its place among the node's results, or None.
_OPTIONAL: dict[Op, str] = {
    **dict.fromkeys((Op.CUSTOM_CALL, Op.HOST_CALL), "sequence outs"),
    **dict.fromkeys(Group.COLLECTIVE, "name channel"),
    Op.ALL_TO_ALL: "send receive name channel",
    Op.SCATTER: "unique",  # true: no element is updated twice
}

# Elementwise operators that the vector engine's arithmetic does; the scalar engine's tables do the
# functions.
_ARITHMETIC = (
    Group.BINARY - {Op.POWER, Op.ATAN2}
    | Group.CONVERSION
    | {Op.ABS, Op.NEGATE, Op.SIGN, Op.CEIL, Op.FLOOR, Op.ROUND_EVEN, Op.TRUNC, Op.NOT, Op.CONJ}
    | {Op.COMPLEX, Op.COMPARE, Op.SELECT, Op.CLAMP}
)
_PLACES: dict[Op, tuple[Engine, Cost]] = {
    **dict.fromkeys(Group.ELEMENTWISE, (Engine.SCALAR, Cost.ELEMENTS)),
    **dict.fromkeys(_ARITHMETIC, (Engine.VECTOR, Cost.ELEMENTS)),
    **dict.fromkeys(Group.MOVEMENT, (Engine.DMA, Cost.BYTES)),
    **dict.fromkeys(Group.COLLECTIVE, (Engine.CC, Cost.COLLECTIVE)),
    **dict.fromkeys((Op.PARAMETER, Op.CONSTANT, Op.GET), (Engine.NONE, Cost.FREE)),
    **dict.fromkeys((Op.WHILE, Op.CONDITIONAL, Op.CALL), (Engine.NONE, Cost.NESTED)),
    Op.RESHAPE: (Engine.NONE, Cost.FREE),
    Op.IOTA: (Engine.GPSIMD, Cost.ELEMENTS),
    Op.POPCNT: (Engine.GPSIMD, Cost.ELEMENTS),
    Op.SCATTER: (Engine.DMA, Cost.BYTES),
    Op.DOT_GENERAL: (Engine.TENSOR, Cost.PRODUCTS),
    Op.CONVOLUTION: (Engine.TENSOR, Cost.PRODUCTS),
    Op.REDUCE: (Engine.VECTOR, Cost.OPERANDS),
    Op.ARG_REDUCE: (Engine.VECTOR, Cost.OPERANDS),
    Op.REDUCE_WINDOW: (Engine.VECTOR, Cost.WINDOWS),
    Op.SELECT_AND_SCATTER: (Engine.GPSIMD, Cost.WINDOWS),
    Op.CUMULATIVE: (Engine.VECTOR, Cost.OPERANDS),
    Op.SORT: (Engine.GPSIMD, Cost.SORT),
    Op.TOPK: (Engine.GPSIMD, Cost.SORT),
    Op.CUSTOM_CALL: (Engine.GPSIMD, Cost.EXTERNAL),
    Op.HOST_CALL: (Engine.HOST, Cost.EXTERNAL),
}


def _entry(op: Op) -> OpInfo:
    engine, cost = _PLACES[op]
    return OpInfo(
        op=op,
        attrs=frozenset(_ATTRS.get(op, "").split()),
        optional=frozenset(_OPTIONAL.get(op, "").split()),
        engine=engine,
        cost=cost,
        rule=RULES.get(op),
        meaning=MEANINGS.get(op),
        samples=partial(samples_of, op),
        gaps=tuple(gap for gap in GAPS if gap.ops is None or op in gap.ops),
    )


TABLE: dict[Op, OpInfo] = {op: _entry(op) for op in Op}


def info(node: Node) -> OpInfo:
    """The entry of a node's operator."""
    return TABLE[node.op]
