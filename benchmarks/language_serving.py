"""Tokens per second of the engine, against transformers' `generate` in the same run.

    python -m benchmarks.language_serving
    python -m benchmarks.language_serving --dtype bfloat16 --counts 8
    python -m benchmarks.language_serving --steps 30    # single steps of the engine, in turns

For 1, 4, 8 and 16 requests (GPT-2's shape, random weights, greedy): the engine; the engine with
compiled steps; `generate` for one request after the other; `generate` for all at once, padded to
the longest prompt, which a server can only do if all requests are there at the beginning. Each is
repeated, in turns, and the median taken. Tokens are compared: the engine must give those of one
after the other. Programs are compiled before, and what that takes is printed.

Times are the host's. What a trn2 would take for one step is estimated beside them, by bytes and
flops, for `generate`'s form of the step: one token of each sequence against keys and values of
the same length in one tensor. It is another quantity, and printed as such.
"""

from __future__ import annotations

import argparse
import copy
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


def engine(made: Engine, texts: list[list[int]]) -> list[Request]:
    """All requests at once, without shared prefixes."""
    requests = [made.submit(text, Sampling(max_tokens=NEW)) for text in texts]
    while made.step():
        pass
    return requests


def single_steps(engines: dict[str, Engine], count: int, steps: int) -> None:
    """Milliseconds of steps in which every request has one token."""
    took: dict[str, list[float]] = {name: [] for name in engines}
    for made in engines.values():
        requests = [made.submit(text, Sampling(max_tokens=steps + 2)) for text in prompts(count)]
        while not all(request.output for request in requests):
            made.step()
    for _ in range(steps):
        for name, made in engines.items():
            took[name].append(seconds(made.step)[0] * 1e3)
    for made in engines.values():
        while made.step():
            pass
    for name, values in took.items():
        median = statistics.median(values)
        print(f"{count:3} requests, {name:8}: a step {min(values):.1f} ms, median {median:.1f} ms")


def started(model: Any, *, compiled: bool) -> Engine:
    """An engine of its own for a model with the same weights."""
    shared = {id(p): p for p in model.parameters()}
    options = Options(blocks=16 * 8, requests=16, share_prefixes=False, compiled=compiled)
    made = Engine(copy.deepcopy(model, shared), options)
    start = time.perf_counter()
    for size in made.compile():
        print(f"compiled the step of {size}, {time.perf_counter() - start:.1f} s")
    engine(made, prompts(1))
    return made


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
    parser.add_argument("--steps", type=int, default=0, help="time so many steps, and nothing else")
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype)
    torch.manual_seed(0)
    config = GPT2Config(n_layer=options.layers)
    model: Any = torch.nn.Module.to(GPT2LMHeadModel(config), "neuron", dtype).eval()
    model.generation_config.eos_token_id = None
    print(f"GPT-2, {options.layers} layers, {options.dtype}, prompts to {PROMPT}, {NEW} new tokens")
    one_by_one(model, prompts(1))
    engines = {
        "engine": started(model, compiled=False),
        "compiled": started(model, compiled=True),
    }
    for count in options.counts:
        if options.steps:
            single_steps(engines, count, options.steps)
            continue
        texts = prompts(count)
        times: dict[str, list[float]] = {name: [] for name in (*engines, "one by one", "padded")}
        answers: dict[str, list[Request]] = {}
        for _ in range(options.repeats):
            for name, made in engines.items():
                took, answers[name] = seconds(partial(engine, made, texts))
                times[name].append(took)
            took, single = seconds(partial(one_by_one, model, texts))
            times["one by one"].append(took)
            took, _ = seconds(partial(generated, model, texts))
            times["padded"].append(took)
        rate = {name: count * NEW / statistics.median(took) for name, took in times.items()}
        print(
            f"{count:3} requests, tokens/s: generate one by one {rate['one by one']:6.1f}, "
            f"padded {rate['padded']:7.1f}"
        )
        for name, requests in answers.items():
            same = sum(r.output == s for r, s in zip(requests, single, strict=True))
            pairs = [seconds_per_token(request) for request in requests]
            first, rest = (statistics.median(p[i] for p in pairs) * 1e3 for i in (0, 1))
            print(
                f"    {name:8} {rate[name]:7.1f} ({rate[name] / rate['one by one']:.2f} x one by "
                f"one, {rate[name] / rate['padded']:.2f} x padded); {same} of {count} texts equal; "
                f"on this host the first token after {first:.1f} ms, the next {rest:.1f} ms"
            )
        prompt, step = predicted(config, dtype, count)
        print(f"    predicted for trn2: a prompt {prompt:.2f} ms, a step {step:.2f} ms")


if __name__ == "__main__":
    main()
