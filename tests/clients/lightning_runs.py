"""Trainings by Lightning that ranks run, and what they are compared with."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import numpy.typing as npt
import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from torch_neuronx.integrations import lightning as ours

Array = npt.NDArray[np.float32]
FEATURES, CLASSES, SAMPLES = 8, 4, 32
# A single process takes the batch of all ranks.
BATCH = 8
QUIET: dict[str, Any] = {
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


def network() -> nn.Sequential:
    """The same weights every time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.GELU(), nn.Linear(16, CLASSES))


def batches(rank: int = 0, world: int = 1) -> DataLoader[tuple[Tensor, ...]]:
    """This rank's part of every batch; Lightning's own sampler would shuffle."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, FEATURES, generator=generator)
    data = TensorDataset(inputs, inputs[:, :CLASSES].argmax(1))
    part: DistributedSampler[Any] = DistributedSampler(data, world, rank, shuffle=False)
    return DataLoader(data, batch_size=BATCH // world, sampler=part)


class Classifier(pl.LightningModule):  # type: ignore[misc] # mypy doesn't look into it
    """What is trained."""

    def __init__(self, shard: bool = False) -> None:
        super().__init__()
        self.net = network()
        self.shard = shard
        self.devices: set[str] = set()
        self.types: set[torch.dtype] = set()

    def configure_model(self) -> None:
        if self.shard:
            fully_shard(self.net[0], mesh=self.device_mesh["data_parallel"])
            fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        inputs, labels = batch
        outputs = self.net(inputs)
        self.devices.add(str(outputs.device))
        self.types.add(outputs.dtype)
        loss = nn.functional.cross_entropy(outputs, labels)
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class CompiledClassifier(Classifier):
    """The network is a program for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.net.compile(backend="neuron")


def on_host(tensors: Iterable[Tensor]) -> list[Array]:
    """Values that a rank can send when it ends."""
    return [t.detach().to("cpu", torch.float32, copy=True).numpy() for t in tensors]


def weights(model: nn.Module) -> list[Array]:
    return on_host(model.parameters())


def trainer(epochs: int = 2, **arguments: Any) -> pl.Trainer:
    settings = {**QUIET, "enable_checkpointing": False, **arguments}
    return pl.Trainer(max_epochs=epochs, use_distributed_sampler=False, **settings)


def strategy(name: str) -> tuple[Any, Callable[[], Classifier]]:
    """What `strategy=` is given, and the module that fits it."""
    if name == "fsdp2":
        plan = ours.pytorch.ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
        return plan, lambda: Classifier(shard=True)
    if name == "hybrid":
        arguments = {"sharding_strategy": "HYBRID_SHARD", "device_mesh": (1, 2)}
        return ours.pytorch.FSDPStrategy(**arguments), Classifier
    if name == "sharded":
        return ours.pytorch.FSDPStrategy(state_dict_type="sharded"), Classifier
    return name, Classifier


def fit(
    rank: int, world: int, name: str, precision: str | None, folder: str | None = None
) -> dict[str, Any]:
    """Train two epochs on `world` cores; with a folder, again from a checkpoint of the first."""
    plan, module = strategy(name)
    model = module()
    run = trainer(accelerator="neuron", devices=world, strategy=plan, precision=precision)
    run.fit(model, batches(rank, world))
    result = {
        "devices": model.devices,
        "types": model.types,
        "loss": run.callback_metrics["loss"].item(),
        "plugin": type(run.precision_plugin).__name__,
        "weights": whole(run),
    }
    if folder is None:
        return result
    path = Path(folder) / "first.ckpt"
    plan, module = strategy(name)
    first = trainer(1, accelerator="neuron", devices=world, strategy=plan, precision=precision)
    first.fit(module(), batches(rank, world))
    first.save_checkpoint(path)
    plan, module = strategy(name)
    second = trainer(accelerator="neuron", devices=world, strategy=plan, precision=precision)
    second.fit(module(), batches(rank, world), ckpt_path=path, weights_only=False)
    result["continued"] = whole(second)
    return result


def whole(run: pl.Trainer) -> list[Array]:
    """All of every parameter, on the host."""
    strategy: Any = run.strategy
    if isinstance(strategy, ours.pytorch.FSDPStrategy):
        from torch.distributed.fsdp import FullyShardedDataParallel

        with FullyShardedDataParallel.summon_full_params(strategy.model):
            return weights(strategy.model)
    parameters = strategy.model.parameters()
    return on_host(p.full_tensor() if hasattr(p, "full_tensor") else p for p in parameters)


def hooked(rank: int, world: int) -> tuple[int, list[Array]]:
    """DDP with a communication hook, which counts its calls."""
    calls = []

    def hook(state: Any, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        calls.append(bucket.index())
        return default_hooks.allreduce_hook(state, bucket)

    plan = ours.pytorch.DDPStrategy(ddp_comm_hook=hook)
    run = trainer(accelerator="neuron", devices=world, strategy=plan)
    run.fit(Classifier(), batches(rank, world))
    return len(calls), whole(run)


def by_fabric(
    rank: int, world: int, name: str, precision: str | None, folder: str | None = None
) -> list[Array]:
    """The same training as a loop of one's own."""
    accelerator = "cpu" if name == "cpu" else "neuron"
    plan = "auto" if name == "cpu" else name
    fabric = Fabric(accelerator=accelerator, devices=world, strategy=plan, precision=precision)
    fabric.launch()
    model = fabric.setup_module(network())
    optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=1e-2))
    loader = fabric.setup_dataloaders(batches(rank, world), use_distributed_sampler=False)
    for epoch in range(2):
        for inputs, labels in loader:
            assert inputs.device.type == accelerator
            loss = nn.functional.cross_entropy(model(inputs), labels)
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if folder is not None and epoch == 0:
            state = {"model": model, "optimizer": optimizer}
            fabric.save(Path(folder) / "fabric", state)
            for parameter in model.parameters():
                parameter.detach().zero_()
            fabric.load(Path(folder) / "fabric", state)
    if name == "neuron_fsdp":
        from torch.distributed.fsdp import FullyShardedDataParallel

        with FullyShardedDataParallel.summon_full_params(model):
            return weights(model)
    return weights(model)
