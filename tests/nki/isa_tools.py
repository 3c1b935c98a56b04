"""Run one instruction on literal arrays, as the tests of `nki.isa` do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from nki.dtypes import info
from nki.isa.bind import bind, make_call
from nki.isa.evaluate import dtypes_of, evaluate
from nki.isa.spec import Call, Tile, empty
from nki.isa.state import CoreState, Step
from nki.isa.table import TABLE

Array = npt.NDArray[Any]


class T:
    """An operand: an array of an NKI type in a region."""

    def __init__(
        self, data: Any, dtype: str = "float32", region: str = "sbuf", **more: Any
    ) -> None:
        kind = info(dtype)
        with np.errstate(all="ignore"):
            self.data: Array = np.asarray(data).astype(kind.numpy)
        self.tile = Tile(self.data.shape, kind.name, region, **more)


def out(*shape: int, dtype: str = "float32", region: str = "sbuf", **more: Any) -> T:
    """Make an operand to write, filled with what uninitialised memory holds."""
    made = T(np.zeros(shape), dtype, region, **more)
    made.data = empty(made.tile)
    return made


def describe(value: Any) -> Tile | None:
    """Return the tile of a :class:`T` or a :class:`Tile`."""
    if isinstance(value, T):
        return value.tile
    return value if isinstance(value, Tile) else None


def call(name: str, *args: Any, generation: int = 4, **kwargs: Any) -> Call:
    """Bind and check a call."""
    operands, attributes = bind(TABLE[name], args, kwargs)
    return make_call(TABLE[name], operands, attributes, generation, describe)


def run(
    name: str,
    *args: Any,
    generation: int = 4,
    core: CoreState | None = None,
    written: Array | None = None,
    lane: int = 0,
    **kwargs: Any,
) -> tuple[dict[str, Array], Step]:
    """Bind, check and run a call; write its results into the operands.

    Returns:
        What was written, by operand name, and the step.
    """
    operands, attributes = bind(TABLE[name], args, kwargs)
    checked = make_call(TABLE[name], operands, attributes, generation, describe)
    step = Step(
        core or CoreState(),
        generation,
        checked.engine,
        dtypes_of(checked.operands),
        lane,
        written,
    )
    arrays: dict[str, Any] = {key: _data(value) for key, value in operands.items()}
    result = evaluate(TABLE[name], step, arrays, checked.attributes)
    for key, value in result.items():
        operands[key].data = value
    return result, step


def _data(value: Any) -> Any:
    if isinstance(value, T):
        return value.data
    if isinstance(value, (list, tuple)):
        return tuple(_data(item) for item in value)
    return value


def values(result: Mapping[str, Array], name: str = "dst") -> list[Any]:
    """Return what was written as nested lists of Python numbers."""
    array = result[name]
    wide = array if array.dtype.kind in "iu" else array.astype(np.float64)
    return list(wide.tolist())
