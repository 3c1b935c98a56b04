"""Run one instruction on NumPy arrays: the slow, obvious reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nki.isa.cast import Array, write
from nki.isa.spec import Instruction, Tile
from nki.isa.state import Step

__all__ = ["evaluate"]


def evaluate(
    instruction: Instruction, step: Step, operands: Mapping[str, Any], attributes: Mapping[str, Any]
) -> dict[str, Array]:
    """Return what the instruction writes: new arrays, cast, in the shapes of the operands.

    They are in the order in which they must be stored: operands that overlap keep the last.

    Args:
        instruction: a row that has a meaning.
        step: where it runs.
        operands: arrays by name, numbers as numbers, lists as tuples of arrays; those that are
            absent may be missing or None. Written operands give their shape.
        attributes: canonical.
    """
    assert instruction.meaning is not None, instruction.name
    arrays: dict[str, Any] = {}
    for name, value in operands.items():
        if isinstance(value, tuple):
            arrays[name] = value
        elif value is not None:
            arrays[name] = np.asarray(value)
    with np.errstate(all="ignore"):
        raw = instruction.meaning(step, arrays, attributes)
        # Copies, because a meaning may return a view of what it read.
        return {
            name: np.array(
                write(np.asarray(value), step.dtypes[name]), order="C", copy=True
            ).reshape(arrays[name].shape)
            for name, value in raw.items()
        }


def dtypes_of(operands: Mapping[str, Any]) -> dict[str, str]:
    """Return the type names of the operands of a call, lists as ``srcs[0]``, ``srcs[1]``..."""
    names: dict[str, str] = {}
    for name, value in operands.items():
        if isinstance(value, Tile):
            names[name] = value.dtype
        elif isinstance(value, tuple):
            names.update({f"{name}[{i}]": tile.dtype for i, tile in enumerate(value)})
    return names
