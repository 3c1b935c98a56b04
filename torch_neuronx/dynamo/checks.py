"""Checks of numbers that only a run knows: indices and labels, what an operator demands of values.

A check is a call of `neuron::check_values` (csrc/program/check_values.cpp). It returns 0, which is
added to the indices that were checked, so that nothing uses them before. Kernels clamp what they
read in any case: a check makes an error of what would be a wrong number.
"""

from __future__ import annotations

from neuronxcc.ir import build
from neuronxcc.ir.calls import CHECK, FACTORED
from neuronxcc.ir.node import Node, Operand, TensorType
from neuronxcc.passes.indices import interval
from torch_neuronx.dynamo.locations import operator_name
from torch_neuronx.dynamo.registry import Context

# What PyTorch's decompositions of these operators look up with the numbers that they were given.
_DECOMPOSED: dict[str, tuple[str, bool]] = {
    **dict.fromkeys(
        (
            "aten.nll_loss_forward.default",
            "aten.nll_loss_backward.default",
            "aten.nll_loss2d_forward.default",
            "aten.nll_loss2d_backward.default",
        ),
        ("Target {} is out of bounds.", True),
    ),
}


def checked(
    cx: Context, index: Node, low: int, extent: int, text: str, *, lookup: bool = True
) -> Node:
    """The indices, once it is known that all are in [low, extent); arguments as for `token`."""
    known = interval(index)
    if not index.type.size or (known is not None and low <= known[0] and known[1] < extent):
        return index
    zero = token(cx, index, low, extent, text, lookup=lookup)
    if extent <= 1 or 0 in cx.shape:  # where nothing needs the indices the check has to run as well
        cx.effects.append(zero)
        return index
    return build.add(index, build.broadcast_to(zero, index.shape))


def token(
    cx: Context, values: Node, low: int, extent: int, text: str, *, lookup: bool = True
) -> Node:
    """The number 0, of the type of the values, once it is known that all are in [low, extent).

    Args:
        cx: Of the operator that was given the values.
        values: Integers.
        low: The lowest that is allowed.
        extent: What they must be below.
        text: The error; "{}" stands for the first value that is outside.
        lookup: It is an IndexError, as it is on the CPU; else a RuntimeError.
    """
    origin = operator_name(cx.fx.meta.get("original_aten") or cx.fx.target)
    text, lookup = _DECOMPOSED.get(origin, (text, lookup))
    return _call(cx, values, low, extent - 1, f"{text} ({origin})", lookup=lookup)


def bounded(
    cx: Context, index: Node, dim: int, extent: int, *, negative: bool = False, lookup: bool = True
) -> Node:
    """Indices along a dimension of so many elements; `negative` ones count from its end."""
    text = f"index {{}} is out of bounds for dimension {dim} with size {extent}"
    return checked(cx, index, -extent if negative else 0, extent, text, lookup=lookup)


def demand(cx: Context, condition: Node, text: str) -> None:
    """Have a program stop with a RuntimeError unless all elements of a condition are true."""
    if not condition.type.size:
        return
    every = build.reduce(condition, "and", tuple(range(condition.type.rank)))
    cx.effects.append(_call(cx, every, 1, 1, text, lookup=False, sequence=next(cx.sequences)))


def demand_factored(cx: Context, infos: Node, function: str, *, is_matrix: bool) -> None:
    """Have a program stop with PyTorch's LinAlgError unless LAPACK was content with all matrices.

    Args:
        cx: Of the call of `aten::_linalg_check_errors`.
        infos: What LAPACK said, one number for each matrix.
        function: The user's, for the error.
        is_matrix: There is one matrix, no batch of them.
    """
    args = (Operand(0), function, is_matrix)
    scalar = TensorType(infos.dtype, ())
    token = build.custom_call(FACTORED, (scalar,), (infos,), args=args, sequence=next(cx.sequences))
    cx.locate(token)
    cx.effects.append(token)


def _call(
    cx: Context,
    values: Node,
    low: int,
    high: int,
    text: str,
    *,
    lookup: bool,
    sequence: int | None = None,
) -> Node:
    scalar = TensorType(values.dtype, ())
    args = (Operand(0), low, high, text, lookup)
    token = build.custom_call(CHECK, (scalar,), (values,), args=args, sequence=sequence)
    cx.locate(token)
    return token
