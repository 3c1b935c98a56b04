"""Libraries that own the loop: loaders, trainers, embeddings, ranks."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.clients.programs import drawn, whole
from tests.distributed.ranks import run_ranks

# What clients say about their own future and about builds of theirs.
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"
)
REASON = "the extra `clients` has it"


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_goes_on_on_the_device(workers: int) -> None:
    """torchdata: what comes after a saved state is what would have come."""
    pytest.importorskip("torchdata", reason=REASON)
    from torchdata.stateful_dataloader import StatefulDataLoader

    def loader() -> Any:
        data = torch.utils.data.TensorDataset(torch.arange(24.0))
        return StatefulDataLoader(
            data, batch_size=4, num_workers=workers, pin_memory=True, pin_memory_device="neuron"
        )

    first = loader()
    batches = iter(first)
    seen = [next(batches)[0] for _ in range(2)]
    assert all(x.is_pinned() for x in seen)
    state = first.state_dict()
    rest = [x.to("neuron", non_blocking=True) for (x,) in batches]
    second = loader()
    second.load_state_dict(state)
    again = [x.to("neuron", non_blocking=True) for (x,) in second]
    assert len(rest) == 4
    torch.testing.assert_close(torch.cat(again), torch.cat(rest))
    torch.testing.assert_close(torch.cat([*seen, *(x.cpu() for x in rest)]), torch.arange(24.0))


def test_nodes_of_torchdata_feed_the_device() -> None:
    pytest.importorskip("torchdata", reason=REASON)
    from torchdata import nodes

    node: Any = nodes.IterableWrapper([torch.full((2,), float(i)) for i in range(6)])
    node = nodes.ParallelMapper(node, map_fn=lambda x: x * 2, num_workers=1, method="thread")
    node = nodes.Batcher(node, 3)
    node = nodes.Mapper(node, map_fn=lambda parts: torch.stack(parts).to("neuron"))
    totals = [batch.sum().item() for batch in nodes.Loader(node)]
    assert totals == [12.0, 48.0]


def test_sentence_embeddings_train(tmp_path: Path) -> None:
    """sentence-transformers: a model made here, encoded and trained on the device as on the CPU."""
    library = pytest.importorskip("sentence_transformers", reason=REASON)
    from transformers import BertConfig, BertModel

    losses: Any = importlib.import_module("sentence_transformers.losses")

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words += ["a", "small", "dog", "sees", "the", "red", "ball"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    settings = BertConfig(vocab_size=len(words), num_attention_heads=4, **sizes)
    BertModel(settings).save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "BertTokenizer", "model_max_length": 32})
    )
    pairs = [["a small dog", "the red ball", "a dog"], ["a dog", "red ball", "small dog sees"]]

    def run(device: str) -> tuple[torch.Tensor, torch.Tensor]:
        model = library.SentenceTransformer(str(tmp_path), device=device)
        model.eval()  # no dropout, so that devices can be compared
        loss = losses.MultipleNegativesRankingLoss(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            features = [model.tokenize(side) for side in pairs]
            moved = [
                {k: v.to(device) for k, v in f.items() if torch.is_tensor(v)} for f in features
            ]
            value = loss(moved, torch.zeros(0))
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
        embedded = model.encode(pairs[0], convert_to_tensor=True)
        assert embedded.device.type == device
        return value.detach().cpu(), embedded.cpu()

    torch.testing.assert_close(run("neuron"), run("cpu"), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["SFT", "DPO"])
def test_trl_fine_tunes(kind: str, tmp_path: Path) -> None:
    """trl's trainers with LoRA take this device by themselves, and follow the CPU."""
    trl = pytest.importorskip("trl", reason=REASON)
    datasets = pytest.importorskip("datasets", reason=REASON)
    from peft import LoraConfig
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from tests.clients.programs import _llama

    words = {w: i for i, w in enumerate(["<pad>", "<eos>", "<unk>", *"abcdefghij"])}
    raw = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
    )
    letters = [chr(ord("a") + n) for n in whole(10, 64).tolist()]
    texts = [" ".join(letters[8 * i : 8 * i + 8]) for i in range(8)]
    rows: list[dict[str, str]] = [{"text": text} for text in texts]
    if kind == "DPO":
        rows = [
            {"prompt": text, "chosen": texts[i - 1], "rejected": texts[i - 2]}
            for i, text in enumerate(texts)
        ]

    def run(cpu: bool) -> tuple[str, float]:
        settings = getattr(trl, f"{kind}Config")(
            output_dir=str(tmp_path / str(cpu)),
            max_steps=3,
            per_device_train_batch_size=4,
            learning_rate=1e-2,
            use_cpu=cpu,
            bf16=False,
            gradient_checkpointing=False,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            seed=0,
        )
        trainer = getattr(trl, f"{kind}Trainer")(
            model=_llama(),
            args=settings,
            train_dataset=datasets.Dataset.from_list(rows),
            processing_class=tokenizer,
            peft_config=LoraConfig(r=4, task_type="CAUSAL_LM", lora_dropout=0.0),
        )
        result = trainer.train()
        return next(trainer.model.parameters()).device.type, result.training_loss

    here, loss = run(cpu=False)
    there, expected = run(cpu=True)
    assert (here, there) == ("neuron", "cpu")
    assert loss == pytest.approx(expected, rel=1e-4)


def metric_over_ranks(rank: int, world: int) -> float:
    from torchmetrics.classification import MulticlassAccuracy

    metric = MulticlassAccuracy(5, average="micro").to("neuron")
    metric.update(drawn(8, 5, seed=rank).to("neuron"), whole(5, 8, seed=rank).to("neuron"))
    value: float = metric.compute().item()
    return value


@pytest.mark.slow
def test_metrics_are_gathered_over_ranks() -> None:
    pytest.importorskip("torchmetrics", reason="lightning has it")
    right = [(drawn(8, 5, seed=r).argmax(1) == whole(5, 8, seed=r)).float().mean() for r in (0, 1)]
    expected = (sum(right) / 2).item()  # type: ignore[union-attr] # of two tensors
    assert run_ranks(2, metric_over_ranks) == pytest.approx([expected, expected])


def trained(steps: int) -> tuple[list[float], list[torch.Tensor]]:
    """Losses and weights of one process with all data: what ranks end with."""
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    inputs = torch.randn(32, 8, generator=torch.Generator().manual_seed(1))
    losses = []
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(inputs), inputs[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.detach() for p in model.parameters()]


@pytest.mark.slow
def test_ray_trains_on_two_nodes() -> None:
    """Its ranks have a core each by Ray's own resource, and end as one process with all data."""
    pytest.importorskip("ray", reason=REASON)
    from examples.ray_train import main

    steps = 3
    reports = main(steps)
    assert {each["backend"] for each in reports} == {"neuron"}
    assert len({each["node"] for each in reports}) == 2
    losses, weights = trained(steps)
    for report in reports:
        assert report["loss"] == pytest.approx(losses[-1], rel=1e-5)
        torch.testing.assert_close([torch.tensor(w) for w in report["weights"]], weights)


@pytest.mark.slow
def test_monarch_trains_by_actors() -> None:
    """A mesh of actors with a core each ends as one process with all data."""
    pytest.importorskip("monarch", reason=REASON)
    from examples.monarch_train import main

    steps = 3
    found = main(steps)
    losses, weights = trained(steps)
    assert found["losses"] == pytest.approx(losses, rel=1e-5)
    assert len(found["weights"]) == 2
    for mine in found["weights"]:
        torch.testing.assert_close(mine, weights)
