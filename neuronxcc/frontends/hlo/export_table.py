"""How each operator of the tensor IR is written in HLO: one entry for each that XLA has.

A writer returns the instructions of the results, or None if XLA has this operator but not with
these attributes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from neuronxcc.frontends.hlo.export_writer import Computation
from neuronxcc.frontends.hlo.schema import message
from neuronxcc.ir.arithmetic import neutral
from neuronxcc.ir.calls import CHECK
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node, TensorType
from neuronxcc.ir.op import Op
from neuronxcc.ir.operators.definition import Xla
from neuronxcc.ir.table import TABLE, Group

Written = tuple[int, ...] | None
Writer = Callable[[Computation, Node, list[int]], Written]

_LARGEST_F8E4M3FN = 448.0
#: Kind of a combination -> XLA's operator; of truth values, and of everything else.
_KINDS: Final = {
    "add": "add", "mul": "multiply", "min": "minimum", "max": "maximum", "and": "and", "or": "or",
    "xor": "xor",
}  # fmt: skip
_KINDS_OF_PRED: Final = {**_KINDS, "min": "and", "max": "or", "mul": "and", "add": "or"}
_DIRECTIONS: Final = {"max": "GE", "min": "LE"}


def _combiner(c: Computation, kind: str, dtype: DType) -> int:
    """The computation of a kind on two scalars."""
    opcode = (_KINDS_OF_PRED if dtype is DType.PRED else _KINDS)[kind]

    def write(made: Computation, params: list[int]) -> int:
        return made.add(opcode, TensorType(dtype), params)

    return c.module.scalar(opcode, (dtype, dtype), write)


def _neutral(c: Computation, kind: str, dtype: DType) -> int:
    return c.constant(np.asarray(neutral(kind, dtype), dtype.numpy), TensorType(dtype))


def _plain(opcode: str, *names: str) -> Writer:
    """An instruction whose fields are the node's attributes of the same meaning."""

    def write(c: Computation, node: Node, operands: list[int]) -> Written:
        return (c.add(opcode, node.type, operands, **{name: node[name] for name in names}),)

    return write


def _dims(opcode: str, *names: str) -> Writer:
    """An instruction whose `dimensions` are these attributes."""

    def write(c: Computation, node: Node, operands: list[int]) -> Written:
        values = [node[name] for name in names]
        dims = values[0] if len(values) == 1 and isinstance(values[0], tuple) else values
        return (c.add(opcode, node.type, operands, dimensions=dims),)

    return write


# ---- elementwise --------------------------------------------------------------------------------


def _compare(c: Computation, node: Node, operands: list[int]) -> Written:
    return (c.add("compare", node.type, operands, comparison_direction=node["direction"]),)


def _is_nan(c: Computation, node: Node, operands: list[int]) -> Written:
    return (c.add("compare", node.type, operands * 2, comparison_direction="NE"),)


def _trunc(c: Computation, node: Node, operands: list[int]) -> Written:
    type_, (x,) = node.type, operands
    pred = TensorType(DType.PRED, type_.shape)
    negative = c.add("compare", pred, [x, c.full(0, type_)], comparison_direction="LT")
    parts = [c.add(opcode, type_, [x]) for opcode in ("ceil", "floor")]
    return (c.add("select", type_, [negative, *parts]),)


def _normal_cdf(c: Computation, node: Node, operands: list[int]) -> Written:
    type_ = node.type

    def times(x: int, factor: float) -> int:
        return c.add("multiply", type_, [x, c.full(factor, type_)])

    bell = c.add("erf", type_, [times(operands[0], math.sqrt(0.5))])
    return (times(c.add("add", type_, [bell, c.full(1, type_)]), 0.5),)


def _normal_pdf(c: Computation, node: Node, operands: list[int]) -> Written:
    type_ = node.type
    square = c.add("multiply", type_, operands * 2)
    exponent = c.add("multiply", type_, [square, c.full(-0.5, type_)])
    scale = c.full(1 / math.sqrt(2 * math.pi), type_)
    return (c.add("multiply", type_, [c.add("exponential", type_, [exponent]), scale]),)


def _conj(c: Computation, node: Node, operands: list[int]) -> Written:
    part = TensorType(DType.F32 if node.dtype is DType.C64 else DType.F64, node.shape)
    real, imag = (c.add(opcode, part, operands) for opcode in ("real", "imag"))
    return (c.add("complex", node.type, [real, c.add("negate", part, [imag])]),)


