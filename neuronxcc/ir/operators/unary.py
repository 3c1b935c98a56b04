"""Elementwise operators of one operand, whose result has the operand's type."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from neuronxcc.ir.arithmetic import Array, arithmetic, cast, precise
from neuronxcc.ir.dtypes import COMPLEX, DType
from neuronxcc.ir.node import Node, TensorType
from neuronxcc.ir.op import Op
from neuronxcc.ir.operators.checks import (
    INTEGERS,
    NUMBERS,
    PRED,
    REAL,
    REAL_OF,
    Types,
    arity,
    check_dtype,
)
from neuronxcc.ir.operators.definition import (
    LIBRARY,
    Cost,
    Kind,
    Operator,
    Rounding,
    Rule,
    Xla,
    each_type,
)
from neuronxcc.targets import Engine

Function = Callable[[Array], Array]

_SHAPE = (3, 5)  # of samples


def _rule(dtypes: frozenset[DType]) -> Rule:
    def rule(op: Op, types: Types, _attrs: Mapping[str, Any]) -> Types:
        """The type of the operand; the absolute value of a complex number is real."""
        arity(op, types, 1)
        (x,) = types
        check_dtype(op, x.dtype, dtypes)
        if op is Op.ABS and x.dtype.is_complex:
            return (TensorType(REAL_OF[x.dtype], x.shape),)
        return (x,)

    return rule


def _exact(
    op: Op,
    of: Function,
    dtypes: frozenset[DType],
    rounding: Rounding = Rounding.NONE,
    engine: Engine = Engine.VECTOR,
    *,
    complex: bool = False,  # noqa: A002 - the name of the field
    xla: Xla = Xla.YES,
    instructions: int = 1,
) -> Operator:
    """An operator that is exact, or rounded once, in the type of arithmetic."""

    def meaning(node: Node, x: Array) -> Array:
        if np.iscomplexobj(x):
            return cast(of(precise(x)), node.dtype)
        return cast(of(arithmetic(x)), node.dtype)

    return Operator(
        op=op,
        kind=Kind.UNARY,
        engine=engine,
        cost=Cost.ELEMENTS,
        rule=_rule(dtypes),
        meaning=meaning,
        cases=lambda: each_type(1, _SHAPE),
        complex=complex,
        rounding=rounding,
        xla=xla,
        instructions=instructions,
    )


def _function(
    op: Op,
    of: Function,
    dtypes: frozenset[DType] = REAL | COMPLEX,
    *,
    complex: bool = False,  # noqa: A002 - the name of the field
    xla: Xla = Xla.YES,
    instructions: int = LIBRARY,
) -> Operator:
    """A function that the scalar engine has a table for."""
    return Operator(
        op=op,
        kind=Kind.UNARY,
        engine=Engine.SCALAR,
        cost=Cost.ELEMENTS,
        rule=_rule(dtypes),
        meaning=lambda node, x: cast(of(precise(x)), node.dtype),
        cases=lambda: each_type(1, _SHAPE),
        complex=complex,
        xla=xla,
        instructions=instructions,
    )


def _sign(x: Array) -> Array:
    """Zeros keep their sign, NaN stays; complex: the unit vector."""
    if np.iscomplexobj(x):
        size = np.abs(x)
        return np.where(size == 0, 0, x / np.where(size == 0, 1, size))
    return np.where((x == 0) | np.isnan(x), x, np.sign(x)) if x.dtype.kind == "f" else np.sign(x)


def _each(function: Callable[[float], float]) -> Callable[[Array], Array]:
    """A function of Python's `math` on every element."""
    return np.vectorize(function, otypes=[np.float64])


def _lgamma(x: float) -> float:
    if math.isinf(x) or x > 2.5e305 or (x <= 0 and x == math.floor(x)):
        return math.inf
    return math.lgamma(x)


def _digamma(x: float) -> float:
    """Poles: NaN at the negative integers, -inf at 0 and inf at -0.0, as PyTorch has it."""
    if x == 0:
        return math.copysign(math.inf, -x)
    if x < 0:
        if math.isinf(x) or x == math.floor(x):
            return math.nan
        return _digamma(1 - x) - math.pi / math.tan(math.pi * math.fmod(x, 1))
    shift = 0.0
    while x < 20:
        shift -= 1 / x
        x += 1
    y = 1 / (x * x)  # 0 for infinity, NaN for NaN
    series = y * (1 / 12 - y * (1 / 120 - y * (1 / 252 - y * (1 / 240 - y * (1 / 132)))))
    return shift + (math.inf if math.isinf(x) else math.log(x) - 0.5 / x - series)


