"""Two dimensions: FSDP2 (`fully_shard`) over a mesh's rows, tensor parallelism over its columns.

torchrun --nproc-per-node 2 -m examples.train_fsdp     # 1 x 2
torchrun --nproc-per-node 4 -m examples.train_fsdp     # 2 x 2
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)


class Layer(nn.Module):
    """A residual layer, wider inside."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        return y


def main() -> float:
    """Train; the last loss."""
    dist.init_process_group()
    world = dist.get_world_size()
    mesh = init_device_mesh("neuron", (world // 2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    with torch.device("neuron"):
        model = nn.Sequential(*(Layer(64) for _ in range(4)), nn.Linear(64, 8))
    policy = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32)
    for layer in list(model)[:4]:
        plan = {
            "norm": SequenceParallel(),
            "up": ColwiseParallel(),
            "down": RowwiseParallel(output_layouts=Shard(1)),
        }
        parallelize_module(layer, mesh["tp"], plan)
        fully_shard(layer, mesh=mesh["dp"], mp_policy=policy)
    from_all = ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())
    parallelize_module(model, mesh["tp"], {"4": from_all})
    fully_shard(model, mesh=mesh["dp"], mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    torch.manual_seed(1 + mesh["dp"].get_local_rank())  # columns of the mesh share their data
    whole = torch.randn(16, 8, 64, device="neuron")
    inputs = whole.chunk(2, 1)[mesh["tp"].get_local_rank()]  # sequences are split between layers
    targets = whole[..., :8].argmax(2).flatten()
    for step in range(20):
        loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1).float(), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0 and step % 5 == 4:
            print(f"step {step + 1}: loss {loss.item():.4f}")
    dist.destroy_process_group()
    return loss.item()


if __name__ == "__main__":
    main()
