"""Handwritten digits by Lightning's Trainer, on one NeuronCore or several.

python -m examples.lightning_digits
python -m examples.lightning_digits --devices 2 --strategy neuron_fsdp --precision bf16-mixed
"""

import argparse

import lightning.pytorch as pl
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import torch_neuronx.integrations.lightning  # noqa: F401 - registers "neuron", see docs/lightning.md


class Digits(pl.LightningModule):  # type: ignore[misc] # mypy doesn't look into Lightning
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 10))

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.net(images), labels)

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        images, labels = batch
        right = (self.net(images).argmax(1) == labels).float().mean()
        self.log("correct", right, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--strategy", help="default: neuron for one core, ddp for several")
    parser.add_argument("--precision", default="32-true")
    asked = parser.parse_args()
    pl.seed_everything(0, verbose=False)
    digits = load_digits()
    pixels = torch.tensor(digits.data, dtype=torch.float32) / 16
    data = TensorDataset(pixels, torch.tensor(digits.target))
    train, held_out = random_split(data, [0.8, 0.2])
    trainer = pl.Trainer(
        accelerator="neuron",
        devices=asked.devices,
        strategy=asked.strategy or ("neuron" if asked.devices == 1 else "ddp"),
        precision=asked.precision,
        max_epochs=8,
        logger=False,
        enable_checkpointing=False,
    )
    model = Digits()
    trainer.fit(model, DataLoader(train, batch_size=32, shuffle=True))
    (result,) = trainer.validate(model, DataLoader(held_out, batch_size=64), verbose=False)
    if trainer.is_global_zero:
        print(f"{asked.devices} NeuronCores, correct: {100 * result['correct']:.1f} %")


if __name__ == "__main__":
    main()
