"""Modulo allocation: block indices are taken modulo a number of places."""

from __future__ import annotations

import math

__all__ = ["modulo"]


def modulo(index: tuple[int, ...], places: tuple[int, ...], scale: int, base: int) -> int:
    """Return ``base + scale * n`` where n numbers the place of a block in row-major order.

    Args:
        index: of the block.
        places: along each block dimension; () for one place.
        scale: distance between places.
        base: the first place.
    """
    number = 0
    for k, i in enumerate(index):
        size = places[k] if places else 1
        number += (i % size) * math.prod(places[k + 1 :])
    return base + scale * number