def _normal_cdf(x: float) -> float:
    return 0.5 * math.erfc(-x * math.sqrt(0.5))


def _erfinv(x: float) -> float:
    if not abs(x) < 1:
        return math.copysign(math.inf, x) if abs(x) == 1 else math.nan
    # Winitzki's approximation, then Newton's method on erfc, which is exact in the tail.
    a = 0.147
    log = math.log1p(-x * x)
    t = 2 / (math.pi * a) + log / 2
    y = math.sqrt(max(math.sqrt(t * t - log / a) - t, 0.0))
    target = abs(x)
    for _ in range(4):
        error = math.erf(y) - target if target < 0.5 else (1 - target) - math.erfc(y)
        y -= error * math.sqrt(math.pi) / 2 * math.exp(y * y)
    return math.copysign(y, x)


def _popcnt(x: Array) -> Array:
    octets = np.ascontiguousarray(x).reshape(-1, 1).view(np.uint8)
    return np.asarray(np.unpackbits(octets, axis=1).sum(axis=1).reshape(x.shape), x.dtype)


OPERATORS = (
    _exact(Op.ABS, np.abs, NUMBERS, complex=True),  # of a complex number: real
    _exact(Op.NEGATE, np.negative, NUMBERS, complex=True),
    _exact(Op.SIGN, _sign, NUMBERS, complex=True),
    _exact(Op.CEIL, np.ceil, REAL),
    _exact(Op.FLOOR, np.floor, REAL),
    _exact(Op.ROUND_EVEN, np.rint, REAL),
    _exact(Op.TRUNC, np.trunc, REAL, xla=Xla.NO),
    _exact(Op.NOT, np.invert, PRED | INTEGERS),
    _exact(Op.POPCNT, _popcnt, INTEGERS, engine=Engine.GPSIMD, instructions=4),
    _exact(Op.CONJ, np.conj, COMPLEX, xla=Xla.NO),
    _exact(
        Op.SQRT,
        np.sqrt,
        REAL | COMPLEX,
        Rounding.ONCE,
        Engine.SCALAR,
        complex=True,
        instructions=8,
    ),
    _function(Op.RSQRT, lambda x: 1 / np.sqrt(x), complex=True, instructions=12),
    _function(Op.EXP, np.exp, complex=True, instructions=14),
    _function(Op.EXP2, np.exp2, xla=Xla.NO, instructions=14),
    _function(Op.EXPM1, np.expm1, complex=True, instructions=18),
    _function(Op.LOG, np.log, complex=True, instructions=22),
    _function(Op.LOG2, np.log2, xla=Xla.NO, instructions=30),
    _function(Op.LOG10, np.log10, xla=Xla.NO, instructions=30),
    _function(Op.LOG1P, np.log1p, complex=True, instructions=28),
    _function(Op.LOGISTIC, lambda x: 1 / (1 + np.exp(-x)), complex=True, instructions=26),
    _function(Op.SIN, np.sin, complex=True, instructions=40),
    _function(Op.COS, np.cos, complex=True, instructions=40),
    _function(Op.TAN, np.tan, complex=True),
    _function(Op.SINH, np.sinh, xla=Xla.YOUNG),
    _function(Op.COSH, np.cosh, xla=Xla.YOUNG),
    _function(Op.TANH, np.tanh, complex=True, instructions=30),
    _function(Op.ASIN, np.arcsin, xla=Xla.YOUNG),
    _function(Op.ACOS, np.arccos, xla=Xla.YOUNG),
    _function(Op.ATAN, np.arctan, xla=Xla.YOUNG),
    _function(Op.ASINH, np.arcsinh, xla=Xla.YOUNG),
    _function(Op.ACOSH, np.arccosh, xla=Xla.YOUNG),
    _function(Op.ATANH, np.arctanh, xla=Xla.YOUNG),
    _function(Op.ERF, _each(math.erf), REAL, instructions=26),
    _function(Op.ERFC, _each(math.erfc), REAL, xla=Xla.NO),
    _function(Op.ERFINV, _each(_erfinv), REAL, xla=Xla.NO),
    _function(Op.NORMAL_CDF, _each(_normal_cdf), REAL, xla=Xla.NO, instructions=30),
    _function(
        Op.NORMAL_PDF,
        lambda x: np.exp(x * x * -0.5) / math.sqrt(2 * math.pi),
        REAL,
        xla=Xla.NO,
        instructions=20,
    ),
    _function(Op.LGAMMA, _each(_lgamma), REAL, xla=Xla.NO),
    _function(Op.DIGAMMA, _each(_digamma), REAL, xla=Xla.NO),
)
