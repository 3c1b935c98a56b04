"""torchtitan's debug models on neuron devices with PyTorch 2.13, without a change to torchtitan.

This is a module of configurations as torchtitan's own `--module` option takes it:

    make titan
    PYTHONPATH=.venv/torchtitan torchrun --nproc-per-node 4 -m torchtitan.train \\
        --module examples.torchtitan_llama3 --config debugmodel \\
        --hf_assets_path TOKENIZER --dataloader.dataset_path DATA \\
        --parallelism.tensor_parallel_degree 2

torchtitan 0.3.0 needs two things that PyTorch 2.13 has on no device or not on this one; see
docs/torchtitan.md. `Trainer` steps around the first, attention over packed sequences ("varlen")
around the second.
"""

from dataclasses import dataclass, fields

import torch
import torchtitan.trainer
from torchtitan.components.dataloader import DataloaderExhaustedError
from torchtitan.models import deepseek_v3, qwen3
from torchtitan.models.deepseek_v3.config_registry import deepseek_v3_debugmodel
from torchtitan.models.qwen3.config_registry import qwen3_moe_debug
from torchtitan.models.llama3.config_registry import (
    llama3_debugmodel_varlen_attn,
)


class Trainer(torchtitan.trainer.Trainer):
    """torchtitan's trainer with a loop that doesn't need `torch.distributed.set_timeout`.

    PyTorch 2.13 has no such function, and torchtitan's loop calls it after the first step on any
    device. Timeouts stay at `--comm.init_timeout_seconds` here.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(torchtitan.trainer.Trainer.Config):
        """Unchanged; it makes torchtitan build this trainer."""

    def train(self) -> None:
        """Load the checkpoint if there is one, then train, save and validate as configured."""
        if hasattr(torch.distributed, "set_timeout"):
            super().train()
            return
        config = self.config
        self.checkpointer.load(step=config.checkpoint.load_step)
        batches = self.batch_generator(self.dataloader)
        while self.should_continue_training():
            self.step += 1
            self.gc_handler.run(self.step)
            try:
                self.train_step(batches)
            except DataloaderExhaustedError:
                break
            self.checkpointer.save(self.step, last_step=self.step == config.training.steps)
            if config.validator.enable and self.validator.should_validate(self.step):
                self.validator.validate(self.model_parts, self.step)


def _ours(config: torchtitan.trainer.Trainer.Config) -> Trainer.Config:
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    return Trainer.Config(**values)


def debugmodel() -> Trainer.Config:
    """Return the Llama 3 debug model as torchtitan configures it with packed sequences."""
    return _ours(llama3_debugmodel_varlen_attn())


def qwen3_moe() -> Trainer.Config:
    """Return the Qwen 3 debug model with 64 experts, with packed sequences."""
    config = qwen3_moe_debug()
    config.model_spec = qwen3.model_registry("debugmodel_moe", attn_backend="varlen")
    return _ours(config)


def deepseek_v3_moe() -> Trainer.Config:
    """Return the DeepSeek V3 debug model, with packed sequences."""
    config = deepseek_v3_debugmodel()
    config.model_spec = deepseek_v3.model_registry("debugmodel", attn_backend="varlen")
    return _ours(config)
