"""One rank of the tests of transformers' Trainer: `torchrun ... trainer_worker.py RESULTS MODE`."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import Dataset
from transformers import EvalPrediction, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

STEPS, SAVED, LENGTH, VOCABULARY = 6, 3, 16, 64
GLOBAL_BATCH = 8
EVALUATED = 13


class Sentences(Dataset[dict[str, Tensor]]):
    """Sequences in which each token is the one before it plus a constant."""

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        start = torch.randint(VOCABULARY, (count, 1), generator=generator)
        step = torch.randint(1, 4, (count, 1), generator=generator)
        self.tokens = (start + step * torch.arange(LENGTH)) % VOCABULARY

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def model() -> LlamaForCausalLM:
    torch.manual_seed(3)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=LENGTH,
        )
    )


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    """Also counts the samples that the gathered predictions hold."""
    labels = np.asarray(prediction.label_ids)
    right = np.asarray(prediction.predictions)[:, :-1].argmax(-1) == labels[:, 1:]
    return {"accuracy": float(right.mean()), "samples": float(len(labels))}


# What each mode adds to the arguments that all have.
MODES: dict[str, dict[str, Any]] = {
    "ddp": {},
    "accumulated": {"gradient_accumulation_steps": 2},
    "fsdp": {
        "fsdp": True,
        "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]},
    },
}


def arguments(results: Path, mode: str, world: int) -> TrainingArguments:
    extra = MODES[mode]
    accumulation = int(extra.get("gradient_accumulation_steps", 1))
    return TrainingArguments(
        output_dir=str(results / mode),
        per_device_train_batch_size=GLOBAL_BATCH // world // accumulation,
        per_device_eval_batch_size=4,
        max_steps=STEPS,
        learning_rate=5e-3,
        logging_steps=1,
        save_steps=SAVED,
        eval_strategy="steps",
        eval_steps=STEPS,
        report_to=[],
        disable_tqdm=True,
        # Shuffled, the ranks' samples would be others than those of one process.
        train_sampling_strategy="sequential",
        dataloader_pin_memory=False,
        ddp_find_unused_parameters=False,
        **extra,
    )


def run(results: Path, mode: str, *, resume: bool) -> dict[str, Any]:
    world = int(os.environ.get("WORLD_SIZE", "1"))  # the arguments make the group
    trainer = Trainer(
        model=model(),
        args=arguments(results, mode, world),
        train_dataset=Sentences(GLOBAL_BATCH * STEPS, seed=0),
        eval_dataset=Sentences(EVALUATED, seed=1),
        compute_metrics=accuracy,
    )
    checkpoint = str(results / mode / f"checkpoint-{SAVED}")
    trainer.train(resume_from_checkpoint=checkpoint if resume else None)
    history = trainer.state.log_history
    evaluation = next(entry for entry in history if "eval_loss" in entry)
    return {
        "device": str(trainer.args.device),
        "losses": [entry["loss"] for entry in history if "loss" in entry],
        "evaluation": {name: evaluation[f"eval_{name}"] for name in ("accuracy", "samples")},
    }


def main() -> None:
    results = Path(sys.argv[1])
    found = {}
    for mode in sys.argv[2:]:
        found[mode] = run(results, mode, resume=False)
        found[f"{mode}, resumed"] = run(results, mode, resume=True)
    if not dist.is_initialized() or dist.get_rank() == 0:
        (results / "results.json").write_text(json.dumps(found))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
