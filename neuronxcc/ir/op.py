"""The operators of the tensor IR: XLA's, plus the few that a PyTorch program needs beyond them."""

from __future__ import annotations

import enum


class Op(enum.Enum):
    """An operator. The value is its name in printed IR."""

    # Members are compared by identity, so this fits; enum's own is a function in Python.
    __hash__ = object.__hash__

    # Leaves
    PARAMETER = "parameter"  # index, name
    CONSTANT = "constant"  # literal: Literal
    IOTA = "iota"  # dim

    # One operand, elementwise, result of the same type
    ABS = "abs"
    NEGATE = "negate"
    SIGN = "sign"
    CEIL = "ceil"
    FLOOR = "floor"
    ROUND_EVEN = "round_nearest_even"
    TRUNC = "trunc"
    EXP = "exponential"
    EXP2 = "exponential2"
    EXPM1 = "exponential_minus_one"
    LOG = "log"
    LOG2 = "log2"
    LOG10 = "log10"
    LOG1P = "log_plus_one"
    SQRT = "sqrt"
    RSQRT = "rsqrt"
    SIN = "sine"
    COS = "cosine"
    TAN = "tan"
    SINH = "sinh"
    COSH = "cosh"
    TANH = "tanh"
    ASIN = "asin"
    ACOS = "acos"
    ATAN = "atan"
    ASINH = "asinh"
    ACOSH = "acosh"
    ATANH = "atanh"
    ERF = "erf"
    ERFC = "erfc"
    ERFINV = "erf_inv"
    NORMAL_CDF = "normal_cdf"
    NORMAL_PDF = "normal_pdf"
    LGAMMA = "lgamma"
    DIGAMMA = "digamma"
    LOGISTIC = "logistic"
    NOT = "not"
    POPCNT = "popcnt"
    CONJ = "conj"
    # One operand, elementwise, result of another type
    IS_FINITE = "is_finite"
    IS_NAN = "is_nan"
    REAL = "real"
    IMAG = "imag"
    CONVERT = "convert"  # type of the result: `dtype`
    BITCAST_CONVERT = "bitcast_convert"  # dtype
    # Rounds to a format of fewer bits, keeps the type: exponent_bits, mantissa_bits (tf32: 8, 10)
    REDUCE_PRECISION = "reduce_precision"

    # Two operands of one type, elementwise
    ADD = "add"
    SUBTRACT = "subtract"
    MULTIPLY = "multiply"
    DIVIDE = "divide"  # integers: rounds toward zero
    REMAINDER = "remainder"  # sign of the dividend
    POWER = "power"
    MAXIMUM = "maximum"  # NaN wins
    MINIMUM = "minimum"  # NaN wins
    ATAN2 = "atan2"
    NEXTAFTER = "nextafter"
    COPYSIGN = "copysign"
    AND = "and"
    OR = "or"
    XOR = "xor"
    SHIFT_LEFT = "shift_left"
    SHIFT_RIGHT_ARITHMETIC = "shift_right_arithmetic"
    SHIFT_RIGHT_LOGICAL = "shift_right_logical"
    COMPLEX = "complex"  # real, imaginary
    COMPARE = "compare"  # direction: EQ NE LT LE GT GE; result pred

    # Three operands, elementwise
    SELECT = "select"  # pred, on_true, on_false
    CLAMP = "clamp"  # low, x, high, all of one shape

    # Shape and position
    BROADCAST_IN_DIM = "broadcast_in_dim"  # shape, dims
    RESHAPE = "reshape"  # shape
    TRANSPOSE = "transpose"  # permutation
    SLICE = "slice"  # starts, limits, strides
    PAD = "pad"  # x, value; low, high, interior
    CONCATENATE = "concatenate"  # dim
    REVERSE = "reverse"  # dims
    DYNAMIC_SLICE = "dynamic_slice"  # x, one scalar start per dimension; sizes
    DYNAMIC_UPDATE_SLICE = "dynamic_update_slice"  # x, update, one scalar start per dimension
    GATHER = "gather"  # x, indices; GatherDims as attributes, as in XLA
    SCATTER = "scatter"  # x, indices, updates; as in XLA; kind: set add mul min max

    # Contractions
    DOT_GENERAL = "dot_general"  # lhs_batch, rhs_batch, lhs_contract, rhs_contract, dtype
    CONVOLUTION = "convolution"  # ConvDims as attributes, groups in feature_group_count

    # Reductions and what runs along a dimension
    REDUCE = "reduce"  # kind: add mul min max and or xor; dims
    ARG_REDUCE = "arg_reduce"  # kind: min max; dim; dtype of the index; first one wins, NaN wins
    REDUCE_WINDOW = "reduce_window"  # kind; window, strides, low, high, base/window dilation
    SELECT_AND_SCATTER = "select_and_scatter"  # x, source; window, strides, low, high; select, kind
    CUMULATIVE = "cumulative"  # kind: add mul min max logaddexp; dim
    SORT = "sort"  # operands sorted together by the first; dim, descending, stable
    TOPK = "topk"  # k, largest; last dimension; values and s64 indices

    # Several results, control flow, calls
    GET = "get_tuple_element"  # index
    WHILE = "while"  # cond, body: Graph
    CONDITIONAL = "conditional"  # branches: tuple of Graph; first operand selects
    CALL = "call"  # body: Graph
    # target "aten::name.overload", args and kwargs (pairs) as in its schema with Operand(i) for
    # tensors, device: bool (see neff.program.AtenStep), sequence for effects. CUSTOM_CALL: how we
    # run something that a NeuronCore has; HOST_CALL: an operator without a lowering.
    CUSTOM_CALL = "custom_call"
    HOST_CALL = "host_call"

    # Collectives; see `collectives` for what they have in common
    ALL_REDUCE = "all_reduce"  # kind, group
    ALL_GATHER = "all_gather"  # dim, group
    REDUCE_SCATTER = "reduce_scatter"  # kind, dim, group
    ALL_TO_ALL = "all_to_all"  # split_dim, concat_dim, group; send, receive: uneven rows
    COLLECTIVE_BROADCAST = "collective_broadcast"  # root: place in the group, group
    COLLECTIVE_PERMUTE = "collective_permute"  # pairs

    def __repr__(self) -> str:
        return self.value
