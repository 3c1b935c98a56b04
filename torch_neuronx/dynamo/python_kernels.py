"""Kernels in Python by which PyTorch traces operators, where the device needs to name them.

Such a kernel stands for the operator in every trace, before a backend sees it, and whatever its
table of decompositions says. Where PyTorch's is wrong, the device has its own. Where the device has
a kernel in C++, which PyTorch would take although traces have no use for it, PyTorch's is named.
Imported when Dynamo has been.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._ops import OpOverload
from torch._subclasses.functional_tensor import FunctionalTensorMode

_NONE, _MEAN = 0, 1


def _multilabel_margin_loss(
    scores: Tensor, target: Tensor, reduction: int
) -> tuple[Tensor, Tensor]:
    """`aten.multilabel_margin_loss_forward`.

    PyTorch's has a term for every place behind the -1 that ends a row's labels, as if the label 0
    stood there, and makes a vector of one number of a vector's loss.

    Args:
        scores: Floats `[C]` or `[N, C]`.
        target: Labels of the same shape; those of a row end at the first -1.
        reduction: None, mean or sum, as PyTorch numbers them.

    Returns:
        The loss, and ones where a class is a label, of the target's shape.
    """
    size = list(scores.shape)
    torch._check(
        len(size) <= 2 and size[-1:] != [0],
        lambda: (
            f"Expected non-empty vector or matrix with optional 0-dim batch size, but got: {size}"
        ),
    )
    torch._check(
        list(target.shape) == size,
        lambda: f"inconsistent target size: {list(target.shape)} for input of size: {size}",
    )
    rows, labels = torch.atleast_2d(scores), torch.atleast_2d(target)
    classes = rows.shape[1]
    place = torch.arange(classes, device=target.device)
    end = torch.where(labels == -1, place, classes).amin(-1, keepdim=True)
    valid = place < end
    named = (torch.where(valid, labels, -1).unsqueeze(-1) == place).any(1)
    of_labels = rows.gather(1, torch.where(valid, labels, 0))
    margins = 1 - of_labels.unsqueeze(-1) + rows.unsqueeze(1)
    counted = (margins > 0) & valid.unsqueeze(-1) & ~named.unsqueeze(1)
    loss = torch.where(counted, margins, 0).sum((1, 2)) / classes
    if reduction == _NONE:
        loss = loss.reshape(scores.shape[:-1])
    else:
        loss = loss.mean() if reduction == _MEAN else loss.sum()
    return loss, named.to(scores.dtype).reshape(target.shape)


def _affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool) -> Tensor:
    """`aten.affine_grid_generator`, rounded as ATen's kernel does.

    PyTorch's, and its gradient, make a tensor of a number where a side has one place, and for
    16-bit types, which a trace can't hold.

    Args:
        theta: Floats `[N, d, d + 1]`.
        size: Of the images, `[N, C, *sides]`, of which there are d.
        align_corners: Whether -1 and 1 are the centres of the outermost places, not their edges.

    Returns:
        The grid `[N, *sides, d]`.
    """
    n, _, *sides = size
    dtype, device = theta.dtype, theta.device

    def places(extent: int) -> Tensor:
        if extent <= 1:
            return torch.zeros([extent], dtype=dtype, device=device)
        line = torch.linspace(-1, 1, extent, dtype=dtype, device=device)
        return line if align_corners else line * ((extent - 1) / extent)

    dims = len(sides)
    along = [places(extent).view([-1] + [1] * (dims - 1 - d)) for d, extent in enumerate(sides)]
    columns = [line.expand(sides) for line in reversed(along)]
    columns.append(torch.ones(sides, dtype=dtype, device=device))
    base = torch.stack(columns, -1).view(1, -1, dims + 1).expand(n, -1, -1)
    return base.bmm(theta.transpose(1, 2)).view(n, *sides, dims)


def _shares(operator: OpOverload) -> None:
    """Tell traces that the parts of an unsafe split share memory with the whole, as they do.

    The operator's schema says nothing of that, so that functionalization takes the parts for copies
    and what is written to one later is not seen in the other. Autograd, which is above it, goes on
    to treat them as tensors of their own: such parts exist to be written to with gradients.
    """

    def kernel(
        mode: FunctionalTensorMode, x: Tensor, sizes: int | list[int], dim: int = 0
    ) -> Sequence[Tensor]:
        parts: Sequence[Tensor]
        if x.device.type == "neuron":
            with mode:
                parts = x.split(sizes, dim)
        else:
            parts = mode.__torch_dispatch__(operator, (), (x, sizes, dim))
        return parts

    operator.py_impl(FunctionalTensorMode)(kernel)


def register() -> None:
    """Register them for tensors of the device."""
    aten = torch.ops.aten
    loss = aten.multilabel_margin_loss_forward.default
    loss.py_impl(DispatchKey.AutogradPrivateUse1)(_multilabel_margin_loss)
    kernels: dict[OpOverload, Callable[..., Any]] = {
        aten.affine_grid_generator.default: _affine_grid,
        # Their kernels in C++ (`native_rnn.cpp`) run fused cells, one by one.
        **{
            network: network.py_kernels[DispatchKey.Autograd]
            for network in (
                aten.lstm.input, aten.lstm.data, aten.gru.data, aten.rnn_tanh.data,
                aten.rnn_relu.data,
            )
        },
    }  # fmt: skip
    for operator, kernel in kernels.items():
        for key in (DispatchKey.AutogradPrivateUse1, DispatchKey.PrivateUse1):
            operator.py_impl(key)(kernel)
    _shares(aten.unsafe_split.Tensor)
    _shares(aten.unsafe_split_with_sizes.default)
