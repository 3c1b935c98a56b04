"""What recordings hold besides the documented instructions: fills of any memory, and printing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from nki.dtypes import info
from nki.isa import convert
from nki.isa.cast import Array
from nki.isa.rows.common import Arrays, on, source, target
from nki.isa.spec import ANY_DTYPE, HBM, ON_CHIP, Attribute, Instruction
from nki.isa.state import Step

__all__ = ["ROWS", "SENTINEL", "sentinel"]

# A fill with what memory holds that nothing has written.
SENTINEL = "sentinel"


def sentinel(dtype: str) -> float | None:
    """Return what new memory of a type holds: NaN or 4; None where it is bytes of 0xFF."""
    kind = info(dtype)
    if kind.is_packed or dtype == "float8_e8m0fnu":
        return None
    return math.nan if kind.is_float else 4


def _value(given: Any) -> Any:
    return given if given == SENTINEL else convert.number(given)


def _fill(step: Step, operands: Arrays, attributes: Mapping[str, Any]) -> dict[str, Array]:
    dst, value = operands["dst"], attributes["value"]
    if value == SENTINEL:
        value = sentinel(step.dtypes["dst"])
        if value is None:
            return {"dst": np.full(dst.nbytes, 0xFF, np.uint8).view(dst.dtype).reshape(dst.shape)}
    if info(step.dtypes["dst"]).is_packed:
        return {"dst": np.zeros(dst.shape, dst.dtype)}
    return {"dst": np.full(dst.shape, value, np.int64 if isinstance(value, int) else np.float32)}


ROWS = (
    Instruction(
        "fill",
        (
            target(dtypes=ANY_DTYPE, regions=HBM | ON_CHIP, any_start=True),
            Attribute("value", _value),
        ),
        on("dma"),
        _fill,
    ),
    Instruction(
        "device_print",
        (
            source("src", ANY_DTYPE, regions=HBM | ON_CHIP, any_start=True),
            Attribute("prefix", str),
        ),
        on("sync"),
        None,
    ),
)
