"""GELU's approximation by tanh: programs spell it out, the Scalar Engine has it as a function."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from nki.device.groups import Use, is_number

__all__ = ["half_of_gelu"]

#: The operands of a node if it is of an operator and nobody else needs it, else None.
Parts = Callable[[Node, Op], Sequence[Use] | None]

_SCALE: Final = math.sqrt(2 / math.pi)
_CUBIC: Final = 0.044715
_CLOSE: Final = 1e-6  # relative: constants are rounded to float32


def half_of_gelu(factors: Sequence[Use], parts: Parts) -> tuple[Node, int] | None:
    """Return where x is halved in a product that is GELU's approximation.

    That is ``x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))``.

    Args:
        factors: of the product.
        parts: see `Parts`.

    Returns:
        A node and the number of its operand that is x; None for other products.
    """
    for half, gate in _either(factors):
        halved = _with_number(half.source, Op.MULTIPLY, 0.5, parts)
        opened = _with_number(gate.source, Op.ADD, 1.0, parts)
        if halved is None or opened is None:
            continue
        x, number = halved
        bent = parts(opened[0].source, Op.TANH)
        scaled = None if bent is None else _with_number(bent[0].source, Op.MULTIPLY, _SCALE, parts)
        sums = None if scaled is None else parts(scaled[0].source, Op.ADD)
        for first, second in _either(sums or ()):
            cubic = _with_number(second.source, Op.MULTIPLY, _CUBIC, parts)
            if first == x and cubic is not None and _is_cube(cubic[0].source, x, parts):
                return half.source, number
    return None


def _either(pair: Sequence[Use]) -> Iterator[tuple[Use, Use]]:
    """Iterate over a pair in both orders."""
    if len(pair) == 2:
        yield pair[0], pair[1]
        yield pair[1], pair[0]


def _with_number(node: Node, op: Op, number: float, parts: Parts) -> tuple[Use, int] | None:
    """Return the other operand, and which one it is, of an operator with a certain number."""
    uses = parts(node, op)
    for at, (one, other) in enumerate(_either(uses or ())):
        if is_number(other.source):
            value = float(other.source["literal"].array.reshape(-1)[0])
            if math.isclose(value, number, rel_tol=_CLOSE):
                return one, at
    return None


def _is_cube(node: Node, x: Use, parts: Parts) -> bool:
    power = _with_number(node, Op.POWER, 3.0, parts)
    if power is not None:
        return power == (x, 0)
    for square, other in _either(parts(node, Op.MULTIPLY) or ()):
        if other == x and list(parts(square.source, Op.MULTIPLY) or ()) == [x, x]:
            return True
    return False
