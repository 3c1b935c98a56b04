"""PyTorch's table of operators as cases of a test."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db


def operator_cases(*dtypes: torch.dtype) -> list[Any]:
    """Every operator with each of these types that the CPU has for it; not those of CUDA alone."""
    return [
        pytest.param(info, dtype, id=f"{info.formatted_name}-{dtype}")
        for info in op_db
        if not info.name.startswith("jiterator")
        for dtype in dtypes
        if dtype in info.supported_dtypes("cpu")
    ]
