"""Small modules for random histories: what makes compiling one delicate is in one of them.

Statistics of two rows divide by what may be all but 0, which blows up roundings; hence large eps.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor, nn

SIZE = 8


class Flat(nn.Module):
    """Its weights are views of one buffer, as those of sharded modules."""

    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.Parameter(torch.randn(2 * SIZE * SIZE) * 0.2)

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.flat.split(SIZE * SIZE)
        return F.linear(torch.tanh(F.linear(x, first.view(SIZE, SIZE))), second.view(SIZE, SIZE))


class Sharing(nn.Module):
    """Two parameters in one storage, neither of which is a view to autograd."""

    def __init__(self) -> None:
        super().__init__()
        storage = torch.randn(2 * SIZE * SIZE) * 0.2
        self.first = nn.Parameter(storage[: SIZE * SIZE].view(SIZE, SIZE).detach())
        self.second = nn.Parameter(storage[SIZE * SIZE :].view(SIZE, SIZE).detach())

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.silu(F.linear(x, self.first)), self.second)


class Tied(nn.Module):
    """One weight at two places."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)
        self.down.weight = self.up.weight
        self.scale = 1.5

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu_(self.up(x))) * self.scale  # type: ignore[no-any-return]


class Cache(nn.Module):
    """It writes to its buffers, a slice at a time."""

    seen: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(SIZE, SIZE)
        self.register_buffer("seen", torch.zeros(4, SIZE))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.at = 0

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.seen[self.at].mul_(0.5).add_(x.detach().mean(0).to(self.seen.dtype))
            self.count.add_(1)
        known = self.seen[self.at : self.at + 2].sum(0).to(x.dtype)
        return self.linear(x) + known  # type: ignore[no-any-return]


class Norms(nn.Module):
    """Running statistics, and dropout that drops nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(SIZE, SIZE), nn.BatchNorm1d(SIZE, eps=0.3), nn.ReLU(inplace=True),
            nn.Dropout(0.0), nn.LayerNorm(SIZE, eps=0.1), nn.Linear(SIZE, SIZE),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)  # type: ignore[no-any-return]


class Images(nn.Module):
    """A convolution, of which the input is made."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4, eps=0.3)
        self.out = nn.Linear(16, SIZE)

    def forward(self, x: Tensor) -> Tensor:
        picture = x.view(-1, 2, 2, 2)
        return self.out(F.gelu(self.norm(self.conv(picture))).flatten(1))  # type: ignore[no-any-return]


class Attention(nn.Module):
    """A layer of a transformer over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(SIZE, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.unsqueeze(0)).squeeze(0)  # type: ignore[no-any-return]


MODELS: tuple[type[nn.Module], ...] = (Flat, Sharing, Tied, Cache, Norms, Images, Attention)
