"""Caches of keys that a compiled function updates: equal to eager mode, and not copied."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from neuronxcc.ir.calls import CHECK, NOTED
from neuronxcc.program.program import Program
from neuronxcc.program.steps.copy import CopyStep
from neuronxcc.program.steps.loop import LoopStep
from neuronxcc.program.steps.operator import AtenStep
from tests.compiler.dynamo_tools import assert_equal, check, watched

BATCH, HEADS, KEYS, WIDTH = 2, 3, 16, 4
Update = Callable[[Tensor, Tensor, Tensor], object]


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).to("neuron")


def whole_steps(program: Program, size: int) -> list[str]:
    """Steps that touch as many elements as the cache has; attention reads it where it is."""
    found = []
    for step in program.steps:
        if isinstance(step, LoopStep):
            if math.prod(dim.extent for dim in step.kernel.dims) >= size:
                found.append(step.kernel.name)
        elif isinstance(step, CopyStep):
            found.append("copy")
        elif isinstance(step, AtenStep) and not _reads_where_it_is(step):
            found.append(step.target)
    return found


def _reads_where_it_is(step: AtenStep) -> bool:
    # A check reads the positions, not the cache.
    return step.target in {CHECK, NOTED} or "attention" in step.target


def assign(cache: Tensor, index: Any, value: Tensor) -> None:
    cache[index] = value


def strided(cache: Tensor, position: Tensor, new: Tensor) -> None:
    part = cache[:, :, ::2]
    part.index_copy_(2, position // 2, new)
    part[:, 1].add_(1.0)


ALL = slice(None)
UPDATES: dict[str, Update] = {
    "index_copy": lambda c, p, k: c.index_copy_(2, p, k),
    "index_put": lambda c, p, k: assign(c, (ALL, ALL, p), k),
    "index_put negative": lambda c, p, k: assign(c, (ALL, ALL, p - 9), k),
    "slice": lambda c, _, k: assign(c, (ALL, ALL, slice(4, 5)), k),
    "slice negative": lambda c, _, k: assign(c, (ALL, ALL, slice(-3, -2)), k),
    "slice with steps": lambda c, _, k: assign(c, (ALL, ALL, slice(1, 14, 6)), k),
    "known places": lambda c, _, k: assign(c, (ALL, ALL, torch.arange(3, device=c.device)), k),
    "copy": lambda c, _, k: c[:, :, 3].copy_(k[:, :, 0]),
    "scatter": lambda c, p, k: c.scatter_(2, p.view(1, 1, 1, 1).expand(k.shape), k),
    "select_scatter": lambda c, _, k: c.copy_(torch.select_scatter(c, k[:, :, 0], 2, 3)),
    "slice_scatter": lambda c, _, k: c.copy_(torch.slice_scatter(c, k, 2, 3, 4)),
    "index_fill": lambda c, p, _: c.index_fill_(2, p, 2.0),
    "index_add": lambda c, p, k: c.index_add_(2, p, k),
    "add to a slice": lambda c, _, k: c[:, :, 3:5].add_(k),
    "add to rows": lambda c, p, k: assign(c, (ALL, ALL, p), c[:, :, p] + k),
    "from the row before": lambda c, p, k: assign(c, (ALL, ALL, p), c[:, :, p - 1] * 0.5 + k),
    "transposed": lambda c, p, k: assign(c.transpose(1, 2), (ALL, p), k.transpose(1, 2)),
    "one head": lambda c, p, k: c[1, 2].index_copy_(0, p, k[1, 2]),
    "slices of slices": lambda c, _, k: assign(c[0][1], slice(4, 6), k[0, 0]),
    "flat": lambda c, _, k: assign(c.view(BATCH, HEADS, -1), (..., slice(8, 12)), k[:, :, 0]),
    "two parts": lambda c, p, k: [part.index_copy_(1, p, k[0]) for part in c.unbind()],
    "two rows": lambda c, p, k: (c.index_copy_(2, p, k), c.index_copy_(2, p + 1, k)),
    "one row twice": lambda c, p, k: (c.index_copy_(2, p, k), c.index_add_(2, p, k)),
    "a slice with steps": strided,
}


@pytest.mark.parametrize("name", UPDATES)
def test_an_update_writes_its_rows_and_nothing_else(name: str) -> None:
    def function(cache: Tensor, position: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
        before = cache[:, :, 7].sum(-1)  # read before the update
        UPDATES[name](cache, position, new)
        mixed = functional.scaled_dot_product_attention(new, cache, cache)
        cache.index_copy_(2, position - 2, mixed)  # and again, after a reader
        return before, mixed + cache[:, :, 2:3]

    cache = random(BATCH, HEADS, KEYS, WIDTH)
    args = [cache, torch.tensor([5], device="neuron"), random(BATCH, HEADS, 1, WIDTH)]
    (graph,) = check(function, args)
    assert whole_steps(graph.executable.program, cache.numel() // 2) == []


def test_the_layout_of_an_argument_does_not_matter() -> None:
    def function(cache: Tensor, position: Tensor, new: Tensor) -> Tensor:
        cache[1].index_copy_(1, position, new)
        cache[0].index_copy_(1, position + 1, new)
        return cache[:, :, 5]

    cache = random(BATCH, KEYS, HEADS, WIDTH).transpose(1, 2)
    args = [cache, torch.tensor([5], device="neuron"), random(HEADS, 1, WIDTH)]
    (graph,) = check(function, args)
    assert whole_steps(graph.executable.program, cache.numel() // 2) == []


def test_the_old_content_as_a_result_is_copied_once() -> None:
    def function(cache: Tensor, position: Tensor, new: Tensor) -> Tensor:
        old = cache.clone()
        cache.index_copy_(2, position, new)
        return old

    cache = random(BATCH, HEADS, KEYS, WIDTH)
    args = [cache, torch.tensor([5], device="neuron"), random(BATCH, HEADS, 1, WIDTH)]
    (graph,) = check(function, args)
    assert whole_steps(graph.executable.program, cache.numel()) == ["loop_copy"]


def test_rows_that_change_places_are_read_before_they_are_written() -> None:
    def function(cache: Tensor, order: Tensor) -> None:
        cache[order] = cache.clone()
        cache[:, 1] = cache[:, 0] + cache[:, 1]

    check(function, [random(512, 3, 16), torch.arange(511, -1, -1, device="neuron")])


def test_heads_shared_by_attention_are_not_repeated() -> None:
    def function(query: Tensor, cache: Tensor) -> Tensor:
        spread = cache[:, :, :, None].expand(2, 2, 2, 3, KEYS, WIDTH)
        keys, values = spread.reshape(2, 2, 6, KEYS, WIDTH)
        return functional.scaled_dot_product_attention(query, keys, values)

    def apart(query: Tensor, cache: Tensor) -> Tensor:
        keys, values = (
            x[:, :, None].expand(2, 2, 3, KEYS, WIDTH).reshape(2, 6, KEYS, WIDTH) for x in cache
        )
        return functional.scaled_dot_product_attention(query, keys, values)

    args = [random(2, 6, 1, WIDTH), random(2, 2, 2, KEYS, WIDTH)]
    check(function, args)  # its keys are not a repetition that is recognised, but right
    (graph,) = check(apart, args)
    assert whole_steps(graph.executable.program, 2 * 6 * KEYS * WIDTH) == []


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel  # noqa: PLC0415 - seconds to import

    config = GPT2Config(n_layer=2, n_embd=32, n_head=4, vocab_size=64, bos_token_id=0,
                        eos_token_id=0)  # fmt: skip
    return GPT2LMHeadModel(config)


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415

    config = LlamaConfig(num_hidden_layers=2, hidden_size=32, intermediate_size=48, vocab_size=64,
                         num_attention_heads=4, num_key_value_heads=2)  # fmt: skip
    return LlamaForCausalLM(config)


@pytest.mark.slow
@pytest.mark.parametrize("make", [gpt2, llama])
def test_one_token_of_a_model_with_a_static_cache(make: Callable[[], Any]) -> None:
    from transformers import StaticCache  # noqa: PLC0415

    torch.manual_seed(0)
    torch.compiler.reset()
    model = make().eval().to("neuron")

    def step(ids: Tensor, position: Tensor, cache: Any) -> Tensor:
        logits: Tensor = model(ids, past_key_values=cache, use_cache=True,
                               cache_position=position).logits  # fmt: skip
        return logits

    compiled = torch.compile(step, backend="neuron", fullgraph=True)
    results: list[list[Any]] = []
    with torch.no_grad(), watched() as graphs:
        for function in (step, compiled):
            cache: Any = StaticCache(config=model.config, max_cache_len=64)
            prompt = torch.arange(6, device="neuron").view(2, 3)
            step(prompt, torch.arange(3, device="neuron"), cache)
            for place in (3, 4):
                ids = torch.tensor([[place], [9]], device="neuron")
                logits = function(ids, torch.tensor([place], device="neuron"), cache)
            layers = [x for layer in cache.layers for x in (layer.keys, layer.values)]
            results.append([logits, *layers])
    for got, wanted in zip(reversed(results[1]), reversed(results[0]), strict=True):
        assert_equal(got, wanted)
    (graph,) = graphs
    assert whole_steps(graph.executable.program, results[0][1].numel()) == []
