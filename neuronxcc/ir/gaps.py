"""What the real compiler refuses or does lossily, by operator and target, with its documented code.

Source: the error pages of the AWS Neuron documentation (compiler/error-codes, SDK 2.32). This says
nothing about how a graph runs here; portability reports and modes are made from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op

_WIDE = frozenset({DType.S32, DType.U32, DType.S64, DType.U64})
_INT64 = frozenset({DType.S64, DType.U64})
_NOT_ON_V2 = frozenset({"trn2", "trn3"})
_BEFORE_TRN3 = frozenset({"trn1", "trn1n", "inf2", "trn2"})

# Operators that take complex64 since SDK 2.32.
COMPLEX_OPS = frozenset(
    {
        Op.ADD, Op.SUBTRACT, Op.MULTIPLY, Op.DIVIDE, Op.COMPARE, Op.ABS, Op.EXP, Op.SIN, Op.COS,
        Op.RESHAPE, Op.COMPLEX, Op.REAL, Op.IMAG, Op.DOT_GENERAL, Op.BROADCAST_IN_DIM, Op.IOTA,
        Op.NEGATE, Op.POWER, Op.LOG, Op.LOG1P, Op.EXPM1, Op.SQRT, Op.RSQRT, Op.TAN, Op.TANH,
        Op.LOGISTIC, Op.SIGN, Op.SELECT, Op.TRANSPOSE, Op.REVERSE, Op.SLICE, Op.DYNAMIC_SLICE,
        Op.DYNAMIC_UPDATE_SLICE, Op.CONCATENATE, Op.PAD, Op.CONSTANT, Op.PARAMETER, Op.GET,
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Gap:
    """One documented limit.

    Attributes:
        code: The documented code.
        ops: The operators it is about; None: all.
        applies: Whether a node of these operators is hit.
        text: What is wrong.
        remedy: What to do.
        targets: Where; None: every target.
        lossy: The compiler goes on, with a loss, unless told otherwise
            (--implicit-integer-downcast).
    """

    code: str
    ops: frozenset[Op] | None
    applies: Callable[[Node], bool]
    text: str
    remedy: str
    targets: frozenset[str] | None = None
    lossy: bool = False


def _uses(node: Node, dtypes: frozenset[DType]) -> bool:
    return any(t.dtype in dtypes for t in (*node.types, *(src.types[0] for src in node.srcs)))


def _operand(node: Node, dtypes: frozenset[DType]) -> bool:
    return node.srcs[0].dtype in dtypes


def _integer(node: Node) -> bool:
    return node.dtype.is_integer or node.dtype is DType.PRED


def _more_than_one(node: Node, name: str) -> bool:
    return any(n > 1 for n in node[name])


def _beyond(node: Node) -> bool:
    """Indices counted by an iota that runs past the operand's dimension."""
    x, indices = node.srcs[0], node.srcs[1]
    name = "start_index_map" if node.op is Op.GATHER else "scatter_dims_to_operand_dims"
    if indices.op is not Op.IOTA or len(node[name]) != 1:
        return False
    return bool(indices.shape[indices["dim"]] > x.shape[node[name][0]])


def _big_constant(node: Node) -> bool:
    array = node["literal"].array
    return array.dtype == np.uint64 and bool((array > 2**32 - 1).any())


def _on(*ops: Op) -> frozenset[Op]:
    return frozenset(ops)


