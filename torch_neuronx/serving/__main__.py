"""Serve a language model over HTTP in OpenAI's form: see docs/serving.md."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from neuronxcc.unread import ends_quietly
from torch_neuronx.serving.engine import Engine, Options
from torch_neuronx.serving.server.process import Server
from torch_neuronx.serving.server.text import Bytes, Pretrained, Tokenizer


@ends_quietly
def main() -> int:
    """Load, listen, serve until SIGINT or SIGTERM."""
    options = _options()
    torch.set_default_device("cpu")
    model, tokenizer = _load(options)
    torch.nn.Module.to(model, options.device)
    engine = Engine(
        model,
        Options(
            blocks=options.blocks, block_size=options.block_size, requests=options.requests,
            step_tokens=options.step_tokens, queue=options.queue,
            share_prefixes=not options.no_prefix_sharing, compiled=options.compile,
        ),
    )  # fmt: skip
    name = options.name or (options.model.name if options.model else "random")
    server = Server(engine, tokenizer, name, host=options.host, port=options.port)
    server.stop_on_signals()
    weights = sum(p.nbytes for p in model.parameters())
    print(
        f"{name}: weights {weights / 1e6:,.1f} MB, cache {engine.cache_bytes / 1e6:,.1f} MB for "
        f"{options.blocks * options.block_size:,} tokens, on {model.device}"
    )
    start = time.perf_counter()
    for size in engine.compile():
        print(f"compiled the step of {size}, {time.perf_counter() - start:.1f} s", flush=True)
    print(f"listening on http://{options.host}:{server.port}/v1", flush=True)
    server.run()
    print("stopped", flush=True)
    return 0


def _options() -> argparse.Namespace:
    defaults = Options()
    parser = argparse.ArgumentParser(
        prog="python -m torch_neuronx.serving",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--model", type=Path, help="folder with a model of transformers")
    which.add_argument(
        "--random-weights", action="store_true",
        help="a small Llama that was never trained, over bytes: to try the server",
    )  # fmt: skip
    parser.add_argument("--name", help="that clients ask for; the folder's if it is not given")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="of weights and cache")
    parser.add_argument("--device", default="neuron", help="neuron, neuron:1, cpu")
    parser.add_argument("--host", default="127.0.0.1", help="to listen on")
    parser.add_argument("--port", type=int, default=8000, help="0: any that is free")
    parser.add_argument("--blocks", type=int, default=defaults.blocks, help="of the cache")
    parser.add_argument("--block-size", type=int, default=defaults.block_size, help="tokens")
    parser.add_argument(
        "--requests", type=int, default=defaults.requests, help="that run at a time"
    )
    parser.add_argument(
        "--step-tokens", type=int, default=defaults.step_tokens, help="of a step of the model"
    )
    parser.add_argument("--queue", type=int, default=defaults.queue, help="requests that may wait")
    parser.add_argument(
        "--no-prefix-sharing", action="store_true", help="compute every prompt as a whole"
    )
    parser.add_argument(
        "--compile", action="store_true",
        help="steps in which every request has one token, before the first request is accepted",
    )  # fmt: skip
    return parser.parse_args()


def _load(options: argparse.Namespace) -> tuple[PreTrainedModel, Tokenizer]:
    dtype = getattr(torch, options.dtype) if options.dtype else None
    if options.random_weights:
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=Bytes.size, hidden_size=256, intermediate_size=768, num_hidden_layers=4,
            num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=2048,
            bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
        made = LlamaForCausalLM(config)
        return made if dtype is None else made.to(dtype), Bytes()
    if not options.model.is_dir():
        raise SystemExit(f"--model {options.model}: there is no such folder")
    loaded: Any = AutoModelForCausalLM.from_pretrained(options.model, dtype=dtype or "auto")
    stop = loaded.generation_config.eos_token_id
    stops = frozenset([] if stop is None else [stop] if isinstance(stop, int) else stop)
    return loaded, Pretrained(AutoTokenizer.from_pretrained(options.model), stops)


if __name__ == "__main__":
    raise SystemExit(main())
