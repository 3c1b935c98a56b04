"""Models of the shapes of those that were measured, and what of them is timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn

from torch_neuronx.estimation.calibration.decoder import SIZES, Decoder
from torch_neuronx.estimation.calibration.rows import Row
from torch_neuronx.estimation.session import Recorded, placed, record

__all__ = ["recorded"]

#: By model, the fields of its configuration in transformers that are not the defaults.
_BERT: Final[Mapping[str, Mapping[str, Any]]] = {
    "bert-base": {},
    "bert-large": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
                   "intermediate_size": 4096},
}  # fmt: skip


def _bert(name: str) -> nn.Module:
    from transformers import BertConfig, BertModel  # noqa: PLC0415 - an optional library

    return BertModel(BertConfig(**_BERT[name]))


def _roberta() -> nn.Module:
    from transformers import RobertaConfig, RobertaModel  # noqa: PLC0415

    large = _BERT["bert-large"]
    return RobertaModel(RobertaConfig(vocab_size=50265, max_position_embeddings=514, **large))


def _distilbert() -> nn.Module:
    from transformers import DistilBertConfig, DistilBertModel  # noqa: PLC0415

    return DistilBertModel(DistilBertConfig())


def _albert() -> nn.Module:
    from transformers import AlbertConfig, AlbertModel  # noqa: PLC0415

    widths: Mapping[str, Any] = {
        "hidden_size": 768,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
    }
    return AlbertModel(AlbertConfig(**widths))


def _resnet() -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification  # noqa: PLC0415

    return ResNetForImageClassification(ResNetConfig(depths=[3, 8, 36, 3]))


def _vgg() -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(512 * 49, 4096), nn.ReLU(), nn.Linear(4096, 4096),
        nn.ReLU(), nn.Linear(4096, 1000),
    )  # fmt: skip


_MODELS: Final[Mapping[str, Callable[[], nn.Module]]] = {
    "bert-base": lambda: _bert("bert-base"),
    "bert-large": lambda: _bert("bert-large"),
    "roberta-large": _roberta,
    "distilbert": _distilbert,
    "albert-base": _albert,
    "resnet152": _resnet,
    "vgg16": _vgg,
}


def recorded(row: Row) -> Recorded:
    """Run the model of a row on fake tensors."""
    if row.model in SIZES:
        return _decoder(row)
    with torch.device("meta"):
        model = _MODELS[row.model]()
        vision = row.family == "vision"
        given = (
            torch.empty(row.batch, 3, row.length, row.length)
            if vision
            else torch.empty(row.batch, row.length, dtype=torch.int64)
        )
    training = row.what == "training"
    if training:
        model = model.bfloat16()
    return record(
        model.train(training),
        given,
        placement=placed(None, instance=row.instance),
        training=training,
        optimizer=None,
    )


def _decoder(row: Row) -> Recorded:
    weights = {"int8": torch.int8, "bf16": torch.bfloat16}[row.weights]

    def program() -> None:
        dist.init_process_group("neuron")
        model = Decoder(SIZES[row.model], row.ranks, row.batch, row.cache, weights)
        first = row.cache - row.length - 1 if row.length == 1 else 0
        places = torch.arange(first, first + row.length, device="neuron")
        tokens = torch.zeros(row.batch, row.length, dtype=torch.int64, device="neuron")
        with torch.no_grad():
            model(tokens, places)

    return record(program, placement=placed(None, world_size=row.ranks, instance=row.instance))


def options(row: Row) -> dict[str, Any]:
    """The compiler's options of a row: float32 models were compiled with --auto-cast matmult."""
    return {} if row.model in SIZES or row.what == "training" else {"auto_cast": "matmult"}
