"""One rank of the tests of accelerate: `torchrun ... accelerate_worker.py RESULTS [BACKEND...]`.

Every check that needs no numbers from elsewhere is an assertion here; losses go to RESULTS, where
test_accelerate.py compares them with one process.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import (
    DistributedType,
    FullyShardedDataParallelPlugin,
    broadcast,
    broadcast_object_list,
    gather_object,
    pad_across_processes,
    set_seed,
)
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

SAMPLES, FEATURES, CLASSES = 61, 12, 4
PER_RANK = 4  # of a batch
EPOCHS = 2


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(SAMPLES, FEATURES, generator=generator)
    return TensorDataset(
        inputs, (inputs @ torch.randn(FEATURES, CLASSES, generator=generator)).argmax(1)
    )


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(FEATURES, 32), nn.Tanh(), nn.Linear(32, CLASSES))


def operations(accelerator: Accelerator) -> None:
    """Collectives on tensors, nested containers and objects, and who does what."""
    rank, world, device = accelerator.process_index, accelerator.num_processes, accelerator.device
    assert dist.get_backend() == "neuron"
    assert device == torch.device("neuron", rank)
    assert accelerator.distributed_type == DistributedType.MULTI_NEURON
    assert AcceleratorState().backend == "neuron"
    mine = torch.full((2, 3), float(rank), device=device)
    every = torch.arange(world, device=device).repeat_interleave(2)[:, None].expand(-1, 3).float()
    gathered = accelerator.gather({"a": mine, "b": [mine[0, 0]]})
    torch.testing.assert_close(gathered["a"], every)
    torch.testing.assert_close(gathered["b"][0].cpu(), torch.arange(world).float())
    total = accelerator.reduce(mine + 1, reduction="sum")
    torch.testing.assert_close(total, torch.full_like(mine, world * (world + 1) / 2))
    mean = accelerator.reduce(mine, reduction="mean")
    torch.testing.assert_close(mean, torch.full_like(mine, (world - 1) / 2))
    uneven = torch.ones(rank + 1, 2, device=device)
    padded = pad_across_processes(uneven, pad_index=-1)
    assert padded.shape == (world, 2)
    assert (padded[rank + 1 :] == -1).all()
    torch.testing.assert_close(broadcast(mine.clone(), from_process=1), torch.ones_like(mine))
    assert gather_object([{"rank": rank}, "x" * rank]) == [
        item for r in range(world) for item in ({"rank": r}, "x" * r)
    ]
    objects = [f"from {rank}", rank] if rank else [None, None]
    assert broadcast_object_list(objects, from_process=1) == ["from 1", 1]
    with accelerator.split_between_processes(list(range(5))) as share:
        assert gather_object(share) == list(range(5))
    order: list[int] = []
    with accelerator.main_process_first():
        order.append(rank)
    accelerator.wait_for_everyone()
    assert accelerator.is_main_process == (rank == 0)
    if rank == 1:
        accelerator.set_trigger()
    assert accelerator.check_trigger()


def epoch(
    accelerator: Accelerator, model: nn.Module, optimizer: Any, loader: Any
) -> Iterator[float]:
    """Train on everything once and yield the loss of every step, averaged over the ranks."""
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(inputs).float(), targets)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        yield accelerator.reduce(loss.detach(), reduction="mean").item()


def metrics(accelerator: Accelerator, model: nn.Module) -> int:
    """Count what was evaluated: each sample once, although the last batch is filled up."""
    loader = accelerator.prepare(DataLoader(data(), batch_size=PER_RANK))
    seen: list[Tensor] = []
    with torch.no_grad():
        for inputs, targets in loader:
            logits, wanted = accelerator.gather_for_metrics((model(inputs), targets))
            assert logits.shape[0] == wanted.shape[0]
            seen.append(wanted.cpu())
    assert torch.equal(torch.cat(seen), data().tensors[1])
    return sum(len(batch) for batch in seen)


def training(results: Path, **options: Any) -> dict[str, Any]:
    """Train, save after the first epoch, train on, go back and see the same losses again."""
    AcceleratorState._reset_state(reset_partial_state=False)
    accelerator = Accelerator(**options)
    set_seed(2)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(data(), batch_size=PER_RANK, drop_last=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = list(epoch(accelerator, model, optimizer, loader))
    accelerator.save_state(str(results))
    second = list(epoch(accelerator, model, optimizer, loader))
    # By default it asks safetensors for "neuron:0", a name that safetensors 0.8 doesn't know.
    accelerator.load_state(str(results), map_location="cpu")
    again = list(epoch(accelerator, model, optimizer, loader))
    assert again == second
    state = accelerator.get_state_dict(model)
    return {
        "losses": losses + second,
        "evaluated": metrics(accelerator, model),
        "wrapper": type(model).__name__,
        "norm": sum(value.double().norm().item() for value in state.values()) if state else 0.0,
    }


def main() -> None:
    results = Path(sys.argv[1])
    accelerator = Accelerator()
    operations(accelerator)
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="size_based_wrap",
        min_num_params=100,
        state_dict_type="SHARDED_STATE_DICT",
    )
    found = {
        "ddp": training(results / "ddp"),
        "accumulated": training(results / "accumulated", gradient_accumulation_steps=2),
        "bfloat16": training(results / "bfloat16", mixed_precision="bf16"),
        "fsdp2": training(results / "fsdp2", fsdp_plugin=plugin),
    }
    if accelerator.is_main_process:
        (results / "results.json").write_text(json.dumps(found))
    accelerator.end_training()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
