"""A Llama of 1.24 billion parameters in bfloat16: generation, LoRA, and FSDP2 on four cores.

    python -m benchmarks.llama_1b [--only PART] [--layers 16] [--vocabulary 128256]

Sizes are those of Llama 3.2 1B, weights are random. Every part runs in a process of its own, so
that the memory at its peak is that part's: resident, host memory and the emulated cores' together.

- generate: 32 tokens after a prompt of 32, one sequence, with a static cache, a token a call. On
  `cpu` and on the device, eager and compiled (`--inductor` adds PyTorch's own compiler on `cpu`),
  alternately; tokens per second are of the fastest of `--repeats` passes over 16 tokens. Both
  devices pick the same tokens, or the line says where they part.
- lora: peft, rank 8 on the attention's four projections, batch 1 of 128 tokens, AdamW.
- fsdp: fully_shard on each layer, four ranks of one core each, batch 1 of 128 tokens a rank, AdamW.
- fsdp_lora: the same, but adapters of rank 8 are trained and the weights are frozen.

Exit code: 0 when all parts ended, 1 otherwise. It judges nothing by itself.
"""

from __future__ import annotations

import argparse
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import fully_shard
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

from benchmarks import ranks
from torch_neuronx import _C

GIB = 2**30
PROMPT, NEW, TIMED, TRAINED = 32, 32, 16, 128
RANKS = 4


def config(asked: argparse.Namespace) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=asked.vocabulary,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=asked.layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )


def loaded(asked: argparse.Namespace, device: str) -> Any:
    """The model, made on the device."""
    start = time.perf_counter()
    torch.manual_seed(0)
    with torch.device(device):
        model = LlamaForCausalLM._from_config(config(asked), dtype=torch.bfloat16)  # noqa: SLF001
    count = sum(p.numel() for p in model.parameters()) / 1e9
    print(f"{device}: {count:.2f} G parameters made in {time.perf_counter() - start:.1f} s")
    return model.eval()


def peak() -> str:
    kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return f"{kib * 1024 / GIB:.2f} GiB resident at the peak"


class Decoder:
    """Greedy decoding with a static cache, a token a call."""

    def __init__(self, model: Any, name: str, compile_: Callable[[Any], Any] | None) -> None:
        self.model, self.name = model, name
        self.device = next(model.parameters()).device
        self.cache = StaticCache(config=model.config, max_cache_len=PROMPT + NEW)
        self.step = compile_(self.token) if compile_ else self.token
        self.seconds: list[float] = []

    def token(self, ids: Tensor, position: Tensor) -> Tensor:
        out = self.model(
            input_ids=ids,
            position_ids=position[None],
            past_key_values=self.cache,
            use_cache=True,
        )
        return out.logits[:, -1].argmax(-1, keepdim=True)  # type: ignore[no-any-return]

    @torch.no_grad()
    def decode(self, prompt: Tensor, count: int) -> list[int]:
        self.cache.reset()
        ids = prompt.to(self.device)
        next_ = self.token(ids, torch.arange(PROMPT, device=self.device))
        tokens = [next_]
        start = time.perf_counter()
        for index in range(count):
            next_ = self.step(next_, torch.tensor([PROMPT + index], device=self.device))
            tokens.append(next_)
        found = [int(t) for t in tokens]  # waits for the device
        self.seconds.append((time.perf_counter() - start) / count)
        return found


def generate(asked: argparse.Namespace) -> None:
    prompt = torch.randint(
        asked.vocabulary, (1, PROMPT), generator=torch.Generator().manual_seed(1)
    )
    here = loaded(asked, "neuron")
    with torch.device("meta"):
        there: Any = LlamaForCausalLM._from_config(here.config, dtype=torch.bfloat16)  # noqa: SLF001
    there.load_state_dict({k: v.cpu() for k, v in here.state_dict().items()}, assign=True)
    there.tie_weights()
    there.model.rotary_emb = type(there.model.rotary_emb)(here.config)  # its buffer is no weight
    there.eval()
    decoders = [
        Decoder(there, "cpu, eager", None),
        Decoder(here, "neuron, eager", None),
        Decoder(here, "neuron, compiled", lambda f: torch.compile(f, backend="neuron")),
    ]
    if asked.inductor:
        decoders.insert(1, Decoder(there, "cpu, Inductor", torch.compile))
    for decoder in decoders:
        start = time.perf_counter()
        decoder.decode(prompt, 1)
        decoder.first = time.perf_counter() - start  # type: ignore[attr-defined] # for one line
        decoder.seconds.clear()
    tokens = []
    for _ in range(asked.repeats):
        tokens = [decoder.decode(prompt, TIMED) for decoder in decoders]
    for decoder, found in zip(decoders, tokens, strict=True):
        pairs = zip(found, tokens[0], strict=True)
        same = next((i for i, (a, b) in enumerate(pairs) if a != b), len(found))
        print(
            f"{decoder.name}: {1 / min(decoder.seconds):.2f} tokens/s, first answer after "
            f"{decoder.first:.1f} s, {same} of {len(found)} tokens as on cpu"  # type: ignore[attr-defined]
        )
    print(f"generate: {peak()}")


