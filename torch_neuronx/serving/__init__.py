"""Serving language models: continuous batching over a paged cache (docs/serving.md).

`Engine` generates for many requests at a time with any causal language model of transformers that
takes its attention from `AttentionInterface`; ``python -m torch_neuronx.serving`` is a server in
OpenAI's form on top of it.

blocks.py     who owns which block of the cache, and which blocks can be shared
request.py    a request: its tokens, its blocks, what its owner is told
scheduler.py  which tokens of which requests the next step computes
runner.py     a step on the model; the attention that models are given
decoding.py   steps of one token a request, compiled
engine.py     the loop, its thread, and its counters
server/       HTTP
"""

from torch_neuronx.serving.blocks import BlockManager
from torch_neuronx.serving.engine import Engine, Options
from torch_neuronx.serving.request import Event, Request, Sampling

__all__ = ["BlockManager", "Engine", "Event", "Options", "Request", "Sampling"]