def _of_signed(opcode: str) -> Writer:
    """`abs` or `sign`, which XLA has for numbers with a sign only."""

    def write(c: Computation, node: Node, operands: list[int]) -> Written:
        if not node.dtype.is_unsigned:
            return (c.add(opcode, node.type, operands),)
        if opcode == "abs":
            return (operands[0],)
        return (c.add("minimum", node.type, [*operands, c.full(1, node.type)]),)

    return write


def _convert(c: Computation, node: Node, operands: list[int]) -> Written:
    source = node.srcs[0].type
    if source.dtype.is_complex and node.dtype is DType.PRED:
        zero = c.full(0, source)
        return (c.add("compare", node.type, [*operands, zero], comparison_direction="NE"),)
    if source.dtype.is_complex and not node.dtype.is_complex:
        source = TensorType(DType.F32 if source.dtype is DType.C64 else DType.F64, source.shape)
        operands = [c.add("real", source, operands)]
    if node.dtype is DType.F8E4M3FN and source.dtype.is_float and source.dtype.itemsize > 1:
        # The tensor IR saturates, XLA has NaN for what is too large.
        low, high = (c.full(v, source) for v in (-_LARGEST_F8E4M3FN, _LARGEST_F8E4M3FN))
        operands = [c.add("clamp", source, [low, *operands, high])]
    return (c.add("convert", node.type, operands),)


# ---- shape and position -------------------------------------------------------------------------


def _constant(c: Computation, node: Node, _operands: list[int]) -> Written:
    return (c.constant(node["literal"].array, node.type),)


def _slice(c: Computation, node: Node, operands: list[int]) -> Written:
    dims = [
        message("Slice")(start=start, limit=limit, stride=stride)
        for start, limit, stride in zip(
            node["starts"], node["limits"], node["strides"], strict=True
        )
    ]
    return (c.add("slice", node.type, operands, slice_dimensions=dims),)


def _pad(c: Computation, node: Node, operands: list[int]) -> Written:
    dims = [
        message("PaddingDimension")(low=low, high=high, interior=interior)
        for low, high, interior in zip(node["low"], node["high"], node["interior"], strict=True)
    ]
    return (c.add("pad", node.type, operands, padding_config=message("Padding")(dimensions=dims)),)


def _dynamic_slice(c: Computation, node: Node, operands: list[int]) -> Written:
    return (c.add("dynamic-slice", node.type, operands, dynamic_slice_sizes=node["sizes"]),)


def _named(node: Node, names: str) -> dict[str, Any]:
    return {name: node[name] for name in names.split()}


def _gather(c: Computation, node: Node, operands: list[int]) -> Written:
    names = (
        "offset_dims collapsed_slice_dims start_index_map index_vector_dim operand_batching_dims "
        "start_indices_batching_dims"
    )
    dims = message("Gather")(**_named(node, names))
    sizes = node["slice_sizes"]
    return (
        c.add(
            "gather", node.type, operands, gather_dimension_numbers=dims, gather_slice_sizes=sizes
        ),
    )


def _scatter(c: Computation, node: Node, operands: list[int]) -> Written:
    names = (
        "update_window_dims inserted_window_dims scatter_dims_to_operand_dims index_vector_dim "
        "input_batching_dims scatter_indices_batching_dims"
    )
    kind = node["kind"]
    called = (
        c.module.scalar("second", (node.dtype, node.dtype), lambda _made, params: params[1])
        if kind == "set"
        else _combiner(c, kind, node.dtype)
    )
    return (
        c.add(
            "scatter",
            node.type,
            operands,
            scatter_dimension_numbers=message("Scatter")(**_named(node, names)),
            called_computation_ids=[called],
            unique_indices=bool(node.get("unique", False)),
        ),
    )


# ---- contractions -------------------------------------------------------------------------------


def _dot(c: Computation, node: Node, operands: list[int]) -> Written:
    dims = message("Dot")(
        lhs_batch_dimensions=node["lhs_batch"],
        rhs_batch_dimensions=node["rhs_batch"],
        lhs_contracting_dimensions=node["lhs_contract"],
        rhs_contracting_dimensions=node["rhs_contract"],
    )
    return (c.add("dot", node.type, operands, dot_dimension_numbers=dims),)


def _window(sizes: Sequence[int], **others: Sequence[int]) -> Any:
    """A Window message; what isn't given is 1, edges 0."""
    given = {
        "stride": [1] * len(sizes), "padding_low": [0] * len(sizes),
        "padding_high": [0] * len(sizes), "window_dilation": [1] * len(sizes),
        "base_dilation": [1] * len(sizes), **others,
    }  # fmt: skip
    dims = [
        message("WindowDimension")(size=size, **{name: given[name][d] for name in given})
        for d, size in enumerate(sizes)
    ]
    return message("Window")(dimensions=dims)


