r"""torchtitan's Llama 3 debug model on neuron devices, without a change to torchtitan.

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

from copy import deepcopy
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
import torchtitan.trainer
from torchtitan.components.dataloader import DataloaderExhaustedError
from torchtitan.components.quantization import Float8LinearConverter
from torchtitan.models import llama3
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3.config_registry import (
    llama3_debugmodel,
    llama3_debugmodel_varlen_attn,
)


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
        loss_kwargs: dict[str, Any] | None = None,
        return_outputs: bool = False,
    ) -> None:
        """Run forward and backward of all microbatches; `losses` gets one each."""
        schedule = self._schedule
        stages = getattr(schedule, "_stages", None) or [schedule._stage]  # noqa: SLF001
        for stage in stages:
            stage.has_backward = schedule._has_backward  # noqa: SLF001
            stage.clear_runtime_states()
        arguments = arg_mbs or [()] * len(kwarg_mbs)
        schedule._step_microbatches(  # noqa: SLF001
            arguments, kwarg_mbs, target_mbs, losses, return_outputs, loss_kwargs
        )

    def eval(self, **microbatches: Any) -> None:
        """Run the forward of all microbatches, as the validator asks."""
        schedule = self._schedule
        trains = schedule._has_backward  # noqa: SLF001
        schedule._has_backward = False  # noqa: SLF001
        try:
            self.step(**microbatches)
        finally:
            schedule._has_backward = trains  # noqa: SLF001


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
            if config.validator.enable:
                self.validator.pp_schedule = self.pp_schedule

    def train(self) -> None:
        """Load the checkpoint if there is one, then train, save and validate as configured."""
        if hasattr(torch.distributed, "set_timeout"):
            super().train()
            return
        config = self.config
        self.checkpointer.load(step=config.checkpoint.load_step)
        batches = self.batch_generator(self.dataloader)
        profiling = config.profiler.build(global_step=self.step, base_folder=config.dump_folder)
        with profiling as profiler:
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
                profiler.step()


def for_neuron(config: torchtitan.trainer.Trainer.Config) -> Trainer.Config:
    """Return a configuration of torchtitan's for the trainer above, with DTensors."""
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    # The default, "spmd_types", wants `fully_shard` to take plain tensors on a mesh of all axes.
    parallelism = replace(config.parallelism, spmd_backend="partial_dtensor")
    return Trainer.Config(**{**values, "parallelism": parallelism})


def debugmodel() -> Trainer.Config:
    """Return the Llama 3 debug model as torchtitan configures it with packed sequences."""
    return for_neuron(llama3_debugmodel_varlen_attn())


def debugmodel_sdpa() -> Trainer.Config:
    """Return the same with attention over whole sequences, which context parallelism can split.

    Documents that share a sequence then see each other, so use it where each sequence is one.
    """
    config = debugmodel()
    config.model_spec = replace(config.model_spec, model=deepcopy(config.model_spec.model))
    for layer in config.model_spec.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    return config


def debugmodel_float8() -> Trainer.Config:
    """Return the same with torchao's float8 in the matrix products of the layers.

    torchtitan asks for compute capability 8.9 of CUDA unless products are "emulated": operands are
    rounded to float8 and multiplied in bfloat16.
    """
    config = debugmodel()
    converters = [Float8LinearConverter.Config(filter_fqns=["lm_head"], emulate=True)]
    config.model_spec = llama3.model_registry(
        "debugmodel", attn_backend="varlen", converters=converters
    )
    return config


def debugmodel_flex() -> Trainer.Config:
    """Return the debug model as it is, with FlexAttention."""
    return for_neuron(llama3_debugmodel())
