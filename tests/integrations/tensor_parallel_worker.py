"""One rank of two: Flux 2's transformer in tensor parallel, as on one rank."""

from __future__ import annotations

import sys
from typing import Any

import diffusers
import torch
import torch.distributed as dist
from diffusers import TensorParallelConfig
from torch.distributed.device_mesh import init_device_mesh

from examples import small_pipelines as small

# Sums of float32 in another order, of values of order one.
TOLERANCE = 1e-5


def model() -> Any:
    torch.manual_seed(0)
    return small.flux2_transformer().eval().requires_grad_(requires_grad=False)


def arguments() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    place = torch.arange(16)
    image_ids = torch.stack([0 * place, place // 4, place % 4, 0 * place], dim=-1)[None].float()
    tensors = {
        "hidden_states": torch.randn(1, 16, 16, generator=generator),
        "encoder_hidden_states": torch.randn(1, 6, 3 * small.HIDDEN, generator=generator),
        "timestep": torch.tensor([0.5]),
        "img_ids": image_ids,
        "txt_ids": torch.zeros(1, 6, 4),
    }
    return {name: t.to("neuron") for name, t in tensors.items()}


def main(folder: str) -> None:
    dist.init_process_group("neuron")
    call = arguments()
    wanted = model()(**{n: t.cpu() for n, t in call.items()}, return_dict=False)[0]
    config = TensorParallelConfig(mesh=init_device_mesh("neuron", (2,)))
    in_memory = model()
    in_memory.enable_parallelism(config=config)
    in_memory.to("neuron")
    if dist.get_rank() == 0:
        model().save_pretrained(folder)
    dist.barrier()
    kind = diffusers.Flux2Transformer2DModel
    streamed = kind.from_pretrained(folder, parallel_config=config).eval().to("neuron")
    for name, sharded in {"in memory": in_memory, "streamed": streamed}.items():
        weight = sharded.transformer_blocks[0].attn.to_q.weight
        assert weight.to_local().shape[0] * 2 == weight.shape[0]
        with torch.no_grad():
            got = sharded(**call, return_dict=False)[0]
        difference = (got.cpu() - wanted).abs().max().item()
        assert difference < TOLERANCE, f"{name}: off by {difference}"
        print(f"{name}: rank {dist.get_rank()} is right", flush=True)  # noqa: T201
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