def _convolution(c: Computation, node: Node, operands: list[int]) -> Written:
    x, w, out = node["lhs_spec"], node["rhs_spec"], node["out_spec"]
    dims = message("Convolution")(
        input_batch_dimension=x[0],
        input_feature_dimension=x[1],
        input_spatial_dimensions=x[2:],
        kernel_output_feature_dimension=w[0],
        kernel_input_feature_dimension=w[1],
        kernel_spatial_dimensions=w[2:],
        output_batch_dimension=out[0],
        output_feature_dimension=out[1],
        output_spatial_dimensions=out[2:],
    )
    window = _window(
        [node.srcs[1].shape[d] for d in w[2:]],
        stride=node["strides"],
        padding_low=node["low"],
        padding_high=node["high"],
        base_dilation=node["lhs_dilation"],
        window_dilation=node["rhs_dilation"],
    )
    return (
        c.add(
            "convolution",
            node.type,
            operands,
            convolution_dimension_numbers=dims,
            window=window,
            feature_group_count=node["feature_group_count"],
            batch_group_count=node["batch_group_count"],
        ),
    )


# ---- reductions ---------------------------------------------------------------------------------


def _reduce(c: Computation, node: Node, operands: list[int]) -> Written:
    kind, dtype = node["kind"], node.dtype
    called = [_combiner(c, kind, dtype)]
    operands = [*operands, _neutral(c, kind, dtype)]
    dims = node["dims"]
    return (c.add("reduce", node.type, operands, dimensions=dims, called_computation_ids=called),)


def _arg_reduce(c: Computation, node: Node, operands: list[int]) -> Written:
    """Values and positions together; a NaN is chosen, and among equals the first."""
    x, kind = node.srcs[0].type, node["kind"]
    if x.dtype is DType.PRED or not x.shape[node["dim"]]:
        return None
    place = TensorType(node.dtype, x.shape)

    def write(made: Computation, params: list[int]) -> int:
        a, i, b, j = params
        pred = TensorType(DType.PRED)

        def compare(direction: str, left: int, right: int) -> int:
            return made.add("compare", pred, [left, right], comparison_direction=direction)

        better = compare("GT" if kind == "max" else "LT", a, b)
        wins = made.add("or", pred, [better, compare("NE", a, a)])
        first = made.add("and", pred, [compare("EQ", a, b), compare("LT", i, j)])
        earlier = made.add("or", pred, [wins, first])
        value = made.add("select", TensorType(x.dtype), [wins, a, b])
        where = made.add("select", TensorType(node.dtype), [earlier, i, j])
        return made.tuple_([value, where])

    called = c.module.scalar(f"arg{kind}", (x.dtype, node.dtype) * 2, write)
    positions = c.add("iota", place, dimensions=[node["dim"]])
    starts = [
        _neutral(c, kind, x.dtype),
        c.constant(np.zeros((), node.dtype.numpy), TensorType(node.dtype)),
    ]
    types = [TensorType(x.dtype, node.shape), node.type]
    made = c.several(
        "reduce",
        types,
        [*operands, positions, *starts],
        dimensions=[node["dim"]],
        called_computation_ids=[called],
    )
    return (made[1],)


def _reduce_window(c: Computation, node: Node, operands: list[int]) -> Written:
    kind, dtype = node["kind"], node.dtype
    window = _window(
        node["window"],
        stride=node["strides"],
        padding_low=node["low"],
        padding_high=node["high"],
        base_dilation=node["base_dilation"],
        window_dilation=node["window_dilation"],
    )
    called = [_combiner(c, kind, dtype)]
    operands = [*operands, _neutral(c, kind, dtype)]
    return (
        c.add("reduce-window", node.type, operands, window=window, called_computation_ids=called),
    )


def _cumulative(c: Computation, node: Node, operands: list[int]) -> Written:
    """A window that grows from the start."""
    kind, dtype, extent = node["kind"], node.dtype, node.shape[node["dim"]]
    if kind not in _KINDS or dtype is DType.PRED or not extent:
        return None
    ones = [1] * node.type.rank
    sizes, low = list(ones), [0] * node.type.rank
    sizes[node["dim"]], low[node["dim"]] = extent, extent - 1
    called = [_combiner(c, kind, dtype)]
    operands = [*operands, _neutral(c, kind, dtype)]
    window = _window(sizes, padding_low=low)
    return (
        c.add("reduce-window", node.type, operands, window=window, called_computation_ids=called),
    )


