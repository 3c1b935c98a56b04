"""Small models with random weights, and what unbatched greedy decoding makes of a prompt."""

from __future__ import annotations

import functools

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
)

VOCABULARY = 211
LONGEST = 192


def llama() -> PreTrainedModel:
    """Rotary positions, key heads that are shared."""
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=48, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=6, num_key_value_heads=2, max_position_embeddings=LONGEST,
    )  # fmt: skip
    return _made(LlamaForCausalLM, config)


def gpt2() -> PreTrainedModel:
    """Learned positions, a key head for each head."""
    config = GPT2Config(
        vocab_size=VOCABULARY, n_embd=48, n_layer=2, n_head=4, n_positions=LONGEST,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return _made(GPT2LMHeadModel, config)


MODELS = {"llama": llama, "gpt2": gpt2}


def _made(kind: type[PreTrainedModel], config: PreTrainedConfig) -> PreTrainedModel:
    torch.manual_seed(0)
    model: PreTrainedModel = kind(config).eval()
    # Larger weights than those of an untrained model, so that texts do not repeat one token.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
    return model


@functools.cache
def on_neuron(name: str) -> PreTrainedModel:
    model = MODELS[name]()
    # transformers wraps `to`, and mypy loses what it takes.
    torch.nn.Module.to(model, "neuron")
    return model


@functools.cache
def _on_cpu(name: str) -> PreTrainedModel:
    return MODELS[name]()


@functools.cache
def _next(name: str, tokens: tuple[int, ...]) -> int:
    with torch.no_grad():
        return int(_on_cpu(name)(torch.tensor([tokens])).logits[0, -1].argmax())


def greedy(name: str, prompt: tuple[int, ...], count: int) -> list[int]:
    """Each token from all tokens before it by the model on the CPU, without any cache."""
    tokens = tuple(prompt)
    for _ in range(count):
        tokens += (_next(name, tokens),)
    return list(tokens[len(prompt) :])
