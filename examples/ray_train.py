"""Ray Train on NeuronCores: a TorchTrainer whose ranks are on two Ray nodes of one machine.

python -m examples.ray_train

Ray knows the resource "neuron_cores" and gives each worker its own by NEURON_RT_VISIBLE_CORES.
`ray.train.torch.get_device` and `prepare_model` have a list of devices without this one, so the
loop moves and wraps the model itself.
"""

import os
import tempfile
from typing import Any

import ray
import ray.train
import torch
import torch.distributed as dist
from ray.cluster_utils import Cluster
from ray.train.torch import TorchConfig, TorchTrainer
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CORES = 2  # of each node


def loop(settings: dict[str, Any]) -> None:
    """What every rank runs."""
    torch.set_num_threads(1)
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 4).to("neuron"))
    optimizer = torch.optim.SGD(model.parameters(), lr=settings["rate"])
    inputs = torch.randn(32, 8, generator=torch.Generator().manual_seed(1))
    part = inputs[rank :: dist.get_world_size()].to("neuron")
    for _ in range(settings["steps"]):
        loss = nn.functional.cross_entropy(model(part), part[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach())
        report: dict[str, Any] = {
            "loss": loss.item() / dist.get_world_size(),
            "backend": dist.get_backend(),
            "node": ray.get_runtime_context().get_node_id(),
            "cores": os.environ["NEURON_RT_VISIBLE_CORES"],
            "weights": [p.detach().cpu().tolist() for p in model.parameters()],
        }
        with tempfile.TemporaryDirectory() as folder:
            torch.save(report, f"{folder}/rank{rank}.pt")
            checkpoint = ray.train.Checkpoint.from_directory(folder)
            ray.train.report({"loss": report["loss"]}, checkpoint=checkpoint)


def main(steps: int = 10, workers: int = 2, storage: str | None = None) -> list[dict[str, Any]]:
    """Train; what each rank reported last."""
    node = {"num_cpus": 2, "resources": {"neuron_cores": CORES}, "object_store_memory": 80 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    try:
        cluster.add_node(**node)
        ray.init(address=cluster.address, log_to_driver=False)
        with tempfile.TemporaryDirectory() as folder:
            trainer = TorchTrainer(
                loop,
                train_loop_config={"steps": steps, "rate": 0.5},
                torch_config=TorchConfig(backend="neuron"),
                scaling_config=ray.train.ScalingConfig(
                    num_workers=workers,
                    resources_per_worker={"CPU": 1, "neuron_cores": 1},
                    placement_strategy="STRICT_SPREAD",
                ),
                run_config=ray.train.RunConfig(storage_path=storage or folder),
            )
            result = trainer.fit()
            with result.checkpoint.as_directory() as last:
                reports = [torch.load(f"{last}/rank{rank}.pt") for rank in range(workers)]
    finally:
        ray.shutdown()
        cluster.shutdown()
    return reports


if __name__ == "__main__":
    for number, each in enumerate(main()):
        print(
            f"rank {number}: node {each['node'][:6]}, core {each['cores']}, loss {each['loss']:.4f}"
        )
