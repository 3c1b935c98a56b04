"""Constants of number formats."""

from typing import Any, Final

import ml_dtypes
import numpy as np

from nki.dtypes import info
from nki.errors import NkiTypeError
from nki.first_generation.dtypes import dtype_name, numpy_dtype

__all__ = ["bfp16", "finfo", "fp32"]


class _Limits:
    """The smallest number of a format.

    Attributes:
        min: its most negative finite value; of bfloat16 negative infinity, as documented.
    """

    __slots__ = ("min",)

    def __init__(self, smallest: float) -> None:
        self.min = smallest


fp32: Final = _Limits(float(np.finfo(np.float32).min))
bfp16: Final = _Limits(float("-inf"))


def finfo(dtype: Any) -> Any:
    """Return the limits of a floating-point type.

    Raises:
        NkiTypeError: it is none (NKI240, NKI001).
    """
    kind = dtype_name(dtype)
    if not info(kind).is_float:
        raise NkiTypeError("NKI240", f"nl.finfo was given {kind}", "give a floating-point type")
    return ml_dtypes.finfo(numpy_dtype(kind))  # type: ignore[no-untyped-call]
