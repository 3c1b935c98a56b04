"""Context parallelism: a sequence is split over the ranks, attention passes keys around the ring.

    torchrun --nproc-per-node 2 -m examples.context_parallel
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import context_parallel_unshard
from torch.nn import functional


def main() -> float:
    """The largest difference from attention on one core."""
    dist.init_process_group()
    mesh = init_device_mesh("neuron", (dist.get_world_size(),))
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, 4, 256, 32).to("neuron") for _ in range(3))
    whole = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    with context_parallel(mesh, buffers=[query, key, value], buffer_seq_dims=[2, 2, 2]):
        part = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        (together,) = context_parallel_unshard(mesh, [part], [2])
    difference = (together - whole).abs().max().item()
    if dist.get_rank() == 0:
        print(f"{query.shape[2]} queries, {part.shape[2]} of them here; differs by {difference:.1e}")
    dist.destroy_process_group()
    return difference


if __name__ == "__main__":
    main()
