"""What PyTorch has element by element, and the program as a broadcast, suits kernels of PyTorch's.

Ones, a number for all, and what is repeated are broadcasts to the compiler. Kernels that look at
strides refuse a stride of 0, where eager mode gives them a tensor like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from torch import Tensor

#: How 16 x 16 numbers come from 16 x 16 others.
MAKERS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "ones": lambda x: x.new_ones(16, 16),
    "full": lambda x: x.new_full((16, 16), 0.5),
    "converted": lambda x: x.float().new_ones(16, 16).to(x.dtype),
    "repeated row": lambda x: x[:1].repeat(16, 1),
    "repeated column": lambda x: x[:, :1].repeat(1, 16),
    "expanded and copied": lambda x: x[3].expand(16, 16).contiguous(),
    "computed": lambda x: x + 1,
}
_ENDS = torch.tensor([8, 16], dtype=torch.int32)


def _groups(x: Tensor, y: Tensor) -> Tensor:
    return torch._grouped_mm(x, y.expand(2, 16, 16).contiguous(), offs=_ENDS.to(x.device))


#: Kernels that look at the strides of two matrices of bfloat16, or of one.
KERNELS: Final[dict[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "grouped_mm": _groups,
    "int8pack_mm": lambda x, y: torch._weight_int8pack_mm(
        x, (4 * y).to(torch.int8), x.new_full((16,), 0.25)
    ),
    "view as other type": lambda x, _: x.view(torch.int32),
    "view as complex": lambda x, _: torch.view_as_complex(x.float().view(16, 8, 2)),
}


@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_that_look_at_strides(kernel: str) -> None:
    def function(x: Tensor, y: Tensor) -> Any:
        return {name: KERNELS[kernel](make(x), make(y)) for name, make in MAKERS.items()}

    torch.compiler.reset()
    x, y = (torch.randint(-3, 4, (16, 16)).bfloat16() for _ in range(2))
    expected = function(x, y)
    got = torch.compile(function, backend="neuron")(x.to("neuron"), y.to("neuron"))
    for name in MAKERS:
        # Sums of small integers and their halves are exact in every order.
        assert torch.equal(got[name].cpu(), expected[name]), name
