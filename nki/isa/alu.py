"""The operators of the `op` fields: names, identities, and where each is legal.

One table, after the documentation's list of math operators. What they compute, and on which types,
is `neuronxcc.program.natives.alu`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from neuronxcc.program.natives.alu import MEANINGS, Binary
from nki.isa.cast import Array

__all__ = ["ALIASES", "ALU", "COMPARISONS", "AluOp", "apply", "fold", "op_name", "scan"]


@dataclass(frozen=True, slots=True)
class AluOp:
    """An operator.

    Attributes:
        name: as in `nki.language`.
        bitvec: it works on bit patterns of integers, not on numbers.
        unary: it ignores its second operand, which must be absent or 0.
        reduces: it is documented as legal in reductions.
        identity: what a reduction starts from; None where it starts with the first element.
        first_generation: the first NeuronCore version whose `tensor_scalar` family has it.
    """

    name: str
    bitvec: bool = False
    unary: bool = False
    reduces: bool = False
    identity: float | None = None
    first_generation: int = 2

    @property
    def function(self) -> Binary:
        """The meaning, of two arrays that broadcast against each other."""
        return MEANINGS[self.name]


_INFINITY = float("inf")
_ROWS = (
    AluOp("invert", bitvec=True, unary=True),
    AluOp("bitwise_and", bitvec=True, reduces=True),
    AluOp("bitwise_or", bitvec=True, reduces=True, identity=0),
    AluOp("bitwise_xor", bitvec=True, reduces=True, identity=0),
    AluOp("left_shift", bitvec=True),
    AluOp("right_shift", bitvec=True),
    AluOp("add", reduces=True, identity=0),
    AluOp("subtract", reduces=True, identity=0),
    AluOp("multiply", reduces=True, identity=1),
    AluOp("maximum", reduces=True, identity=-_INFINITY),
    AluOp("minimum", reduces=True, identity=_INFINITY),
    AluOp("equal"),
    AluOp("not_equal"),
    AluOp("greater_equal"),
    AluOp("greater"),
    AluOp("less_equal"),
    AluOp("less"),
    AluOp("logical_and", reduces=True, identity=1),
    AluOp("logical_or", reduces=True, identity=0),
    AluOp("logical_xor", reduces=True, identity=0),
    AluOp("power"),
    AluOp("abs_max", identity=0, first_generation=4),
    AluOp("abs_min", identity=_INFINITY, first_generation=4),
    AluOp("abs", unary=True),
    AluOp("square", unary=True, first_generation=4),
    AluOp("relu", unary=True, first_generation=4),
    AluOp("rsqrt", unary=True),
    AluOp("reciprocal", unary=True),
)
ALU: Mapping[str, AluOp] = MappingProxyType({row.name: row for row in _ROWS})
COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")

# Names under which `nl` functions, NumPy's functions of the 0.1 interface, and the pseudocode of
# the documentation call the same operators.
ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "max": "maximum",
        "amax": "maximum",
        "min": "minimum",
        "amin": "minimum",
        "mult": "multiply",
        "sum": "add",
        "absolute": "abs",
        "bitwise_not": "invert",
        "logical_shift_left": "left_shift",
        "logical_shift_right": "right_shift",
    }
)


def op_name(op: Any) -> str:
    """Return the name of an operator given as `nl.add`, as its name, or as NumPy's function.

    Raises:
        ValueError: it has no name, so it is no operator.
    """
    name = op if isinstance(op, str) else getattr(op, "__name__", None)
    if not isinstance(name, str):
        raise ValueError(f"{op!r} is no operator")  # noqa: TRY004 (the caller adds the context)
    return ALIASES.get(name, name)


def apply(name: str, x: Array, y: Array, *, reverse: bool = False) -> Array:
    """Return ``x <op> y``, or ``y <op> x`` when reversed, in the type of `x`.

    Unary operators work on `x` in either order.
    """
    op = ALU[name]
    if reverse and not op.unary:
        x, y = y, x
    return np.asarray(op.function(x, y))


def scan(name: str, start: Array, x: Array) -> Array:
    """Fold `x` of shape (P, F) along F from `start` of shape (P,) and keep every step: (P, F)."""
    steps = np.empty_like(x)
    state = start.astype(x.dtype)
    for column in range(x.shape[1]):
        state = apply(name, state, x[:, column]).astype(x.dtype)
        steps[:, column] = state
    return steps


def fold(name: str, x: Array, start: Array | None = None) -> Array:
    """Reduce `x` of shape (P, F) along F one element after the other; returns (P,).

    Args:
        name: the operator.
        x: at least one column.
        start: the state to begin with, shape (P,); by default the first column.
    """
    if start is None:
        start, x = x[:, 0], x[:, 1:]
        if name == "add" and x.dtype.kind == "f":
            start = start + np.zeros_like(start)  # sums begin with 0.0: those of -0.0 are 0.0
    if x.shape[1] == 0:
        return start.astype(x.dtype)
    extreme = _EXTREMES.get(name)
    if extreme is not None:  # the order is no matter
        return _extreme(extreme, np.concatenate([start.astype(x.dtype)[:, None], x], axis=1))
    function = ALU[name].function
    if isinstance(function, np.ufunc):  # the same order, in C
        stacked = np.concatenate([start.astype(x.dtype)[:, None], x], axis=1)
        last: Array = function.accumulate(stacked, axis=1)[:, -1]
        return last
    return scan(name, start, x)[:, -1]


_EXTREMES: Mapping[str, np.ufunc] = MappingProxyType({"maximum": np.maximum, "minimum": np.minimum})


def _extreme(function: np.ufunc, x: Array) -> Array:
    """Return the largest or smallest element of each row; 0.0 is greater than -0.0."""
    found: Array = function.reduce(x, axis=1)
    zeros = found == 0
    if x.dtype.kind != "f" or not zeros.any():
        return found
    negative = ((x == 0) & np.signbit(x)).any(axis=1)
    positive = ((x == 0) & ~np.signbit(x)).any(axis=1)
    below = ~positive if function is np.maximum else negative
    return np.where(zeros, np.where(below, np.float32(-0.0), np.float32(0.0)), found).astype(
        x.dtype
    )
