"""Expressions that are computed as one, and those for which less than float32 will do.

What a kernel rounds to 16 bits in the end needs no more than a few digits beyond those, as long as
everything in between keeps relative errors as they are: products, quotients, signs, choices, and
sums of what is positive.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from neuronxcc.codegen.llvm import math32
from neuronxcc.codegen.llvm.num import Num
from neuronxcc.codegen.loop import Scalar, operands
from neuronxcc.codegen.space import Space
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.op import Op

# How to compute an expression, and from which others.
Formula = tuple[Callable[..., Num], tuple[Scalar, ...]]

_FUSED = {Op.TANH: (math32.one_plus_tanh, math32.one_plus_tanh_rough)}
# By the 16-bit type that the result is rounded to.
_NARROW = {
    Op.TANH: math32.tanh_narrow,
    Op.LOGISTIC: math32.logistic_narrow,
    Op.NORMAL_CDF: math32.normal_cdf_narrow,
}
# Operands whose relative error the result takes over.
_KEEPING = {
    Op.MULTIPLY: (0, 1), Op.DIVIDE: (0, 1), Op.NEGATE: (0,), Op.ABS: (0,), Op.COPYSIGN: (0,),
    Op.SELECT: (1, 2),
}  # fmt: skip


def formulas(space: Space) -> dict[Scalar, Formula]:
    """The expressions that are not computed operator by operator."""
    users = _users(space)
    inner = {s: _plus_one(s) for s in space.order}
    tolerant: dict[Scalar, DType] = {}
    result: dict[Scalar, Formula] = {}
    for scalar in reversed(space.order):
        if scalar.dtype is not DType.F32:
            continue
        to = {_rounded_to(user, scalar, tolerant) for user in users[scalar]}
        narrow = to.pop() if len(to) == 1 else None
        if narrow is not None:
            tolerant[scalar] = narrow
        function = inner[scalar]
        if function is not None and len(users[function]) == 1 and function.op is not None:
            result[scalar] = (_FUSED[function.op][narrow is DType.BF16], function.srcs)
        elif narrow is None or scalar.what != "op":
            continue
        elif scalar.op in _NARROW:
            result[scalar] = (partial(_NARROW[scalar.op], narrow=narrow), scalar.srcs)
        elif scalar.op is Op.EXP and narrow is DType.BF16 and not _is_result(users[scalar]):
            # Within softmax and the like. As a result of its own it has all of its digits.
            result[scalar] = (math32.exp_rough, scalar.srcs)
    return result


def _is_result(users: list[Scalar | None]) -> bool:
    return any(user is not None and user.op is Op.CONVERT for user in users)


def _users(space: Space) -> dict[Scalar, list[Scalar | None]]:
    """By what each expression is used; None stands for a store."""
    users: dict[Scalar, list[Scalar | None]] = {}
    for scalar in space.order:
        for source in operands(scalar):
            users.setdefault(source, []).append(scalar)
    for store in space.kernel.stores:
        for root in (store.value, store.mask, *(index for index, _ in store.access.indices)):
            if root is not None:
                users.setdefault(root, []).append(None)
    return users


def rounded_by_store(space: Space) -> frozenset[Scalar]:
    """Conversions from float32 to bfloat16 that are only stored: one instruction does both."""
    stored = [store.value for store in space.kernel.stores if store.combine is None]
    used = {source for scalar in space.order for source in operands(scalar)}
    return frozenset(
        value
        for value in stored
        if value.what == "op" and value.op is Op.CONVERT and value.dtype is DType.BF16
        if value.srcs[0].dtype is DType.F32 and value not in used
        if not any(store.combine is not None for store in space.kernel.stores)
    )


def _plus_one(scalar: Scalar) -> Scalar | None:
    """The function f if the expression is f + 1."""
    if scalar.what != "op" or scalar.op is not Op.ADD or scalar.dtype is not DType.F32:
        return None
    for function, one in (scalar.srcs, scalar.srcs[::-1]):
        if one.what == "const" and one.value == 1 and function.op in _FUSED:
            return function if function.what == "op" else None
    return None


def _rounded_to(user: Scalar | None, source: Scalar, tolerant: dict[Scalar, DType]) -> DType | None:
    """The 16-bit type that a user's result is rounded to in the end.

    None if there is none, or if a small relative error of `source` may be a larger one there.
    """
    if user is None:
        return None
    if user.what == "reduce":
        # Exponentials are positive, so nothing cancels.
        sums = user.op is Op.ADD and source.op is Op.EXP
        return tolerant.get(user) if sums else None
    if user.what != "op" or user.op is None:
        return None
    if user.op is Op.CONVERT:
        return user.dtype if user.dtype in (DType.BF16, DType.F16) else None
    places = [i for i, s in enumerate(user.srcs) if s is source]
    keeps = all(i in _KEEPING.get(user.op, ()) for i in places)
    return tolerant.get(user) if keeps else None
