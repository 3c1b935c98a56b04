"""What device programs cost to make and to time, in seconds of the processor.

Run it as ``python -m benchmarks.device_programs [--layers N] [--tokens N] [--bf16]``: GPT-2 (124M,
random weights) is lowered to instructions and put on the performance model's timeline, once
with nothing known and once more.
"""

from __future__ import annotations

import argparse
import time

import torch
import transformers

from neuronxcc.ir.graph import Graph
from neuronxcc.options import Options
from nki.device import lower
from torch_neuronx.dynamo import backend


def graph_of(model: torch.nn.Module, tokens: int) -> Graph:
    """Return the graph of a forward pass, as the host path compiles it."""
    graphs: list[backend.CompiledGraph] = []
    ids = torch.zeros(1, tokens, dtype=torch.long, device="neuron")
    backend.OBSERVERS.append(graphs.append)
    try:
        with torch.no_grad():
            torch.compile(lambda x: model(x).logits, backend="neuron", fullgraph=True)(ids)
    finally:
        backend.OBSERVERS.remove(graphs.append)
    return graphs[0].imported.graph


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--layers", type=int, default=12)
    options.add_argument("--tokens", type=int, default=1024)
    options.add_argument("--bf16", action="store_true")
    options.add_argument("--lnc", type=int, default=1)
    chosen = options.parse_args()
    config = transformers.GPT2Config(n_layer=chosen.layers, use_cache=False)
    dtype = torch.bfloat16 if chosen.bf16 else torch.float32
    model = transformers.GPT2LMHeadModel(config).eval().to("neuron", dtype)
    graph = graph_of(model, chosen.tokens)
    for what in ("cold", "warm"):
        begin = time.process_time()
        program = lower(graph, "trn2", Options(lnc=chosen.lnc))
        middle = time.process_time()
        made = program.predict()
        print(
            f"{what}: lowered in {middle - begin:.2f} s, timed in "
            f"{time.process_time() - middle:.2f} s; {len(program.sections)} sections, "
            f"{program.instructions} instructions, coverage {program.coverage:.0%}, "
            f"{made.device_us / 1000:.2f} ms on {made.target}"
        )


if __name__ == "__main__":
    main()
