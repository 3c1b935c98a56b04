"""Tokens per second of the engine, against transformers' `generate` in the same run.

    python -m benchmarks.language_serving
    python -m benchmarks.language_serving --dtype bfloat16 --counts 8

For 1, 4, 8 and 16 requests (GPT-2's shape, random weights, greedy): the engine; `generate` for one
request after the other; `generate` for all at once, padded to the longest prompt, which a server
can only do if all requests are there at the beginning. Each is repeated, in turns, and the median
taken. Tokens are compared: the engine must give those of one after the other.

Times are the host's. What a trn2 would take for one step is estimated beside them, by bytes and
flops, for `generate`'s form of the step: one token of each sequence against keys and values of
the same length in one tensor. It is another quantity, and printed as such.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import torch_neuronx
from torch_neuronx.serving import Engine, Options, Request, Sampling
from torch_neuronx.serving.engine import seconds_per_token

PROMPT, NEW = 64, 32


def prompts(count: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(count)
    lengths = [PROMPT - 4 * (i % 4) for i in range(count)]
    return [torch.randint(1, 50257, (n,), generator=generator).tolist() for n in lengths]


def engine(model: Any, texts: list[list[int]]) -> list[Request]:
    """All requests at once, without shared prefixes. The cache is made within the time."""
    made = Engine(model, Options(blocks=16 * 8, requests=16, share_prefixes=False))
    requests = [made.submit(text, Sampling(max_tokens=NEW)) for text in texts]
    while made.step():
        pass
    made.close()
    return requests


def one_by_one(model: Any, texts: list[list[int]]) -> list[list[int]]:
    return [generated(model, [text])[0] for text in texts]


def generated(model: Any, texts: list[list[int]]) -> list[list[int]]:
    longest = max(map(len, texts))
    tokens = torch.tensor([[0] * (longest - len(t)) + t for t in texts])
    mask = torch.tensor([[0] * (longest - len(t)) + [1] * len(t) for t in texts])
    out = model.generate(
        tokens.to(model.device), attention_mask=mask.to(model.device), do_sample=False,
        min_new_tokens=NEW, max_new_tokens=NEW, pad_token_id=0,
    )  # fmt: skip
    return [row[longest:].tolist() for row in out]


def seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = call()
    torch.accelerator.synchronize()
    return time.perf_counter() - start, result


def predicted(config: GPT2Config, dtype: torch.dtype, count: int) -> tuple[float, float]:
    """Milliseconds on trn2: a prompt's forward, and a step of `count` sequences."""
    with torch.device("meta"):
        model: Any = torch.nn.Module.to(GPT2LMHeadModel(config), dtype).eval()
    first = torch_neuronx.estimate(
        model,
        torch.zeros(1, PROMPT, dtype=torch.int64),
        target="trn2",
        kwargs={"logits_to_keep": 1},
    )
    tokens = torch.zeros(count, 1, dtype=torch.int64)
    shape = (count, config.n_head, PROMPT + NEW // 2, config.n_embd // config.n_head)
    pairs = [torch.zeros(shape, dtype=dtype) for _ in range(2 * config.n_layer)]
    step = torch_neuronx.estimate(Step(model), tokens, *pairs, target="trn2")
    return first.step_us / 1e3, step.step_us / 1e3


class Step(torch.nn.Module):
    """One token of each sequence, with earlier keys and values given."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor, *pairs: torch.Tensor) -> torch.Tensor:
        from transformers import DynamicCache  # noqa: PLC0415 - as in the model's own code

        cache: Any = DynamicCache(zip(pairs[::2], pairs[1::2], strict=True))
        out: torch.Tensor = self.model(tokens, past_key_values=cache).logits
        return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--layers", type=int, default=12)
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype)
    torch.manual_seed(0)
    config = GPT2Config(n_layer=options.layers)
    model: Any = torch.nn.Module.to(GPT2LMHeadModel(config), "neuron", dtype).eval()
    model.generation_config.eos_token_id = None
    print(f"GPT-2, {options.layers} layers, {options.dtype}, prompts to {PROMPT}, {NEW} new tokens")
    one_by_one(model, prompts(1))
    engine(model, prompts(1))
    for count in options.counts:
        texts = prompts(count)
        times: dict[str, list[float]] = {"engine": [], "one by one": [], "padded": []}
        for _ in range(options.repeats):
            took, requests = seconds(partial(engine, model, texts))
            times["engine"].append(took)
            took, single = seconds(partial(one_by_one, model, texts))
            times["one by one"].append(took)
            took, _ = seconds(partial(generated, model, texts))
            times["padded"].append(took)
        same = sum(r.output == s for r, s in zip(requests, single, strict=True))
        rate = {name: count * NEW / statistics.median(took) for name, took in times.items()}
        pairs = [seconds_per_token(request) for request in requests]
        first, rest = (statistics.median(p[i] for p in pairs) * 1e3 for i in (0, 1))
        print(
            f"{count:3} requests, tokens/s: engine {rate['engine']:7.1f}, "
            f"generate one by one {rate['one by one']:6.1f} "
            f"(engine {rate['engine'] / rate['one by one']:.2f} x), "
            f"generate padded {rate['padded']:7.1f} ({rate['engine'] / rate['padded']:.2f} x); "
            f"{same} of {count} texts equal"
        )
        print(f"    measured on this host: first token {first:.1f} ms, next {rest:.1f} ms")
        prompt, step = predicted(config, dtype, count)
        print(f"    predicted for trn2:    a prompt {prompt:.2f} ms, a step {step:.2f} ms")


if __name__ == "__main__":
    main()