def steps(forward: Callable[[], Tensor], optimizer: torch.optim.Optimizer, count: int) -> str:
    """Losses and seconds of some training steps."""
    losses, seconds = [], []
    for _ in range(count):
        start = time.perf_counter()
        loss = forward()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(f"{loss.item():.3f}")
        seconds.append(time.perf_counter() - start)
    return f"losses {' '.join(losses)}, {min(seconds):.2f} s a step"


def lora(asked: argparse.Namespace) -> None:
    from peft import get_peft_model  # noqa: PLC0415 - only this part needs it

    model = get_peft_model(loaded(asked, "neuron"), _adapters())
    parameters = [p for p in model.parameters() if p.requires_grad]
    ids = torch.randint(asked.vocabulary, (1, TRAINED)).to("neuron")
    for name, call in (("eager", model), ("compiled", torch.compile(model, backend="neuron"))):
        optimizer = torch.optim.AdamW(parameters, lr=1e-4)
        start = time.perf_counter()
        first = steps(lambda c=call: c(input_ids=ids, labels=ids).loss, optimizer, 1)  # type: ignore[misc]
        before = time.perf_counter() - start
        rest = steps(lambda c=call: c(input_ids=ids, labels=ids).loss, optimizer, 2)  # type: ignore[misc]
        print(f"lora, {name}: {rest}; the first took {before:.1f} s ({first})")
    print(f"lora: {peak()}")


def _adapters() -> Any:
    from peft import LoraConfig  # noqa: PLC0415 - only these parts need it

    return LoraConfig(r=8, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])


def sharded(asked: argparse.Namespace, adapters: bool) -> tuple[str, float, float]:
    """What one rank does: what it says, and GiB resident and in tensors at their peaks."""
    with torch.device("meta"):
        model = LlamaForCausalLM._from_config(config(asked), dtype=torch.bfloat16)  # noqa: SLF001
        if adapters:
            from peft import inject_adapter_in_model  # noqa: PLC0415 - only this part needs it

            model = inject_adapter_in_model(_adapters(), model)
            model.to(torch.bfloat16)  # the parameters of a group are of one type
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    model.to_empty(device="neuron")
    rotary = model.model.rotary_emb
    model.model.rotary_emb = type(rotary)(config(asked)).to("neuron")  # its buffer is no weight
    torch.manual_seed(0)  # of a DTensor: every rank draws its part
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    ids = torch.randint(asked.vocabulary, (1, TRAINED)).to("neuron")
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)
    said = steps(lambda: model(input_ids=ids, labels=ids).loss, optimizer, 3)
    tensors = torch.neuron.max_memory_allocated() / GIB  # type: ignore[attr-defined]
    return said, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB, tensors


def available() -> float:
    """GiB that may still be used, of the machine or its container."""
    return _C.host_available_bytes() / GIB


@contextmanager
def least_available() -> Iterator[list[float]]:
    """Look every 50 ms; the list has the least that was available."""
    least, done = [available()], threading.Event()

    def look() -> None:
        while not done.wait(0.05):
            least[0] = min(least[0], available())

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield least
    finally:
        done.set()
        watcher.join()


def fsdp(asked: argparse.Namespace, *, adapters: bool = False) -> None:
    before = available()
    name = "fsdp_lora" if adapters else "fsdp"
    with least_available() as least:
        results = ranks.run(RANKS, sharded, asked, adapters)
    print(f"{name}: {results[0][0]}")
    # What ranks share, the libraries and exchanged memory, is resident in each of them.
    resident = sum(peak for _, peak, _ in results)
    tensors = sum(peak for _, _, peak in results)
    print(
        f"{name}: {before - least[0]:.2f} GiB of the machine at the peak of {RANKS} ranks, "
        f"{tensors:.2f} of them in tensors; {resident:.2f} resident, "
        "what they share counted for each"
    )


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "generate": generate,
    "lora": lora,
    "fsdp": fsdp,
    "fsdp_lora": partial(fsdp, adapters=True),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--vocabulary", type=int, default=128256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--inductor", action="store_true")
    asked = parser.parse_args()
    failed = False
    for name, part in PARTS.items():
        if asked.only in (None, name):
            process = get_context("spawn").Process(target=part, args=(asked,))
            process.start()
            process.join()
            failed |= process.exitcode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
