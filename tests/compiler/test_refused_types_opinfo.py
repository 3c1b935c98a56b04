"""Every operator of PyTorch's table with types that eager mode refuses: compiled refuses them too.

The samples are those of a type that the operator takes, converted to one that it may not take.
"""

from __future__ import annotations

import zlib
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db

from tests.shallow import shallow

from .opinfo import full_name

# The samples themselves warn: of deprecations, of tensors resized, of NumPy.
pytestmark = pytest.mark.filterwarnings("ignore")

TYPES = (torch.int64, torch.bool, torch.complex64, torch.float16, torch.float32)


def case(info: Any, dtype: torch.dtype) -> tuple[Any, list[Tensor]] | None:
    """The operator as a function of its tensors, and these in a type that it may not take."""
    known = next((d for d in TYPES[::-1] if info.supports_dtype(d, "cpu")), None)
    if known is None:
        return None
    torch.manual_seed(0)
    sample = next(iter(info.sample_inputs("cpu", known, requires_grad=False)), None)
    if sample is None:
        return None
    leaves, shape = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

    def called(*tensors: Tensor) -> Any:
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        first, rest, named = pytree.tree_unflatten(filled, shape)
        return info.op(first, *rest, **named)

    given = [leaves[i] for i in places]
    return called, [t.to(dtype) if t.dtype == known else t for t in given]


@shallow
def check(info: Any, dtype: torch.dtype) -> None:
    made = case(info, dtype)
    if made is None:
        return
    called, tensors = made
    mine = [t.to("neuron") for t in tensors]
    try:
        called(*[t.clone() for t in mine])
    except (RuntimeError, TypeError, ValueError, IndexError, AssertionError) as error:
        eager = f"{dtype}: {error}"
    else:
        return
    torch.compiler.reset()
    compiled: Any = torch.compile(called, backend="neuron")
    with pytest.raises(Exception, match=r"(?s).*") as raised:  # Dynamo's class, by where it was
        compiled(*mine)
    text = str(raised.value)
    assert "defect" not in text, eager
    if "[NCC_" in text:  # our words; PyTorch's own say where in their way
        assert __file__ in text, eager


@pytest.mark.every(5)
@pytest.mark.parametrize("info", op_db, ids=full_name)
def test_one_type(info: Any) -> None:
    check(info, TYPES[zlib.crc32(full_name(info).encode()) % len(TYPES)])


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("info", op_db, ids=full_name)
def test_every_type(info: Any, dtype: torch.dtype) -> None:
    check(info, dtype)
