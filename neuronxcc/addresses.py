"""Whether two strided views of one memory share a byte, whatever their shapes.

The problem is NP-hard; NumPy's solver is exact where it ends in time. It is given arrays whose
addresses are looked at and whose bytes never are: what they are views of need not exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["Addresses", "share_a_byte"]

_PATIENCE: Any = 100_000  # steps of the solver, a millisecond


class Addresses:
    """Where the items of a view lie."""

    def __init__(
        self, shape: Sequence[int], strides: Sequence[int], itemsize: int, byte: int
    ) -> None:
        """Describe a view.

        Args:
            shape: of the view.
            strides: in bytes.
            itemsize: bytes of an item.
            byte: of the first item, counted from where the memory of both views begins.
        """
        self.__array_interface__ = {
            "version": 3,
            "shape": tuple(shape),
            "strides": tuple(strides),
            "typestr": f"|V{itemsize}",
            "data": ((1 << 40) + byte, True),
        }


def share_a_byte(a: Addresses, b: Addresses) -> bool | None:
    """Return whether two views of one memory share a byte; None if that takes too long to say."""
    try:
        return np.shares_memory(a, b, max_work=_PATIENCE)
    except np.exceptions.TooHardError:
        return None
