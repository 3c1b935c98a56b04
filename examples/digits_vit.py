"""Train a small vision transformer on scikit-learn's handwritten digits, on any PyTorch device.

    python -m examples.digits_vit --device neuron --device cpu [--compile]

The loop is ordinary PyTorch: DataLoader with pinned memory, autocast to bfloat16, AdamW, a learning
rate schedule. Nothing in it knows which device it runs on. The data is the set that scikit-learn
carries (1797 images of 8x8 pixels), so nothing is downloaded.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm  # type: ignore[import-untyped]

EPOCHS = 15
BATCH = 64
TEST_IMAGES = 360
SEED = 20261121


class Block(nn.Module):
    """One pre-norm transformer block over [batch, tokens, width]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        x = x + self.proj(attended)
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class VisionTransformer(nn.Module):
    """Images [batch, 1, 8, 8] -> logits [batch, 10], through 16 patches of 2x2 pixels."""

    def __init__(self, width: int = 128, depth: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, kernel_size=2, stride=2)
        # As large as the patches themselves: 16 tokens of 4 pixels mean little without their place.
        self.position = nn.Parameter(0.5 * torch.randn(1, 16, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.position
        logits: Tensor = self.head(self.norm(self.blocks(tokens)).mean(dim=1))
        return logits


@dataclass(frozen=True)
class Run:
    """What one training run came to.

    `seconds` covers the epochs and the test, not the data; `compiling` is the part of it that the
    first step took with `torch.compile`.
    """

    device: str
    seconds: float
    compiling: float
    accuracy: float
    loss: float


def digits() -> tuple[TensorDataset, TensorDataset]:
    """(training set, test set): float32 images [n, 1, 8, 8] in -1..1 and int64 labels [n]."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    labels = torch.tensor(data.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SEED))
    test, train = order[:TEST_IMAGES], order[TEST_IMAGES:]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def accuracy(model: nn.Module, test: TensorDataset, device: torch.device) -> float:
    """The share of test images whose largest logit is the right digit."""
    model.eval()
    images, labels = (t.to(device) for t in test.tensors)
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16):
        right = model(images).argmax(dim=1) == labels
    return float(right.float().mean())


def train(device: torch.device, epochs: int = EPOCHS, *, compiled: bool = False) -> Run:
    """Train from the same starting weights and batches on whatever device is given.

    Args:
        device: Where.
        epochs: How long.
        compiled: Forward and backward through torch.compile(backend="neuron").
    """
    torch.manual_seed(SEED)
    train_set, test_set = digits()
    loader = DataLoader(
        train_set,
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        pin_memory=device.type != "cpu",
        generator=torch.Generator().manual_seed(SEED),
    )
    # The weights are drawn on the host so that two devices start from the same ones.
    model = VisionTransformer().to(device)
    network = torch.compile(model, backend="neuron") if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    steps = epochs * len(loader)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(1.0, (step + 1) / 50) * 0.5 * (1 + math.cos(math.pi * step / steps)),
    )
    loss = torch.zeros(())
    compiling = 0.0
    name = f"{device}, compiled" if compiled else str(device)
    start = time.perf_counter()
    with tqdm(total=steps, desc=f"  {name}", unit="step", mininterval=0.5, leave=False) as bar:
        for _ in range(epochs):
            for batch in loader:
                images, labels = (part.to(device, non_blocking=True) for part in batch)
                with torch.autocast(device.type, torch.bfloat16):
                    loss = functional.cross_entropy(network(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                bar.update()
                if compiled and not compiling:
                    compiling = time.perf_counter() - start
            bar.set_postfix(loss=f"{loss.item():.4f}")
    score = accuracy(model, test_set, device)
    return Run(name, time.perf_counter() - start, compiling, score, loss.item())


def compare(runs: list[Run]) -> str:
    """The result of each run on a line, then which one was faster and by how much."""
    lines = [
        f"  {run.device:<16} test accuracy {run.accuracy:6.2%}   last loss {run.loss:.4f}   "
        f"{run.seconds:6.2f} s" + (f", compiling {run.compiling:.2f} s" if run.compiling else "")
        for run in runs
    ]
    if len(runs) > 1:
        ranked = sorted(runs, key=lambda run: run.seconds)
        fast, slow = ranked[0], ranked[-1]
        factor = slow.seconds / fast.seconds
        lines.append(
            f"  {fast.device} was {factor:.2f} times faster than {slow.device} here, just now"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--device", action="append", help="may be given several times; default neuron, cpu"
    )
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--compile", action="store_true", help='compile with backend="neuron"')
    args = parser.parse_args()
    devices = [torch.device(name) for name in args.device or ("neuron", "cpu")]
    print(compare([train(device, args.epochs, compiled=args.compile) for device in devices]))


if __name__ == "__main__":
    main()
