"""The checks that rules are made of, and the error that they raise."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from neuronxcc.ir.dtypes import COMPLEX, FLOATS, SIGNED, UNSIGNED, DType
from neuronxcc.ir.node import TensorType
from neuronxcc.ir.op import Op

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

KIND_DTYPES: dict[str, frozenset[DType]] = {
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
# How a reduction, a scatter or a collective combines two elements: the operator that does it.
COMBINERS: dict[str, Op] = {
    "add": Op.ADD,
    "mul": Op.MULTIPLY,
    "min": Op.MINIMUM,
    "max": Op.MAXIMUM,
    "and": Op.AND,
    "or": Op.OR,
    "xor": Op.XOR,
}
REDUCE_KINDS = tuple(COMBINERS)
SCATTER_KINDS = ("set", "add", "mul", "min", "max")
CUMULATIVE_KINDS = ("add", "mul", "min", "max", "logaddexp")
WINDOW_KINDS = ("add", "mul", "min", "max")
REAL_OF = {DType.C64: DType.F32, DType.C128: DType.F64}
COMPLEX_OF = {real: complex_ for complex_, real in REAL_OF.items()}


def arity(op: Op, types: Types, count: int) -> None:
    """The operator takes that many operands."""
    if len(types) != count:
        raise ShapeError(op, f"takes {count} operand(s), got {len(types)}")


def check_dtype(op: Op, dtype: DType, allowed: Collection[DType], what: str = "operand") -> None:
    """The type is one of those allowed."""
    if dtype not in allowed:
        names = " ".join(d.value for d in DType if d in allowed)
        raise ShapeError(op, f"{what} of type {dtype.value}; allowed: {names}")


def equal_types(op: Op, types: Types) -> TensorType:
    """All operands have one type, which is returned."""
    if any(t != types[0] for t in types):
        listed = " and ".join(map(str, types))
        raise ShapeError(op, f"operands have types {listed}; they must be equal")
    return types[0]


def choice(op: Op, name: str, value: Any, allowed: Sequence[str]) -> str:
    """The attribute is one of the words allowed, and is returned."""
    if value not in allowed:
        raise ShapeError(op, f"{name} {value!r}; allowed: {' '.join(allowed)}")
    return str(value)


def check_kind(op: Op, attrs: Attrs, allowed: Sequence[str], dtype: DType) -> str:
    """The kind is allowed, and takes that type."""
    kind = choice(op, "kind", attrs["kind"], allowed)
    check_dtype(op, dtype, KIND_DTYPES[kind], f"operand of kind {kind}")
    return kind


def check_dims(op: Op, name: str, dims: Any, rank: int) -> tuple[int, ...]:
    """`dims` must be distinct dimensions of a tensor of that rank."""
    ok = isinstance(dims, tuple) and all(isinstance(d, int) and 0 <= d < rank for d in dims)
    if not ok or len(set(dims)) != len(dims):
        raise ShapeError(op, f"{name} {dims}; must be distinct dimensions in [0, {rank})")
    return tuple(dims)


def check_dim(op: Op, attrs: Attrs, rank: int, name: str = "dim") -> int:
    """The attribute is a dimension, and is returned."""
    dim = attrs[name]
    if not isinstance(dim, int) or not 0 <= dim < rank:
        raise ShapeError(op, f"{name} {dim}; must be in [0, {rank})")
    return dim


def check_ints(op: Op, name: str, values: Any, length: int, minimum: int | None = None) -> Any:
    """`values` must be a tuple of that many integers, none under the minimum."""
    ok = isinstance(values, tuple) and len(values) == length
    if not ok or not all(isinstance(v, int) and not isinstance(v, bool) for v in values):
        raise ShapeError(op, f"{name} {values}; must be {length} integer(s), one per dimension")
    if minimum is not None and any(v < minimum for v in values):
        raise ShapeError(op, f"{name} {values}; no value may be under {minimum}")
    return values


def check_shape(op: Op, shape: Any) -> tuple[int, ...]:
    """The extents are not negative."""
    ok = isinstance(shape, tuple) and all(isinstance(n, int) and n >= 0 for n in shape)
    if not ok:
        raise ShapeError(op, f"shape {shape}; must be non-negative integers")
    return tuple(shape)


def scalar_starts(op: Op, starts: Types, rank: int) -> None:
    """There is one integer scalar for every dimension."""
    if len(starts) != rank or any(t.shape or not t.dtype.is_integer for t in starts):
        listed = ", ".join(map(str, starts))
        raise ShapeError(op, f"starts ({listed}); must be {rank} integer scalars, one a dimension")


def dilated(extent: int, dilation: int) -> int:
    """The extent with `dilation` - 1 holes between elements."""
    return (extent - 1) * dilation + 1 if extent else 0


def windows(padded: int, window: int, stride: int) -> int:
    """How many windows of that (dilated) extent fit."""
    return (padded - window) // stride + 1 if padded >= window else 0
