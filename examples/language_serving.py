"""Eight requests for one language model at a time, over a paged cache of keys and values.

    python -m examples.language_serving

The model is a small Llama with random weights. All prompts begin alike, so their first blocks are
computed once. The steps of the model are eager, then compiled. Each text is compared with what
transformers' `generate` writes for it alone.
"""

from __future__ import annotations

import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from torch_neuronx.serving import Engine, Options, Sampling

REQUESTS, BEGINNING, NEW = 8, 64, 24


def main() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1000, hidden_size=256, intermediate_size=512, num_hidden_layers=4,
        num_attention_heads=8, num_key_value_heads=4,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval().to("neuron")
    beginning = torch.randint(1000, (BEGINNING,)).tolist()
    prompts = [beginning + torch.randint(1000, (5 + i,)).tolist() for i in range(REQUESTS)]

    texts, together = {}, {}
    for how in ("eager", "compiled"):
        options = Options(blocks=64, block_size=16, requests=8, compiled=how == "compiled")
        engine = Engine(model, options)
        for size in engine.compile():
            print(f"compiled the step of {size}")
        with engine:
            list(engine.submit(prompts[0], Sampling(max_tokens=NEW)))  # the first call of each kind
            start = time.perf_counter()
            requests = [engine.submit(prompt, Sampling(max_tokens=NEW)) for prompt in prompts]
            texts[how] = [list(request) for request in requests]
            together[how] = time.perf_counter() - start
        shared = sum(request.shared for request in requests)

    start = time.perf_counter()
    alone = []
    for prompt in prompts:
        ids = torch.tensor([prompt], device="neuron")
        mask = torch.ones_like(ids)
        out = model.generate(
            ids, attention_mask=mask, max_new_tokens=NEW, do_sample=False, eos_token_id=None,
            pad_token_id=0,
        )  # fmt: skip
        alone.append(out[0, len(prompt) :].tolist())
    one_by_one = time.perf_counter() - start

    print(f"{REQUESTS} requests, {NEW} tokens each; {shared} tokens of prompts were shared")
    for how, took in together.items():
        print(f"together, {how}: {took:.2f} s; equal to generate(): {texts[how] == alone}")
    print(f"generate() for one after the other: {one_by_one:.2f} s")


if __name__ == "__main__":
    main()
