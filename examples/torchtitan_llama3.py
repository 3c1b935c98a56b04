r"""torchtitan's debug models on neuron devices with PyTorch 2.13, without a change to torchtitan.

This is a module of configurations as torchtitan's own `--module` option takes it:

    make titan
    PYTHONPATH=.venv/torchtitan torchrun --nproc-per-node 4 -m torchtitan.train \
        --module examples.torchtitan_llama3 --config debugmodel \
        --hf_assets_path TOKENIZER --dataloader.dataset_path DATA \
        --parallelism.tensor_parallel_degree 2

docs/torchtitan.md says what PyTorch 2.13 lacks of what torchtitan 0.3.0 needs, and what this does
instead: its own loop, attention over packed sequences ("varlen"), and DTensors for the axes of
model parallelism.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
import torchtitan.trainer
from torchtitan.components.dataloader import DataloaderExhaustedError
from torchtitan.models import deepseek_v3, qwen3
from torchtitan.models.deepseek_v3.config_registry import deepseek_v3_debugmodel
from torchtitan.models.llama3.config_registry import (
    llama3_debugmodel_varlen_attn,
)
from torchtitan.models.qwen3.config_registry import qwen3_moe_debug


class Microbatches:
    """A pipeline schedule whose `step` takes microbatches, as later releases of PyTorch have it.

    That of 2.13 takes whole batches and can't cut the bounds of packed sequences.
    """

    def __init__(self, schedule: Any) -> None:
        self._schedule = schedule

    def __getattr__(self, name: str) -> Any:
        return getattr(self._schedule, name)

    def step(
        self,
        *,
        arg_mbs: list[Any] | None,
        kwarg_mbs: list[Any],
        target_mbs: list[Any] | None,
        losses: list[torch.Tensor] | None,
        loss_kwargs: dict[str, Any],
        return_outputs: bool,
    ) -> None:
        """Run forward and backward of all microbatches; `losses` gets one each."""
        schedule = self._schedule
        stages = getattr(schedule, "_stages", None) or [schedule._stage]  # noqa: SLF001
        for stage in stages:
            stage.has_backward = True
            stage.clear_runtime_states()
        arguments = arg_mbs or [()] * len(kwarg_mbs)
        schedule._step_microbatches(  # noqa: SLF001
            arguments, kwarg_mbs, target_mbs, losses, return_outputs, loss_kwargs
        )


class Trainer(torchtitan.trainer.Trainer):  # type: ignore[misc]
    """torchtitan's trainer without what PyTorch 2.13 doesn't have.

    That is `torch.distributed.set_timeout`, which torchtitan's loop calls after the first step on
    any device (timeouts stay at `--comm.init_timeout_seconds` here), and pipeline schedules that
    take microbatches.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(torchtitan.trainer.Trainer.Config):  # type: ignore[misc]
        """Unchanged; it makes torchtitan build this trainer."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if self.parallel_dims.pp_enabled:
            self.pp_schedule: Any = Microbatches(self.pp_schedule)

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
    # The default, "spmd_types", wants `fully_shard` to take plain tensors on a mesh of all axes.
    parallelism = replace(config.parallelism, spmd_backend="partial_dtensor")
    return Trainer.Config(**{**values, "parallelism": parallelism})


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
