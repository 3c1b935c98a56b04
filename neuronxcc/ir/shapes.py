"""The shape and dtype rule of every operator: operand types and attributes -> result types.

`build` makes nodes through these rules and `verify` checks nodes against them, so a rule is written
once. Rules take attributes in the form in which nodes hold them (tuples of int, complete, no
negative dimension); the conveniences are in `build`.
"""

from __future__ import annotations

from neuronxcc.ir.op import Group, Op
from neuronxcc.ir.shape_rules import (
    collectives,
    contraction,
    control,
    elementwise,
    movement,
    reduction,
)
from neuronxcc.ir.shape_rules.checks import (
    CUMULATIVE_KINDS,
    REDUCE_KINDS,
    SCATTER_KINDS,
    Attrs,
    Rule,
    ShapeError,
    Types,
)
from neuronxcc.ir.shape_rules.movement import index_shape

__all__ = [
    "CUMULATIVE_KINDS",
    "REDUCE_KINDS",
    "RULES",
    "SCATTER_KINDS",
    "Attrs",
    "Rule",
    "ShapeError",
    "Types",
    "index_shape",
    "infer",
]

RULES: dict[Op, Rule] = {
    Op.CONSTANT: elementwise.constant_rule,
    **dict.fromkeys(Group.UNARY, elementwise.unary_rule),
    **dict.fromkeys(Group.BINARY, elementwise.binary_rule),
    Op.IS_FINITE: elementwise.predicate_rule,
    Op.IS_NAN: elementwise.predicate_rule,
    Op.REAL: elementwise.part_rule,
    Op.IMAG: elementwise.part_rule,
    Op.CONVERT: elementwise.convert_rule,
    Op.BITCAST_CONVERT: elementwise.bitcast_rule,
    Op.REDUCE_PRECISION: elementwise.reduce_precision_rule,
    Op.COMPLEX: elementwise.complex_rule,
    Op.COMPARE: elementwise.compare_rule,
    Op.SELECT: elementwise.select_rule,
    Op.CLAMP: elementwise.clamp_rule,
    Op.BROADCAST_IN_DIM: movement.broadcast_rule,
    Op.RESHAPE: movement.reshape_rule,
    Op.TRANSPOSE: movement.transpose_rule,
    Op.SLICE: movement.slice_rule,
    Op.PAD: movement.pad_rule,
    Op.CONCATENATE: movement.concatenate_rule,
    Op.REVERSE: movement.reverse_rule,
    Op.DYNAMIC_SLICE: movement.dynamic_slice_rule,
    Op.DYNAMIC_UPDATE_SLICE: movement.dynamic_update_slice_rule,
    Op.GATHER: movement.gather_rule,
    Op.SCATTER: movement.scatter_rule,
    Op.DOT_GENERAL: contraction.dot_rule,
    Op.CONVOLUTION: contraction.convolution_rule,
    Op.REDUCE: reduction.reduce_rule,
    Op.ARG_REDUCE: reduction.arg_reduce_rule,
    Op.REDUCE_WINDOW: reduction.reduce_window_rule,
    Op.SELECT_AND_SCATTER: reduction.select_and_scatter_rule,
    Op.CUMULATIVE: reduction.cumulative_rule,
    Op.SORT: reduction.sort_rule,
    Op.TOPK: reduction.topk_rule,
    Op.WHILE: control.while_rule,
    Op.CONDITIONAL: control.conditional_rule,
    Op.CALL: control.call_rule,
    Op.ALL_REDUCE: collectives.all_reduce_rule,
    Op.ALL_GATHER: collectives.all_gather_rule,
    Op.REDUCE_SCATTER: collectives.reduce_scatter_rule,
    Op.ALL_TO_ALL: collectives.all_to_all_rule,
    Op.COLLECTIVE_BROADCAST: collectives.broadcast_rule,
    Op.COLLECTIVE_PERMUTE: collectives.permute_rule,
}


def infer(op: Op, types: Types, attrs: Attrs) -> Types:
    """Return the types of the results.

    Args:
        op: An operator whose types follow from operands: not PARAMETER, IOTA or a custom call.
        types: The types of the operands.
        attrs: The attributes, complete.

    Raises:
        ShapeError: the operator does not take these.
    """
    return RULES[op](op, types, attrs)
