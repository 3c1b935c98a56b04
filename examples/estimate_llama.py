"""How long would one rank of a large Llama take? Prefill of a prompt, then one token.

The model of 70 billion parameters on the 64 cores of a trn2.48xlarge, timed on this computer:

    python -m torch_neuronx.estimate --world-size 64 --instance trn2.48xlarge \
        examples/estimate_llama.py --size llama-3.3-70b --prompt 2048

The script is what torchrun would start on every rank; it has no memory here but the fake kind.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import torch
import torch.distributed as dist

from torch_neuronx.estimation.calibration.decoder import SIZES, Decoder


def main(arguments: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--size", choices=SIZES, default="llama-3.3-70b")
    options.add_argument("--batch", type=int, default=1)
    options.add_argument("--prompt", type=int, default=2048)
    options.add_argument("--cache", type=int, default=4096)
    chosen = options.parse_args(arguments)
    dist.init_process_group("neuron")
    model = Decoder(SIZES[chosen.size], dist.get_world_size(), chosen.batch, chosen.cache)
    prompt = torch.zeros(chosen.batch, chosen.prompt, dtype=torch.int64, device="neuron")
    with torch.no_grad():
        model(prompt, torch.arange(chosen.prompt, device="neuron"))
        model(prompt[:, :1], torch.tensor([chosen.prompt], device="neuron"))
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
