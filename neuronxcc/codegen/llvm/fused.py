"""Expressions that are computed as one, and those for which less than float32 will do.

What a kernel rounds to bfloat16 in the end needs no more than a few digits beyond those 8 bits, as
long as everything in between keeps relative errors as they are: products, quotients, signs,
choices, and sums of what is positive.
"""

from __future__ import annotations

from collections.abc import Callable

from neuronxcc.codegen.llvm import math32
from neuronxcc.codegen.llvm.num import Num
from neuronxcc.codegen.loop import Scalar, operands
from neuronxcc.codegen.space import Space
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.op import Op

# How to compute an expression, and from which others.
Formula = tuple[Callable[..., Num], tuple[Scalar, ...]]

_FUSED = {Op.TANH: (math32.one_plus_tanh, math32.one_plus_tanh_rough)}
_ROUGH = {Op.EXP: math32.exp_rough, Op.LOGISTIC: math32.logistic_rough}
# Operands whose relative error the result takes over.
_KEEPING = {
    Op.MULTIPLY: (0, 1), Op.DIVIDE: (0, 1), Op.NEGATE: (0,), Op.ABS: (0,), Op.COPYSIGN: (0,),
    Op.SELECT: (1, 2),
}  # fmt: skip


def formulas(space: Space) -> dict[Scalar, Formula]:
    """The expressions that are not computed operator by operator."""
    users = _users(space)
    inner = {s: _plus_one(s) for s in space.order}
    tolerant: set[Scalar] = set()
    result: dict[Scalar, Formula] = {}
    for scalar in reversed(space.order):
        if scalar.dtype is not DType.F32:
            continue
        if all(_tolerates(user, scalar, tolerant) for user in users[scalar]):
            tolerant.add(scalar)
        rough = scalar in tolerant
        function = inner[scalar]
        if function is not None and len(users[function]) == 1 and function.op is not None:
            result[scalar] = (_FUSED[function.op][rough], function.srcs)
        elif rough and scalar.what == "op" and scalar.op in _ROUGH:
            result[scalar] = (_ROUGH[scalar.op], scalar.srcs)
    return result


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


def _tolerates(user: Scalar | None, source: Scalar, tolerant: set[Scalar]) -> bool:
    """Return whether a small relative error of `source` is one of the user's result at most."""
    if user is None:
        return False
    if user.what == "reduce":
        # Exponentials are positive, so nothing cancels.
        return user.op is Op.ADD and source.op is Op.EXP and user in tolerant
    if user.what != "op" or user.op is None:
        return False
    if user.op is Op.CONVERT:
        return user.dtype is DType.BF16
    places = [i for i, s in enumerate(user.srcs) if s is source]
    return user in tolerant and all(i in _KEEPING.get(user.op, ()) for i in places)
