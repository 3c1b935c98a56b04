"""The shape and dtype rule of every operator: operand types and attributes -> result types.

`build` makes nodes through these rules and `verify` checks nodes against them, so a rule is written
once. Rules take attributes in the form in which nodes hold them (tuples of int, complete, no
negative dimension); the conveniences are in `build`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from neuronxcc.ir.dtypes import COMPLEX, FLOATS, FLOATS8, SIGNED, UNSIGNED, DType
from neuronxcc.ir.node import Literal, TensorType
from neuronxcc.ir.op import Group, Op

Types = tuple[TensorType, ...]
Attrs = Mapping[str, Any]
Rule = Callable[[Op, Types, Attrs], Types]


class ShapeError(ValueError):
    """An operator was given operands or attributes that it does not take.

    The text names the operator, what was given and what is allowed.
    """

    code = "NCC_EVRF064"

    def __init__(self, op: Op, text: str) -> None:
        super().__init__(f"[{self.code}] {op.value}: {text}")


INTEGERS = SIGNED | UNSIGNED
PRED = frozenset({DType.PRED})
# f8e8m0fnu holds powers of two only: it has no zero and no sign, so nothing is computed in it.
REAL = FLOATS - {DType.F8E8M0}
NUMBERS = INTEGERS | REAL | COMPLEX
EVERY = frozenset(DType)

_UNARY_DTYPES: dict[Op, frozenset[DType]] = {
    **dict.fromkeys((Op.ABS, Op.NEGATE, Op.SIGN), NUMBERS),
    **dict.fromkeys((Op.CEIL, Op.FLOOR, Op.ROUND_EVEN, Op.TRUNC), REAL),
    **dict.fromkeys((Op.ERF, Op.ERFC, Op.ERFINV, Op.LGAMMA, Op.DIGAMMA), REAL),
    Op.NOT: PRED | INTEGERS,
    Op.POPCNT: INTEGERS,
    Op.CONJ: COMPLEX,
}
_BINARY_DTYPES: dict[Op, frozenset[DType]] = {
    **dict.fromkeys((Op.ADD, Op.SUBTRACT, Op.MULTIPLY, Op.DIVIDE, Op.POWER), NUMBERS),
    Op.REMAINDER: INTEGERS | REAL,
    **dict.fromkeys((Op.MAXIMUM, Op.MINIMUM), PRED | INTEGERS | REAL),
    **dict.fromkeys((Op.ATAN2, Op.NEXTAFTER, Op.COPYSIGN), REAL),
    **dict.fromkeys((Op.AND, Op.OR, Op.XOR), PRED | INTEGERS),
    **dict.fromkeys((Op.SHIFT_LEFT, Op.SHIFT_RIGHT_ARITHMETIC, Op.SHIFT_RIGHT_LOGICAL), INTEGERS),
}
_KIND_DTYPES: dict[str, frozenset[DType]] = {
    "add": NUMBERS,
    "mul": NUMBERS,
    "min": PRED | INTEGERS | REAL,
    "max": PRED | INTEGERS | REAL,
    "and": PRED | INTEGERS,
    "or": PRED | INTEGERS,
    "xor": PRED | INTEGERS,
    "logaddexp": REAL,
    "set": EVERY,
}
DIRECTIONS = ("EQ", "NE", "LT", "LE", "GT", "GE")
REDUCE_KINDS = ("add", "mul", "min", "max", "and", "or", "xor")
SCATTER_KINDS = ("set", "add", "mul", "min", "max")
CUMULATIVE_KINDS = ("add", "mul", "min", "max", "logaddexp")
WINDOW_KINDS = ("add", "mul", "min", "max")
REAL_OF = {DType.C64: DType.F32, DType.C128: DType.F64}
COMPLEX_OF = {real: complex_ for complex_, real in REAL_OF.items()}


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


# ---- checks -------------------------------------------------------------------------------------


def _arity(op: Op, types: Types, count: int) -> None:
    if len(types) != count:
        raise ShapeError(op, f"takes {count} operand(s), got {len(types)}")


def _dtype(op: Op, dtype: DType, allowed: Collection[DType], what: str = "operand") -> None:
    if dtype not in allowed:
        names = " ".join(d.value for d in DType if d in allowed)
        raise ShapeError(op, f"{what} of type {dtype.value}; allowed: {names}")


def _equal_types(op: Op, types: Types) -> TensorType:
    if any(t != types[0] for t in types):
        listed = " and ".join(map(str, types))
        raise ShapeError(op, f"operands have types {listed}; they must be equal")
    return types[0]


def _choice(op: Op, name: str, value: Any, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise ShapeError(op, f"{name} {value!r}; allowed: {' '.join(allowed)}")
    return str(value)


def _kind(op: Op, attrs: Attrs, allowed: Sequence[str], dtype: DType) -> str:
    kind = _choice(op, "kind", attrs["kind"], allowed)
    _dtype(op, dtype, _KIND_DTYPES[kind], f"operand of kind {kind}")
    return kind


def _dims(op: Op, name: str, dims: Any, rank: int) -> tuple[int, ...]:
    """`dims` must be distinct dimensions of a tensor of that rank."""
    ok = isinstance(dims, tuple) and all(isinstance(d, int) and 0 <= d < rank for d in dims)
    if not ok or len(set(dims)) != len(dims):
        raise ShapeError(op, f"{name} {dims}; must be distinct dimensions in [0, {rank})")
    return tuple(dims)


def _dim(op: Op, attrs: Attrs, rank: int, name: str = "dim") -> int:
    dim = attrs[name]
    if not isinstance(dim, int) or not 0 <= dim < rank:
        raise ShapeError(op, f"{name} {dim}; must be in [0, {rank})")
    return dim


def _ints(op: Op, name: str, values: Any, length: int, minimum: int | None = None) -> Any:
    """`values` must be a tuple of that many integers, none under the minimum."""
    ok = isinstance(values, tuple) and len(values) == length
    if not ok or not all(isinstance(v, int) and not isinstance(v, bool) for v in values):
        raise ShapeError(op, f"{name} {values}; must be {length} integer(s), one per dimension")
    if minimum is not None and any(v < minimum for v in values):
        raise ShapeError(op, f"{name} {values}; no value may be under {minimum}")
    return values


def _shape(op: Op, shape: Any) -> tuple[int, ...]:
    ok = isinstance(shape, tuple) and all(isinstance(n, int) and n >= 0 for n in shape)
    if not ok:
        raise ShapeError(op, f"shape {shape}; must be non-negative integers")
    return tuple(shape)


def _scalar_starts(op: Op, starts: Types, rank: int) -> None:
    if len(starts) != rank or any(t.shape or not t.dtype.is_integer for t in starts):
        listed = ", ".join(map(str, starts))
        raise ShapeError(op, f"starts ({listed}); must be {rank} integer scalars, one a dimension")


# ---- leaves and elementwise ---------------------------------------------------------------------


def _constant(op: Op, types: Types, attrs: Attrs) -> Types:
    _arity(op, types, 0)
    if not isinstance(attrs["literal"], Literal):
        raise ShapeError(op, f"literal {attrs['literal']!r}; must be a Literal")
    return (attrs["literal"].type,)


def _unary(op: Op, types: Types, _attrs: Attrs) -> Types:
    _arity(op, types, 1)
    (x,) = types
    _dtype(op, x.dtype, _UNARY_DTYPES.get(op, REAL | COMPLEX))
    if op is Op.ABS and x.dtype.is_complex:
        return (TensorType(REAL_OF[x.dtype], x.shape),)
    return (x,)


def _predicate(op: Op, types: Types, _attrs: Attrs) -> Types:
    _arity(op, types, 1)
    _dtype(op, types[0].dtype, FLOATS)
    return (TensorType(DType.PRED, types[0].shape),)


def _part(op: Op, types: Types, _attrs: Attrs) -> Types:
    _arity(op, types, 1)
    _dtype(op, types[0].dtype, COMPLEX)
    return (TensorType(REAL_OF[types[0].dtype], types[0].shape),)


def _convert(op: Op, types: Types, attrs: Attrs) -> Types:
    _arity(op, types, 1)
    return (TensorType(attrs["dtype"], types[0].shape),)


def _bitcast(op: Op, types: Types, attrs: Attrs) -> Types:
    _arity(op, types, 1)
    src, dst = types[0].dtype, attrs["dtype"]
    if DType.PRED in (src, dst) or src.is_complex or dst.is_complex or src.itemsize != dst.itemsize:
        raise ShapeError(op, f"{src.value} to {dst.value}; both must be numbers of one size")
    return (TensorType(dst, types[0].shape),)


def _reduce_precision(op: Op, types: Types, attrs: Attrs) -> Types:
    _arity(op, types, 1)
    _dtype(op, types[0].dtype, REAL - FLOATS8)
    exponent, mantissa = attrs["exponent_bits"], attrs["mantissa_bits"]
    if exponent < 1 or mantissa < 0:
        raise ShapeError(op, f"exponent_bits {exponent}, mantissa_bits {mantissa}; need >= 1, >= 0")
    return types


def _binary(op: Op, types: Types, _attrs: Attrs) -> Types:
    _arity(op, types, 2)
    result = _equal_types(op, types)
    _dtype(op, result.dtype, _BINARY_DTYPES[op])
    return (result,)


def _complex(op: Op, types: Types, _attrs: Attrs) -> Types:
    _arity(op, types, 2)
    part = _equal_types(op, types)
    _dtype(op, part.dtype, COMPLEX_OF)
    return (TensorType(COMPLEX_OF[part.dtype], part.shape),)


def _compare(op: Op, types: Types, attrs: Attrs) -> Types:
    _arity(op, types, 2)
    operand = _equal_types(op, types)
    direction = _choice(op, "direction", attrs["direction"], DIRECTIONS)
    if operand.dtype.is_complex and direction not in ("EQ", "NE"):
        raise ShapeError(op, f"direction {direction} of {operand.dtype.value}; allowed: EQ NE")
    return (TensorType(DType.PRED, operand.shape),)


def _select(op: Op, types: Types, _attrs: Attrs) -> Types:
    _arity(op, types, 3)
    result = _equal_types(op, types[1:])
    if types[0] != TensorType(DType.PRED, result.shape):
        raise ShapeError(op, f"predicate {types[0]}; must be pred of shape {result.shape}")
    return (result,)


def _clamp(op: Op, types: Types, _attrs: Attrs) -> Types:
    _arity(op, types, 3)
    result = _equal_types(op, types)
    _dtype(op, result.dtype, INTEGERS | REAL)
    return (result,)


# ---- movement -----------------------------------------------------------------------------------


def _broadcast(op: Op, types: Types, attrs: Attrs) -> Types:
    _arity(op, types, 1)
    x, shape = types[0], _shape(op, attrs["shape"])
    dims = _dims(op, "dims", attrs["dims"], len(shape))
    fits = len(dims) == x.rank and list(dims) == sorted(dims)
    if not fits or any(n not in (1, shape[d]) for n, d in zip(x.shape, dims, strict=True)):
        raise ShapeError(
            op,
            f"{x} to {list(shape)} with dims {dims}; needs one increasing dimension per operand "
            "dimension, of equal extent unless the operand's is 1",
        )
    return (TensorType(x.dtype, shape),)


def _reshape(op: Op, types: Types, attrs: Attrs) -> Types:
    _arity(op, types, 1)
    x, shape = types[0], _shape(op, attrs["shape"])
    if math.prod(shape) != x.size:
        raise ShapeError(op, f"{x} to {list(shape)}; the number of elements must stay {x.size}")
    return (TensorType(x.dtype, shape),)


def _transpose(op: Op, types: Types, attrs: Attrs) -> Types:
    _arity(op, types, 1)
    (x,) = types
    permutation = _dims(op, "permutation", attrs["permutation"], x.rank)
    if len(permutation) != x.rank:
        raise ShapeError(op, f"permutation {permutation} of {x}; must name every dimension")
    return (TensorType(x.dtype, tuple(x.shape[d] for d in permutation)),)


def _slice(op: Op, types: Types, attrs: Attrs) -> Types:
    _arity(op, types, 1)
    (x,) = types
    starts = _ints(op, "starts", attrs["starts"], x.rank, 0)
    limits = _ints(op, "limits", attrs["limits"], x.rank, 0)
    strides = _ints(op, "strides", attrs["strides"], x.rank, 1)
    if any(not a <= b <= n for a, b, n in zip(starts, limits, x.shape, strict=True)):
        raise ShapeError(op, f"[{starts}, {limits}) of {x}; needs 0 <= start <= limit <= extent")
    shape = (-(-(b - a) // s) for a, b, s in zip(starts, limits, strides, strict=True))
    return (TensorType(x.dtype, tuple(shape)),)


def _pad(op: Op, types: Types, attrs: Attrs) -> Types:
    _arity(op, types, 2)
    x, value = types
    if value != TensorType(x.dtype):
        raise ShapeError(op, f"value {value}; must be a scalar of type {x.dtype.value}")
    low = _ints(op, "low", attrs["low"], x.rank)
    high = _ints(op, "high", attrs["high"], x.rank)
    interior = _ints(op, "interior", attrs["interior"], x.rank, 0)
    edges = zip(x.shape, low, high, interior, strict=True)
    shape = tuple(a + dilated(n, i + 1) + b for n, a, b, i in edges)
    if any(n < 0 for n in shape):
        raise ShapeError(op, f"low {low}, high {high} of {x} give extents {shape}")
    return (TensorType(x.dtype, shape),)


def _concatenate(op: Op, types: Types, attrs: Attrs) -> Types:
    if not types:
        raise ShapeError(op, "takes at least one operand")
    first = types[0]
    dim = _dim(op, attrs, first.rank)

    def others(t: TensorType) -> tuple[Any, ...]:
        return (t.dtype, t.rank, t.shape[:dim], t.shape[dim + 1 :])

    if any(others(t) != others(first) for t in types):
        listed = ", ".join(map(str, types))
        raise ShapeError(op, f"({listed}) along {dim}; may differ in that dimension only")
    shape = (*first.shape[:dim], sum(t.shape[dim] for t in types), *first.shape[dim + 1 :])
    return (TensorType(first.dtype, shape),)


def _reverse(op: Op, types: Types, attrs: Attrs) -> Types:
    _arity(op, types, 1)
    _dims(op, "dims", attrs["dims"], types[0].rank)
    return types


def _dynamic_slice(op: Op, types: Types, attrs: Attrs) -> Types:
    x, *starts = types
    _scalar_starts(op, tuple(starts), x.rank)
    sizes = _ints(op, "sizes", attrs["sizes"], x.rank, 0)
    if any(size > n for size, n in zip(sizes, x.shape, strict=True)):
        raise ShapeError(op, f"sizes {sizes} of {x}; may not exceed the extents")
    return (TensorType(x.dtype, sizes),)


def _dynamic_update_slice(op: Op, types: Types, _attrs: Attrs) -> Types:
    x, update, *starts = types
    _scalar_starts(op, tuple(starts), x.rank)
    fits = update.dtype == x.dtype and update.rank == x.rank
    if not fits or any(size > n for size, n in zip(update.shape, x.shape, strict=True)):
        raise ShapeError(op, f"update {update} of {x}; same type and rank, no larger extents")
    return (x,)


def index_shape(op: Op, indices: TensorType, attrs: Attrs) -> tuple[tuple[int, ...], int]:
    """Split the shape of the indices of a gather or scatter.

    Returns the shape without the index vector, and the length of the index vector (1 if
    `index_vector_dim` is the rank: an implied dimension).
    """
    _dtype(op, indices.dtype, INTEGERS, "indices")
    dim = attrs["index_vector_dim"]
    if not isinstance(dim, int) or not 0 <= dim <= indices.rank:
        raise ShapeError(op, f"index_vector_dim {dim}; must be in [0, {indices.rank}]")
    length = indices.shape[dim] if dim < indices.rank else 1
    return (*indices.shape[:dim], *indices.shape[dim + 1 :]), length


def _batching(
    op: Op, x: TensorType, indices: TensorType, attrs: Attrs, names: tuple[str, str]
) -> tuple[int, ...]:
    of_x = _dims(op, names[0], attrs[names[0]], x.rank)
    of_indices = _dims(op, names[1], attrs[names[1]], indices.rank)
    if len(of_x) != len(of_indices) or attrs["index_vector_dim"] in of_indices:
        raise ShapeError(op, f"{names[0]} {of_x} and {names[1]} {of_indices} do not pair up")
    if any(x.shape[a] != indices.shape[b] for a, b in zip(of_x, of_indices, strict=True)):
        raise ShapeError(op, f"{names[0]} {of_x} of {x} must have the extents of {indices}'s")
    return of_x


def _gather(op: Op, types: Types, attrs: Attrs) -> Types:
    _arity(op, types, 2)
    x, indices = types
    batch, length = index_shape(op, indices, attrs)
    sizes = _ints(op, "slice_sizes", attrs["slice_sizes"], x.rank, 0)
    if any(size > n for size, n in zip(sizes, x.shape, strict=True)):
        raise ShapeError(op, f"slice_sizes {sizes} of {x}; may not exceed the extents")
    collapsed = _dims(op, "collapsed_slice_dims", attrs["collapsed_slice_dims"], x.rank)
    names = ("operand_batching_dims", "start_indices_batching_dims")
    batching = _batching(op, x, indices, attrs, names)
    start_map = _dims(op, "start_index_map", attrs["start_index_map"], x.rank)
    if len(start_map) != length:
        raise ShapeError(op, f"start_index_map {start_map}; indices hold {length} per slice")
    dropped = {*collapsed, *batching}
    if len(dropped) != len(collapsed) + len(batching) or any(sizes[d] != 1 for d in dropped):
        raise ShapeError(op, f"dims {sorted(dropped)} must be distinct and of slice size 1")
    if set(start_map) & set(batching):
        raise ShapeError(op, f"start_index_map {start_map} overlaps batching dims {batching}")
    window = [sizes[d] for d in range(x.rank) if d not in dropped]
    rank = len(batch) + len(window)
    offset = _dims(op, "offset_dims", attrs["offset_dims"], rank)
    if len(offset) != len(window) or list(offset) != sorted(offset):
        raise ShapeError(op, f"offset_dims {offset}; must be {len(window)} increasing dimensions")
    rest = iter(batch)
    kept = dict(zip(offset, window, strict=True))
    return (TensorType(x.dtype, tuple(kept[d] if d in kept else next(rest) for d in range(rank))),)


def _scatter(op: Op, types: Types, attrs: Attrs) -> Types:
    _arity(op, types, 3)
    x, indices, updates = types
    _kind(op, attrs, SCATTER_KINDS, x.dtype)
    batch, length = index_shape(op, indices, attrs)
    inserted = _dims(op, "inserted_window_dims", attrs["inserted_window_dims"], x.rank)
    names = ("input_batching_dims", "scatter_indices_batching_dims")
    batching = _batching(op, x, indices, attrs, names)
    target = _dims(
        op, "scatter_dims_to_operand_dims", attrs["scatter_dims_to_operand_dims"], x.rank
    )
    if len(target) != length:
        raise ShapeError(
            op, f"scatter_dims_to_operand_dims {target}; indices hold {length} per window"
        )
    dropped = {*inserted, *batching}
    if len(dropped) != len(inserted) + len(batching) or set(target) & set(batching):
        raise ShapeError(op, f"dims {inserted}, {batching}, {target} overlap")
    window = _dims(op, "update_window_dims", attrs["update_window_dims"], updates.rank)
    kept = [d for d in range(x.rank) if d not in dropped]
    scattered = tuple(n for d, n in enumerate(updates.shape) if d not in window)
    fits = updates.dtype == x.dtype and len(window) == len(kept) and list(window) == sorted(window)
    if not fits or scattered != batch:
        raise ShapeError(
            op,
            f"updates {updates} with update_window_dims {window}; need {len(kept)} increasing "
            f"window dimensions, type {x.dtype.value}, and the other dimensions {list(batch)}",
        )
    if any(updates.shape[w] > x.shape[d] for w, d in zip(window, kept, strict=True)):
        raise ShapeError(op, f"windows of {updates} are larger than {x}")
    return (x,)


# ---- contractions -------------------------------------------------------------------------------


def _pair(op: Op, lhs: TensorType, rhs: TensorType, result: DType) -> None:
    """Operands of one type; 8-bit floats may be mixed, as training does with e4m3 and e5m2."""
    _dtype(op, lhs.dtype, NUMBERS)
    mixed8 = {lhs.dtype, rhs.dtype} <= FLOATS8 - {DType.F8E8M0}
    if lhs.dtype != rhs.dtype and not mixed8:
        raise ShapeError(op, f"operands {lhs} and {rhs}; must be of one type")
    allowed = next(s for s in (INTEGERS, REAL, COMPLEX) if lhs.dtype in s)
    _dtype(op, result, allowed, "result")


def _dot(op: Op, types: Types, attrs: Attrs) -> Types:
    _arity(op, types, 2)
    lhs, rhs = types
    _pair(op, lhs, rhs, attrs["dtype"])
    lhs_batch = _dims(op, "lhs_batch", attrs["lhs_batch"], lhs.rank)
    rhs_batch = _dims(op, "rhs_batch", attrs["rhs_batch"], rhs.rank)
    lhs_contract = _dims(op, "lhs_contract", attrs["lhs_contract"], lhs.rank)
    rhs_contract = _dims(op, "rhs_contract", attrs["rhs_contract"], rhs.rank)
    for what, a, b in (("batch", lhs_batch, rhs_batch), ("contract", lhs_contract, rhs_contract)):
        if [lhs.shape[d] for d in a] != [rhs.shape[d] for d in b]:
            raise ShapeError(op, f"{what} dims {a} of {lhs} and {b} of {rhs} differ in extent")
    lhs_used, rhs_used = {*lhs_batch, *lhs_contract}, {*rhs_batch, *rhs_contract}
    if len(lhs_used) != len(lhs_batch + lhs_contract) or len(rhs_used) != len(
        rhs_batch + rhs_contract
    ):
        raise ShapeError(op, "a dimension is both batch and contract")
    shape = [lhs.shape[d] for d in lhs_batch]
    shape += [n for d, n in enumerate(lhs.shape) if d not in lhs_used]
    shape += [n for d, n in enumerate(rhs.shape) if d not in rhs_used]
    return (TensorType(attrs["dtype"], tuple(shape)),)


def dilated(extent: int, dilation: int) -> int:
    """The extent with `dilation` - 1 holes between elements."""
    return (extent - 1) * dilation + 1 if extent else 0


def _windows(padded: int, window: int, stride: int) -> int:
    """How many windows of that (dilated) extent fit."""
    return (padded - window) // stride + 1 if padded >= window else 0


def _convolution(op: Op, types: Types, attrs: Attrs) -> Types:
    _arity(op, types, 2)
    x, w = types
    _pair(op, x, w, attrs["dtype"])
    if x.rank != w.rank or x.rank < 2:
        raise ShapeError(op, f"operands {x} and {w}; must have one rank of at least 2")
    specs = {}
    for name in ("lhs_spec", "rhs_spec", "out_spec"):
        specs[name] = _dims(op, name, attrs[name], x.rank)
        if len(specs[name]) != x.rank:
            raise ShapeError(op, f"{name} {specs[name]}; must name all {x.rank} dimensions")
    batch, features, *spatial = (x.shape[d] for d in specs["lhs_spec"])
    out_features, group_features, *window = (w.shape[d] for d in specs["rhs_spec"])
    groups, batch_groups = attrs["feature_group_count"], attrs["batch_group_count"]
    if groups < 1 or batch_groups < 1 or (groups > 1 and batch_groups > 1):
        raise ShapeError(
            op, f"groups {groups} and batch groups {batch_groups}; positive, one of them 1"
        )
    if group_features * groups != features or out_features % groups:
        raise ShapeError(
            op,
            f"{features} input features in {groups} group(s) with weights of {group_features} "
            f"input and {out_features} output features",
        )
    if batch % batch_groups or out_features % batch_groups:
        raise ShapeError(op, f"batch {batch}, {out_features} features, batch groups {batch_groups}")
    rank = x.rank - 2
    strides = _ints(op, "strides", attrs["strides"], rank, 1)
    low, high = (_ints(op, name, attrs[name], rank) for name in ("low", "high"))
    lhs_dilation = _ints(op, "lhs_dilation", attrs["lhs_dilation"], rank, 1)
    rhs_dilation = _ints(op, "rhs_dilation", attrs["rhs_dilation"], rank, 1)
    out = [batch // batch_groups, out_features]
    for i in range(rank):
        padded = max(low[i] + dilated(spatial[i], lhs_dilation[i]) + high[i], 0)
        out.append(_windows(padded, dilated(window[i], rhs_dilation[i]), strides[i]))
    shape = [0] * x.rank
    for position, extent in zip(specs["out_spec"], out, strict=True):
        shape[position] = extent
    return (TensorType(attrs["dtype"], tuple(shape)),)


# ---- reductions ---------------------------------------------------------------------------------


def _reduce(op: Op, types: Types, attrs: Attrs) -> Types:
    _arity(op, types, 1)
    (x,) = types
    _kind(op, attrs, REDUCE_KINDS, x.dtype)
    dims = _dims(op, "dims", attrs["dims"], x.rank)
    return (TensorType(x.dtype, tuple(n for d, n in enumerate(x.shape) if d not in dims)),)


def _arg_reduce(op: Op, types: Types, attrs: Attrs) -> Types:
    _arity(op, types, 1)
    (x,) = types
    _kind(op, attrs, ("min", "max"), x.dtype)
    _dtype(op, attrs["dtype"], INTEGERS, "index")
    dim = _dim(op, attrs, x.rank)
    if not x.shape[dim]:
        raise ShapeError(op, f"dim {dim} of {x} is empty; it has no first element")
    return (TensorType(attrs["dtype"], (*x.shape[:dim], *x.shape[dim + 1 :])),)


def _window_shape(op: Op, x: TensorType, attrs: Attrs) -> tuple[int, ...]:
    window = _ints(op, "window", attrs["window"], x.rank, 1)
    strides = _ints(op, "strides", attrs["strides"], x.rank, 1)
    low = _ints(op, "low", attrs["low"], x.rank)
    high = _ints(op, "high", attrs["high"], x.rank)
    ones = (1,) * x.rank
    base = _ints(op, "base_dilation", attrs.get("base_dilation", ones), x.rank, 1)
    holes = _ints(op, "window_dilation", attrs.get("window_dilation", ones), x.rank, 1)
    return tuple(
        _windows(
            max(low[i] + dilated(x.shape[i], base[i]) + high[i], 0),
            dilated(window[i], holes[i]),
            strides[i],
        )
        for i in range(x.rank)
    )


def _reduce_window(op: Op, types: Types, attrs: Attrs) -> Types:
    _arity(op, types, 1)
    (x,) = types
    _kind(op, attrs, WINDOW_KINDS, x.dtype)
    return (TensorType(x.dtype, _window_shape(op, x, attrs)),)


def _select_and_scatter(op: Op, types: Types, attrs: Attrs) -> Types:
    _arity(op, types, 2)
    x, source = types
    _kind(op, attrs, ("add", "mul", "min", "max"), x.dtype)
    _choice(op, "select", attrs["select"], ("max", "min"))
    _dtype(op, x.dtype, INTEGERS | REAL)
    expected = TensorType(x.dtype, _window_shape(op, x, attrs))
    if source != expected:
        raise ShapeError(op, f"source {source}; the windows need {expected}")
    return (x,)


def _cumulative(op: Op, types: Types, attrs: Attrs) -> Types:
    _arity(op, types, 1)
    _kind(op, attrs, CUMULATIVE_KINDS, types[0].dtype)
    _dim(op, attrs, types[0].rank)
    return types


def _sort(op: Op, types: Types, attrs: Attrs) -> Types:
    if not types:
        raise ShapeError(op, "takes at least one operand")
    if any(t.shape != types[0].shape for t in types):
        listed = ", ".join(map(str, types))
        raise ShapeError(op, f"({listed}); operands must have one shape")
    _dtype(op, types[0].dtype, PRED | INTEGERS | REAL, "key")
    _dim(op, attrs, types[0].rank)
    return types


def _topk(op: Op, types: Types, attrs: Attrs) -> Types:
    _arity(op, types, 1)
    (x,) = types
    _dtype(op, x.dtype, PRED | INTEGERS | REAL)
    k = attrs["k"]
    if not x.rank or not 0 <= k <= x.shape[-1]:
        raise ShapeError(op, f"k {k} of {x}; must be in [0, last extent]")
    shape = (*x.shape[:-1], k)
    return (TensorType(x.dtype, shape), TensorType(DType.S64, shape))


# ---- control flow -------------------------------------------------------------------------------


def _signature(graph: Any) -> tuple[Types, Types]:
    return tuple(p.type for p in graph.params), tuple(r.type for r in graph.results)


def _takes(op: Op, graph: Any, types: Types) -> Types:
    params, results = _signature(graph)
    if params != types:
        given, wanted = (", ".join(map(str, t)) for t in (types, params))
        raise ShapeError(op, f"operands ({given}); {graph.name!r} takes ({wanted})")
    return results


def _while(op: Op, types: Types, attrs: Attrs) -> Types:
    if _takes(op, attrs["cond"], types) != (TensorType(DType.PRED),):
        raise ShapeError(op, f"cond {attrs['cond'].name!r} must return one pred[]")
    if _takes(op, attrs["body"], types) != types:
        raise ShapeError(op, f"body {attrs['body'].name!r} must return the types of the state")
    return types


def _conditional(op: Op, types: Types, attrs: Attrs) -> Types:
    selector, *operands = types
    branches = attrs["branches"]
    if selector not in (TensorType(DType.PRED), TensorType(DType.S32)) or not branches:
        raise ShapeError(op, f"selector {selector}, {len(branches)} branches; need pred[] or s32[]")
    if selector.dtype is DType.PRED and len(branches) != 2:
        raise ShapeError(op, f"a pred selects between 2 branches, got {len(branches)}")
    results = [_takes(op, branch, tuple(operands)) for branch in branches]
    if any(r != results[0] for r in results):
        raise ShapeError(op, "branches return different types")
    return results[0]


def _call(op: Op, types: Types, attrs: Attrs) -> Types:
    return _takes(op, attrs["body"], types)


# ---- collectives --------------------------------------------------------------------------------


def group_size(op: Op, attrs: Attrs) -> int:
    """Number of ranks in each group; groups partition the ranks and are of one size."""
    groups = attrs["group"]
    ranks = [rank for group in groups for rank in group]
    if not ranks or len(set(ranks)) != len(ranks) or len({len(g) for g in groups}) != 1:
        raise ShapeError(op, f"group {groups}; need disjoint groups of ranks, of one size")
    return len(groups[0])


def _resized(t: TensorType, dim: int, extent: int) -> TensorType:
    return TensorType(t.dtype, (*t.shape[:dim], extent, *t.shape[dim + 1 :]))


def _all_reduce(op: Op, types: Types, attrs: Attrs) -> Types:
    _arity(op, types, 1)
    _kind(op, attrs, REDUCE_KINDS, types[0].dtype)
    group_size(op, attrs)
    return types


def _all_gather(op: Op, types: Types, attrs: Attrs) -> Types:
    _arity(op, types, 1)
    dim = _dim(op, attrs, types[0].rank)
    return (_resized(types[0], dim, types[0].shape[dim] * group_size(op, attrs)),)


def _split(op: Op, t: TensorType, dim: int, size: int) -> TensorType:
    if t.shape[dim] % size:
        raise ShapeError(op, f"dim {dim} of {t} does not divide among {size} ranks")
    return _resized(t, dim, t.shape[dim] // size)


def _reduce_scatter(op: Op, types: Types, attrs: Attrs) -> Types:
    _arity(op, types, 1)
    _kind(op, attrs, REDUCE_KINDS, types[0].dtype)
    return (_split(op, types[0], _dim(op, attrs, types[0].rank), group_size(op, attrs)),)


def _all_to_all(op: Op, types: Types, attrs: Attrs) -> Types:
    _arity(op, types, 1)
    size = group_size(op, attrs)
    part = _split(op, types[0], _dim(op, attrs, types[0].rank, "split_dim"), size)
    dim = _dim(op, attrs, part.rank, "concat_dim")
    return (_resized(part, dim, part.shape[dim] * size),)


def _permute(op: Op, types: Types, attrs: Attrs) -> Types:
    _arity(op, types, 1)
    for side in zip(*attrs["pairs"], strict=True):
        if len(set(side)) != len(side):
            raise ShapeError(op, f"pairs {attrs['pairs']}; a rank sends and receives once")
    return types


RULES: dict[Op, Rule] = {
    Op.CONSTANT: _constant,
    **dict.fromkeys(Group.UNARY, _unary),
    **dict.fromkeys(Group.BINARY, _binary),
    Op.IS_FINITE: _predicate,
    Op.IS_NAN: _predicate,
    Op.REAL: _part,
    Op.IMAG: _part,
    Op.CONVERT: _convert,
    Op.BITCAST_CONVERT: _bitcast,
    Op.REDUCE_PRECISION: _reduce_precision,
    Op.COMPLEX: _complex,
    Op.COMPARE: _compare,
    Op.SELECT: _select,
    Op.CLAMP: _clamp,
    Op.BROADCAST_IN_DIM: _broadcast,
    Op.RESHAPE: _reshape,
    Op.TRANSPOSE: _transpose,
    Op.SLICE: _slice,
    Op.PAD: _pad,
    Op.CONCATENATE: _concatenate,
    Op.REVERSE: _reverse,
    Op.DYNAMIC_SLICE: _dynamic_slice,
    Op.DYNAMIC_UPDATE_SLICE: _dynamic_update_slice,
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
    Op.ALL_REDUCE: _all_reduce,
    Op.ALL_GATHER: _all_gather,
    Op.REDUCE_SCATTER: _reduce_scatter,
    Op.ALL_TO_ALL: _all_to_all,
    Op.COLLECTIVE_PERMUTE: _permute,
}
