"""A U-Net that is trained with convolution kernels in NKI instead of the device's own convolutions.

    python -m examples.unet_kernels

The model is written with PyTorch's layers as ever. `with_kernels` puts layers in their places that
have the same parameters and call `torch_neuronx.kernels`; what the kernels do not take (groups,
dilation, other borders than zeros) stays as it is. Both models are trained on the same pictures,
compiled, and end with the same losses and weights.
"""

from __future__ import annotations

import copy
import sys

import torch
from torch import Tensor, nn

from torch_neuronx import kernels

STEPS = 4
# Losses of a few steps of SGD in float32: sums in another order, and what the steps make of it.
TOLERANCE = 1e-4


class KernelConv(nn.Conv2d):
    """A convolution by the kernels."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (PyTorch's name)
        padding = [int(n) for n in self.padding]
        return kernels.conv2d(input, self.weight, self.bias, self.stride, padding)


class KernelUp(nn.ConvTranspose2d):
    """A transposed convolution by the kernels."""

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:  # noqa: A002
        assert output_size is None
        padding = [int(n) for n in self.padding]
        return kernels.conv_transpose2d(
            input, self.weight, self.bias, self.stride, padding, self.output_padding
        )


def with_kernels(model: nn.Module) -> nn.Module:
    """Return the model with layers that call kernels, and the same parameters."""
    for name, layer in list(model.named_modules()):
        if type(layer) not in (nn.Conv2d, nn.ConvTranspose2d) or not taken(layer):
            continue
        sizes = (layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride,
                 layer.padding)  # fmt: skip
        made = (
            KernelConv(*sizes)
            if isinstance(layer, nn.Conv2d)
            else KernelUp(*sizes, layer.output_padding)
        )
        made.weight, made.bias = layer.weight, layer.bias
        model.set_submodule(name, made)
    return model


def taken(layer: nn.Module) -> bool:
    """Whether the kernels compute what a convolution does."""
    assert isinstance(layer, nn.Conv2d | nn.ConvTranspose2d)
    plain = layer.groups == 1 and layer.dilation == (1, 1)
    return plain and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)


class Block(nn.Sequential):
    """Two convolutions with norms and activations."""

    def __init__(self, ins: int, outs: int) -> None:
        super().__init__(
            nn.Conv2d(ins, outs, 3, padding=1), nn.GroupNorm(2, outs), nn.SiLU(),
            nn.Conv2d(outs, outs, 3, padding=1), nn.GroupNorm(2, outs), nn.SiLU(),
        )  # fmt: skip


class UNet(nn.Module):
    """Halves a picture twice and doubles it twice, beside what it was."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.second = Block(1, width), Block(width, 2 * width)
        self.middle = Block(2 * width, 2 * width)
        self.down = nn.ModuleList(
            nn.Conv2d(size, size, 3, stride=2, padding=1) for size in (width, 2 * width)
        )
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(2 * width, size, 2, stride=2) for size in (2 * width, width)
        )
        self.third, self.fourth = Block(4 * width, 2 * width), Block(2 * width, width)
        self.last = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.first(x)
        b = self.second(self.down[0](a))
        c = self.middle(self.down[1](b))
        b = self.third(torch.cat((b, self.up[0](c)), 1))
        a = self.fourth(torch.cat((a, self.up[1](b)), 1))
        out: Tensor = self.last(a)
        return out


def trained(model: nn.Module, noisy: Tensor, clean: Tensor) -> list[float]:
    """Train a model to clean pictures; return the losses."""
    model = model.to(noisy.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    compiled = torch.compile(model, backend="neuron")
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(compiled(noisy), clean)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def run() -> list[str]:
    """Train both models; return what differs."""
    torch.manual_seed(0)
    model = UNet()
    clean = torch.rand(2, 1, 16, 16, device="neuron")
    noisy = clean + torch.randn(clean.shape, device="neuron") / 10
    ours = with_kernels(copy.deepcopy(model))
    problems = []
    plain = [m for m in ours.modules() if type(m) in (nn.Conv2d, nn.ConvTranspose2d)]
    if plain:
        problems.append(f"without a kernel: {plain}")
    found, wanted = trained(ours, noisy, clean), trained(model, noisy, clean)
    print(f"losses with kernels {found}, without {wanted}")
    if not torch.allclose(torch.tensor(found), torch.tensor(wanted), rtol=TOLERANCE):
        problems.append("the losses differ")
    if found[-1] >= found[0]:
        problems.append("nothing was learned")
    return problems


if __name__ == "__main__":
    found = run()
    print("\n".join(found) or "both models learn the same")
    sys.exit(1 if found else 0)
