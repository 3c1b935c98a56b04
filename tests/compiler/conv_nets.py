"""Random small networks: convolutions of 1 to 3 dimensions and what usually stands around them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

MOST = 1 << 15  # elements of a tensor on the way


class View(nn.Module):
    """A change of shape, or another function of one tensor, by its name."""

    def __init__(self, name: str, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.name, self.function = name, function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply it."""
        return self.function(x)

    def extra_repr(self) -> str:
        """The name."""
        return self.name


class Beside(nn.Module):
    """A block and the tensor it was given, added or joined along the channels."""

    def __init__(self, inner: nn.Module, *, join: bool) -> None:
        super().__init__()
        self.inner, self.join = inner, join

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply it."""
        y: torch.Tensor = self.inner(x)
        return torch.cat((x, y), 1) if self.join or y.shape != x.shape else x + y


def shuffled(x: torch.Tensor) -> torch.Tensor:
    """Channels in two groups exchanged."""
    if x.shape[1] % 2:
        return x
    y: torch.Tensor = x.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)
    return y


_CONV = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_MAX = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
_AVG = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
_POINTWISE = (
    nn.ReLU(),
    nn.GELU(),
    nn.Tanh(),
    nn.SiLU(),
    View("2x + 1", lambda x: x * 2 + 1),
    View("x * x", lambda x: x * x),
)
# What takes the channels into another dimension, or apart.
_VIEWS = (
    View("flatten(1)", lambda x: x.flatten(1)),
    View("view(b, -1)", lambda x: x.contiguous().view(x.shape[0], -1)),
    View("reshape(b, -1)", lambda x: x.reshape(x.shape[0], -1)),
    View("flatten()", lambda x: x.flatten()),
    View("flatten(2)", lambda x: x.flatten(2) if x.dim() > 2 else x),
    View("flatten(2).transpose", lambda x: x.flatten(2).transpose(1, 2) if x.dim() > 2 else x),
    View("channels last", lambda x: x.movedim(1, -1)),
    View("flat channels last", lambda x: x.movedim(1, -1).flatten(1)),
    View("halves", lambda x: x.unflatten(1, (2, -1)) if x.shape[1] % 2 == 0 else x),
    View("shuffle", shuffled),
    View("mean", lambda x: x.mean(tuple(range(2, x.dim()))) if x.dim() > 2 else x),
    View("rows", lambda x: x.reshape(-1, x.shape[-1])),
    View("batch with channels", lambda x: x.flatten(0, 1)),
    View("glu", lambda x: nn.functional.glu(x, 1) if x.shape[1] % 2 == 0 else x),
)


def _convolution(rng: random.Random, rank: int, channels: int) -> nn.Module:
    out = rng.choice((4, 8, 16, 24, 32))
    groups = rng.choice((1, 1, 1, 2, channels))
    if channels % groups or out % groups:
        groups = 1
    kinds = _TRANSPOSED if rng.random() < 0.25 else _CONV
    options: dict[str, Any] = {
        "stride": rng.choice((1, 1, 2)),
        "padding": rng.choice((0, 1)),
        "groups": groups,
        "bias": rng.random() < 0.7,
    }
    return kinds[rank - 1](channels, out, rng.choice((1, 2, 3)), **options)


def _block(rng: random.Random, rank: int, channels: int) -> nn.Module:
    kind = rng.randrange(8)
    if kind < 4:
        return _convolution(rng, rank, channels)
    if kind == 4:
        return _NORM[rank - 1](channels)
    if kind == 5:
        return nn.GroupNorm(rng.choice((1, 2)) if channels % 2 == 0 else 1, channels)
    if kind == 6:
        pool = rng.choice((_MAX, _AVG))[rank - 1]
        return pool(2, stride=rng.choice((1, 2)))
    inner = _CONV[rank - 1](channels, rng.choice((channels, 8)), 3, padding=1)
    return Beside(inner, join=rng.random() < 0.3)


def net(seed: int) -> tuple[nn.Sequential, torch.Tensor]:
    """A network, on the CPU, and an input for it."""
    rng = random.Random(seed)  # noqa: S311 - it makes tests
    rank = rng.choice((1, 2, 2, 2, 3))
    extents = [rng.randrange(4, 10 if rank < 3 else 7) for _ in range(rank)]
    x = torch.randn(rng.randrange(1, 4), rng.choice((1, 3, 4, 16)), *extents)
    if rank == 2 and rng.random() < 0.2:
        x = x.to(memory_format=torch.channels_last)
    layers: list[nn.Module] = []
    shape = x

    def append(layer: nn.Module) -> bool:
        nonlocal shape
        try:
            with torch.no_grad():
                result = layer.eval()(shape)
        except (RuntimeError, ValueError, IndexError):  # it is not for this shape
            return False
        if not 0 < result.numel() <= MOST:
            return False
        layers.append(layer)
        shape = result
        return True

    append(_convolution(rng, rank, x.shape[1]))
    for _ in range(rng.randrange(5)):
        append(_block(rng, rank, shape.shape[1]))
        if rng.random() < 0.5:
            append(rng.choice(_POINTWISE))
    append(rng.choice(_VIEWS))
    for _ in range(rng.randrange(1, 4)):
        append(rng.choice(_POINTWISE if rng.random() < 0.6 else _VIEWS))
    if shape.dim() > 1 and rng.random() < 0.4:
        append(nn.Linear(shape.shape[-1], 5))
        append(rng.choice(_POINTWISE))
    return nn.Sequential(*layers), x