def _select_and_scatter(c: Computation, node: Node, operands: list[int]) -> Written:
    kind, dtype = node["kind"], node.dtype
    direction = _DIRECTIONS[node["select"]]

    def write(made: Computation, params: list[int]) -> int:
        pred = TensorType(DType.PRED)
        return made.add("compare", pred, params, comparison_direction=direction)

    called = [c.module.scalar(direction, (dtype, dtype), write), _combiner(c, kind, dtype)]
    window = _window(
        node["window"], stride=node["strides"], padding_low=node["low"], padding_high=node["high"]
    )
    operands = [*operands, _neutral(c, kind, dtype)]
    return (
        c.add(
            "select-and-scatter",
            node.type,
            operands,
            window=window,
            called_computation_ids=called,
        ),
    )


# ---- sorting ------------------------------------------------------------------------------------


def _order(c: Computation, dtypes: Sequence[DType], *, descending: bool) -> int:
    """A comparator by the first operand: -0.0 equals 0.0, NaN is the largest."""
    direction, first = "GT" if descending else "LT", dtypes[0]

    def key(made: Computation, x: int) -> int:
        type_, pred = TensorType(first), TensorType(DType.PRED)
        zero, nan = (made.constant(np.array(v).astype(first.numpy), type_) for v in (0.0, math.nan))
        is_zero = made.add("compare", pred, [x, zero], comparison_direction="EQ")
        is_nan = made.add("compare", pred, [x, x], comparison_direction="NE")
        return made.add(
            "select", type_, [is_nan, nan, made.add("select", type_, [is_zero, zero, x])]
        )

    def write(made: Computation, params: list[int]) -> int:
        a, b = params[:2]
        fields = {"comparison_direction": direction}
        if first.is_float:
            a, b, fields["comparison_type"] = key(made, a), key(made, b), "TOTALORDER"
        return made.add("compare", TensorType(DType.PRED), [a, b], **fields)

    pairs = tuple(dtype for dtype in dtypes for _ in range(2))
    return c.module.scalar(f"order{direction}", pairs, write)


def _sorted(
    c: Computation, types: Sequence[TensorType], operands: list[int], dim: int, *,
    descending: bool, stable: bool,
) -> tuple[int, ...]:  # fmt: skip
    called = _order(c, [type_.dtype for type_ in types], descending=descending)
    return c.several(
        "sort", types, operands, dimensions=[dim], is_stable=stable, called_computation_ids=[called]
    )


def _sort(c: Computation, node: Node, operands: list[int]) -> Written:
    if node.types[0].dtype.is_complex:
        return None
    descending, stable = node["descending"], node["stable"]
    return _sorted(c, node.types, operands, node["dim"], descending=descending, stable=stable)


def _topk(c: Computation, node: Node, operands: list[int]) -> Written:
    """A sort with positions, of which the first are taken."""
    x = node.srcs[0].type
    if x.dtype.is_complex:
        return None
    place, last = TensorType(DType.S32, x.shape), x.rank - 1
    positions = c.add("iota", place, dimensions=[last])
    both = _sorted(
        c, [x, place], [*operands, positions], last, descending=node["largest"], stable=True
    )
    shape = node.types[0].shape
    dims = [message("Slice")(limit=n, stride=1) for n in shape]
    values, where = (
        c.add("slice", TensorType(t.dtype, shape), [part], slice_dimensions=dims)
        for t, part in zip((x, place), both, strict=True)
    )
    return values, c.add("convert", node.types[1], [where])


# ---- control flow, collectives ------------------------------------------------------------------


def _while(c: Computation, node: Node, operands: list[int]) -> Written:
    body, cond = c.module.graph(node["body"], one_tuple=True), c.module.predicate(node["cond"])
    state = c.tuple_(operands)
    # XLA lists the body first.
    made = c.add("while", node.types, [state], called_computation_ids=[body, cond])
    return tuple(c.parts(made, node.types))


def _conditional(c: Computation, node: Node, operands: list[int]) -> Written:
    called = [c.module.graph(branch, one_tuple=True) for branch in node["branches"]]
    selector, state = operands[0], c.tuple_(operands[1:])
    states = [state] * len(called)
    made = c.add("conditional", node.types, [selector, *states], called_computation_ids=called)
    return tuple(c.parts(made, node.types))


def _call(c: Computation, node: Node, operands: list[int]) -> Written:
    called = c.module.graph(node["body"], one_tuple=False)
    made = c.add("call", node.types, operands, called_computation_ids=[called])
    return tuple(c.parts(made, node.types))


