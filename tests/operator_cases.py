"""PyTorch's table of operators as cases of a test."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree


def operator_cases(*dtypes: torch.dtype) -> list[Any]:
    """Every operator with each of these types that the CPU has for it; not those of CUDA alone."""
    return [
        pytest.param(info, dtype, id=f"{info.formatted_name}-{dtype}")
        for info in op_db
        if not info.name.startswith("jiterator")
        for dtype in dtypes
        if dtype in info.supported_dtypes("cpu")
    ]


def sample_on(sample: Any, device: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The operand, arguments and keywords of a sample, with copies of its tensors on a device."""

    def copy(x: Tensor) -> Tensor:
        return x.detach().to(device, copy=True)

    x, args, kwargs = pytree.tree_map_only(
        Tensor, copy, (sample.input, tuple(sample.args), {**sample.kwargs})
    )
    if "device" in kwargs:
        kwargs["device"] = device
    return x, args, kwargs
