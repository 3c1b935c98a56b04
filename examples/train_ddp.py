"""Data parallelism: DDP with buckets, gradients accumulated over two batches, bfloat16 reductions.

torchrun --nproc-per-node 2 -m examples.train_ddp
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel


def compressed(group: dist.ProcessGroup, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """PyTorch's bf16_compress_hook; by its own name DDP would ask for NCCL."""
    return default_hooks.bf16_compress_hook(group, bucket)


def main() -> float:
    """Train; the last loss."""
    dist.init_process_group()
    index = torch.neuron.current_device()  # type: ignore[attr-defined] # added by torch_neuronx
    device = torch.device("neuron", index)
    torch.manual_seed(dist.get_rank())
    layers = (nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 4))
    model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(*layers)).to(device)
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    ddp.register_comm_hook(dist.group.WORLD, compressed)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-2)
    inputs = torch.randn(64, 32, device=device)
    targets = inputs[:, :4].argmax(1)
    for step in range(20):
        with ddp.no_sync():
            nn.functional.cross_entropy(ddp(inputs[:32]), targets[:32]).backward()
        loss = nn.functional.cross_entropy(ddp(inputs[32:]), targets[32:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0 and step % 5 == 4:
            print(f"step {step + 1}: loss {loss.item():.4f}")
    dist.destroy_process_group()
    return loss.item()


if __name__ == "__main__":
    main()