def _groups(node: Node) -> list[Any]:
    return [message("ReplicaGroup")(replica_ids=ranks) for ranks in node["group"]]


def _collective(opcode: str, *, reduces: bool = False, dim: str = "") -> Writer:
    def write(c: Computation, node: Node, operands: list[int]) -> Written:
        if reduces and node["kind"] not in _KINDS:
            return None
        fields: dict[str, Any] = {"replica_groups": _groups(node)}
        fields["channel_id"] = node.get("channel", 0) + 1
        fields["use_global_device_ids"] = True
        if reduces:
            fields["called_computation_ids"] = [_combiner(c, node["kind"], node.dtype)]
        if dim:
            fields["dimensions"] = [node[dim]]
        return (c.add(opcode, node.type, operands, **fields),)

    return write


def _all_to_all(c: Computation, node: Node, operands: list[int]) -> Written:
    if node["split_dim"] != node["concat_dim"] or node.get("send") is not None:
        return None
    dims = [node["split_dim"]]
    return (
        c.add("all-to-all", node.type, operands, replica_groups=_groups(node), dimensions=dims),
    )


def _permute(c: Computation, node: Node, operands: list[int]) -> Written:
    pairs = [message("SourceTarget")(source=a, target=b) for a, b in node["pairs"]]
    return (
        c.add(
            "collective-permute",
            node.type,
            operands,
            source_target_pairs=pairs,
            channel_id=node.get("channel", 0) + 1,
        ),
    )


def _check(c: Computation, node: Node, _operands: list[int]) -> Written:
    """XLA clamps indices, so in HLO nothing is checked."""
    if node["target"] != CHECK:
        return None
    return (c.constant(np.zeros((), node.dtype.numpy), node.type),)


# Not those that are younger than most compilers; what is missing here is a custom call.
_XLA = frozenset(op for op, operator in TABLE.items() if operator.xla is Xla.YES)
_SAME_NAME = (Group.UNARY | Group.BINARY) & _XLA | {
    Op.COMPLEX, Op.SELECT, Op.CLAMP, Op.REAL, Op.IMAG, Op.IS_FINITE, Op.BITCAST_CONVERT, Op.RESHAPE,
    Op.DYNAMIC_UPDATE_SLICE,
}  # fmt: skip

WRITERS: Final[dict[Op, Writer]] = {
    **{op: _plain(op.value.replace("_", "-")) for op in _SAME_NAME},
    Op.ABS: _of_signed("abs"),
    Op.SIGN: _of_signed("sign"),
    Op.REDUCE_PRECISION: _plain("reduce-precision", "exponent_bits", "mantissa_bits"),
    Op.COMPARE: _compare,
    Op.IS_NAN: _is_nan,
    Op.TRUNC: _trunc,
    Op.NORMAL_CDF: _normal_cdf,
    Op.NORMAL_PDF: _normal_pdf,
    Op.CONJ: _conj,
    Op.CONVERT: _convert,
    Op.CONSTANT: _constant,
    Op.IOTA: _dims("iota", "dim"),
    Op.BROADCAST_IN_DIM: _dims("broadcast", "dims"),
    Op.TRANSPOSE: _dims("transpose", "permutation"),
    Op.CONCATENATE: _dims("concatenate", "dim"),
    Op.REVERSE: _dims("reverse", "dims"),
    Op.SLICE: _slice,
    Op.PAD: _pad,
    Op.DYNAMIC_SLICE: _dynamic_slice,
    Op.GATHER: _gather,
    Op.SCATTER: _scatter,
    Op.DOT_GENERAL: _dot,
    Op.CONVOLUTION: _convolution,
    Op.REDUCE: _reduce,
    Op.ARG_REDUCE: _arg_reduce,
    Op.REDUCE_WINDOW: _reduce_window,
    Op.SELECT_AND_SCATTER: _select_and_scatter,
    Op.CUMULATIVE: _cumulative,
    Op.SORT: _sort,
    Op.TOPK: _topk,
    Op.WHILE: _while,
    Op.CONDITIONAL: _conditional,
    Op.CALL: _call,
    Op.CUSTOM_CALL: _check,
    Op.ALL_REDUCE: _collective("all-reduce", reduces=True),
    Op.ALL_GATHER: _collective("all-gather", dim="dim"),
    Op.REDUCE_SCATTER: _collective("reduce-scatter", reduces=True, dim="dim"),
    Op.ALL_TO_ALL: _all_to_all,
    Op.COLLECTIVE_PERMUTE: _permute,
}
