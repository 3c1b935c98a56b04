"""The functions that are compiled, in PyTorch, on tensors of any device.

Every maker takes a device and returns a Case: the caller compiles its function and times `call`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks import models

SIZE = 4096
PARAMETERS, ELEMENTS = 50, 1_000_000
CACHE = 256  # keys of the static cache of the decoding step
HEADS, LAYERS, WIDTH = 12, 12, 768

Function = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """`function` is compiled; a step is one call of `call(compiled)`."""

    function: Function
    call: Callable[[Function], object]


def _random(device: torch.device, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).to(device, dtype)


def inference(function: Function, *args: Any) -> Case:
    """A case that calls the function with these arguments, without gradients."""

    def call(compiled: Function) -> object:
        with torch.no_grad():
            return compiled(*args)

    return Case(function, call)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Written out, as the models of transformers do."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def gelu_tanh(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


def gelu(device: torch.device, dtype: torch.dtype = torch.float32) -> Case:
    return inference(gelu_tanh, _random(device, SIZE, SIZE, dtype=dtype))


def norm(device: torch.device) -> Case:
    return inference(rms_norm, _random(device, SIZE, SIZE), _random(device, SIZE))


def layer_norm(device: torch.device) -> Case:
    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.layer_norm(x, (SIZE,), weight, bias)

    return inference(
        function, _random(device, SIZE, SIZE), _random(device, SIZE), _random(device, SIZE)
    )


def softmax(device: torch.device) -> Case:
    return inference(partial(torch.softmax, dim=-1), _random(device, SIZE, SIZE))


def adamw(device: torch.device) -> Case:
    """A whole optimizer step; `torch.optim`'s default settings apart from `capturable`."""
    parameters = [nn.Parameter(torch.zeros(ELEMENTS, device=device)) for _ in range(PARAMETERS)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.AdamW(parameters)
    return Case(optimizer.step, lambda compiled: compiled())


def gpt2_model(device: torch.device, dtype: torch.dtype, **settings: Any) -> nn.Module:
    """GPT-2 small with its head, random weights from seed 0; `settings` are the config's."""
    from transformers import GPT2Config, GPT2LMHeadModel  # noqa: PLC0415 - seconds to import

    torch.manual_seed(0)
    config = GPT2Config(use_cache=False, **settings)
    model: nn.Module = GPT2LMHeadModel(config).eval().to(device, dtype)
    return model


def gpt2(device: torch.device, batch: int, tokens: int, dtype: torch.dtype) -> Case:
    model = gpt2_model(device, dtype)
    ids = (torch.arange(batch * tokens) * 7 % 50257).view(batch, tokens).to(device)

    def function(ids: Tensor) -> Tensor:
        logits: Tensor = model(ids, use_cache=False).logits
        return logits

    return inference(function, ids)


class Decoder(nn.Module):
    """GPT-2 small for one token per sequence; a static cache of keys is updated in place."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.wte = nn.Embedding(50257, WIDTH)
        self.wpe = nn.Embedding(1024, WIDTH)
        self.layers = nn.ModuleList(models.Block(WIDTH, HEADS) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        shape = (LAYERS, 2, batch, HEADS, CACHE, WIDTH // HEADS)
        self.register_buffer("cache", torch.zeros(shape))
        self.cache: Tensor

    def forward(self, ids: Tensor, position: Tensor) -> Tensor:
        """Token ids [batch, 1], position [1] -> logits [batch, vocabulary]."""
        x = self.wte(ids) + self.wpe(position)
        seen = (torch.arange(CACHE, device=ids.device) <= position).view(1, 1, 1, CACHE)
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, models.Block)
            qkv = layer.qkv(layer.norm1(x)).view(-1, 1, 3, HEADS, WIDTH // HEADS)
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            keys, values = self.cache[index]
            keys.index_copy_(2, position, k)
            values.index_copy_(2, position, v)
            mixed = functional.scaled_dot_product_attention(q, keys, values, attn_mask=seen)
            x = x + layer.proj(mixed.transpose(1, 2).reshape(x.shape))
            x = x + layer.down(functional.gelu(layer.up(layer.norm2(x)), approximate="tanh"))
        return functional.linear(self.norm(x)[:, 0], self.wte.weight)


def decode(device: torch.device, batch: int, dtype: torch.dtype) -> Case:
    torch.manual_seed(0)
    model = Decoder(batch).eval().to(device, dtype)
    ids = torch.arange(batch, device=device).view(batch, 1)
    return inference(model, ids, torch.tensor([CACHE // 2], device=device))


def training(device: torch.device) -> Case:
    """Forward, loss and backward compiled, the optimizer's step in the same function."""
    torch.manual_seed(0)
    model = models.Transformer().to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(256, (8, 257), generator=torch.Generator().manual_seed(0)).to(device)

    def loss_of(ids: Tensor) -> Tensor:
        logits = model(ids[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    def call(compiled: Function) -> object:
        loss = compiled(ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return Case(loss_of, call)


def resnet(device: torch.device) -> Case:
    torch.manual_seed(0)
    model = models.resnet18().eval().to(device)
    return inference(model, _random(device, 8, 3, 224, 224))


def minilm(device: torch.device) -> Case:
    """The real MiniLM weights, 32 sentences of 64 tokens."""
    from transformers import AutoModel  # noqa: PLC0415 - seconds to import

    from examples.minilm import model_folder  # noqa: PLC0415 - imports transformers, too

    model = AutoModel.from_pretrained(model_folder()).eval().to(device)
    ids = (torch.arange(32 * 64) * 31 % 29000 + 999).view(32, 64).to(device)
    mask = torch.ones_like(ids)

    def function(ids: Tensor, mask: Tensor) -> Tensor:
        hidden: Tensor = model(input_ids=ids, attention_mask=mask)[0]
        return hidden

    return inference(function, ids, mask)


def tiny(device: torch.device) -> Case:
    """For the cost of a call: one addition and one multiplication of 16 elements."""
    return inference(lambda x, y: (x + y) * y, _random(device, 16), _random(device, 16))
