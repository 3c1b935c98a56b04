"""The part of `torch_neuronx._C` that this package uses, as a protocol."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from collections.abc import Callable


class OperatorCore(Protocol):
    """The functions of the native core; tests pass an object of their own.

    A dtype mask has bit `int(ScalarType)` set. A count is (operator with overload, dtype, calls,
    whether the mask said that a NeuronCore executes it).
    """

    def set_operator_table(self, masks: dict[str, int], /) -> None:
        """Replace the table of base name -> dtype mask."""

    def set_portability(self, mode: int, handler: Callable[[str, str], None] | None, /) -> None:
        """Set the mode, and whom to call before an operator that is outside the masks."""

    def operator_counts(self) -> list[tuple[str, str, int, bool]]:
        """Calls by operator and dtype since the start or the last reset."""

    def reset_operator_counts(self) -> None:
        """Set all counts to zero."""


def native_core() -> OperatorCore:
    """The native core; ImportError if it has not been built."""
    # By name, so that the pure Python parts can be read and tested without it.
    return cast("OperatorCore", importlib.import_module("torch_neuronx._C"))