GAPS: tuple[Gap, ...] = (
    Gap(
        "NCC_EUOC002", _on(Op.HOST_CALL), lambda _: True,
        "An unsupported operator was used: one without a lowering, which would run on the host",
        "rewrite it with supported operators (neuronx-cc list-operators)",
    ),
    Gap(
        "NCC_ESPP004", None, lambda n: _uses(n, frozenset({DType.F64, DType.C128})),
        "data type not supported for code generation: 64-bit floats", "cast to float32",
    ),
    Gap(
        "NCC_EVRF004", frozenset(Op) - COMPLEX_OPS,
        lambda n: _uses(n, frozenset({DType.C64, DType.C128})),
        "Complex data types are not supported on the Neuron device by this operator",
        "split real and imaginary parts, or run this part on the CPU",
    ),
    Gap(
        "NCC_EVRF051", None, lambda n: _uses(n, frozenset({DType.F8E4M3FN})),
        "Data type F8E4M3FN is not supported on TRN1/TRN2",
        "compile for trn3, cast to bfloat16, or pass "
        "--experimental-unsafe-fp8e4m3fn-as-fp8e4m3 with weights scaled to 240",
        _BEFORE_TRN3,
    ),
    Gap(
        "NCC_ESFH002", _on(Op.CONSTANT), _big_constant,
        "unsigned 64-bit integer constant cannot be safely converted to 32-bit",
        "use uint32 constants",
    ),
    Gap(
        "NCC_EVRF010", _on(Op.CONVOLUTION),
        lambda n: _more_than_one(n, "lhs_dilation") and _more_than_one(n, "rhs_dilation"),
        "simultaneous use of input and kernel dilation, which is not supported",
        "use one of the two; dilate the other by hand",
    ),
    Gap(
        "NCC_EVRF011", _on(Op.CONVOLUTION),
        lambda n: _more_than_one(n, "lhs_dilation") and _more_than_one(n, "strides"),
        "strided convolution combined with dilated input, which is not supported",
        "separate upsampling from downsampling",
    ),
    Gap(
        "NCC_EVRF013", _on(Op.TOPK), lambda n: _operand(n, _WIDE),
        "TopK does not support int32 or int64 input tensors", "cast to float",
    ),
    Gap(
        "NCC_EVRF016", _on(Op.SCATTER),
        lambda n: n["kind"] in ("mul", "min", "max") and _integer(n),
        "scatter-reduce cannot reduce when data or destination is integer or boolean",
        "cast to float32 or bfloat16",
    ),
    Gap(
        "NCC_EVRF017", _on(Op.REDUCE_WINDOW), lambda n: _more_than_one(n, "base_dilation"),
        "reduce-window with base dilation greater than 1 is not supported",
        "dilate the operand by hand (pad)",
    ),
    Gap(
        "NCC_EVRF018", _on(Op.REDUCE_WINDOW), lambda n: _more_than_one(n, "window_dilation"),
        "reduce-window with window dilation greater than 1 is not supported (dilated pooling)",
        "use a dense window",
    ),
    Gap(
        "NCC_EVRF022", _on(Op.SHIFT_RIGHT_ARITHMETIC), lambda n: n.dtype.itemsize != 4,
        "Shift-right-arithmetic on non 32-bit inputs is not supported",
        "cast the first operand to int32",
    ),
    Gap(
        "NCC_EVRF031", _on(Op.SCATTER), _beyond,
        "scatter out-of-bounds: the indices of an iota run beyond the operand's dimension",
        "match the sizes",
    ),
    Gap(
        "NCC_EVRF056", _on(Op.GATHER), _beyond,
        "gather encountered out of bound indices: those of an iota run beyond the operand's "
        "dimension",
        "raise the size of the table (max_position_embeddings below the sequence length?)",
    ),
    Gap(
        "NCC_EVRF035", _on(Op.DOT_GENERAL, Op.CONVOLUTION), lambda n: _operand(n, _INT64),
        "dot does not support 64-bit integer operands on this target; they are converted to f32, "
        "exact to 2^24",
        "cast to float, or allow `dot` in --implicit-integer-downcast", lossy=True,
    ),
    Gap(
        "NCC_EVRF035", _on(Op.DOT_GENERAL, Op.CONVOLUTION), lambda n: _operand(n, _WIDE - _INT64),
        "dot does not support 32-bit integer operands on this target; they are converted to f32, "
        "exact to 2^24",
        "cast to float, or allow `dot` in --implicit-integer-downcast", _NOT_ON_V2, lossy=True,
    ),
    Gap(
        "NCC_EVRF060", _on(Op.SCATTER), lambda n: n["kind"] == "add" and _operand(n, _WIDE),
        "Scatter does not support integer operands on this target; they are converted to f32, "
        "exact to 2^24",
        "cast, or allow `scatter` in --implicit-integer-downcast", lossy=True,
    ),
    Gap(
        "NCC_EVRF061", _on(Op.ALL_REDUCE), lambda n: _operand(n, _WIDE),
        "AllReduce performs its reduction in f32, exact to 2^24, and does not support 32/64-bit "
        "integers",
        "cast, or allow `all_reduce` in --implicit-integer-downcast", lossy=True,
    ),
    Gap(
        "NCC_EVRF062", _on(Op.POWER), lambda n: _operand(n, _INT64),
        "power does not support 64-bit integer operands on this target; they are downcast to "
        "32-bit, exact to 2^31",
        "cast, or allow `pow` in --implicit-integer-downcast", lossy=True,
    ),
    Gap(
        "NCC_EVRF063", _on(Op.REDUCE_SCATTER), lambda n: _operand(n, _WIDE),
        "ReduceScatter performs its reduction in f32, exact to 2^24, and does not support "
        "32/64-bit integers",
        "cast, or allow `reduce_scatter` in --implicit-integer-downcast", lossy=True,
    ),
)  # fmt: skip


def gaps(node: Node, target: str) -> list[Gap]:
    """The limits that a node meets on a target, named as in `neuronxcc.targets`."""
    return [
        gap
        for gap in GAPS
        if (gap.ops is None or node.op in gap.ops)
        and (gap.targets is None or target in gap.targets)
        and gap.applies(node)
    ]
