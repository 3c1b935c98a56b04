"""torch.distributed.checkpoint: written by one number of ranks, read by another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.distributed.clients import (
    Env,
    Transformer,
    close,
    full,
    reference,
    same_parameters,
    train,
    transformer,
)
from tests.distributed.ranks import run_ranks

STEPS = 2
# PyTorch's async_save coordinates ranks by messages between hosts' memories.
BACKENDS = "cpu:gloo,neuron:neuron"


class App(Stateful):
    """Model and optimizer under one key, as PyTorch's tutorials do it."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer, self.steps = model, optimizer, 0

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        self.steps = state["steps"]


def sharded(env: Env, model: Transformer) -> Transformer:
    mesh = init_device_mesh(env.device.type, (env.world,))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def adamw(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3)


def travel(rank: int, world: int, folder: str, done: int, kind: str = "neuron") -> None:
    """Load what `done` steps left (if any), check it, train on, save in three ways."""
    device = torch.device(kind, rank) if kind != "cpu" else torch.device(kind)
    env = Env(rank, world, device)
    alone = transformer(device)
    theirs = adamw(alone)
    for _ in range(done // STEPS):
        reference(env, alone, theirs, STEPS)
    ways = ("", "-async") if done and kind != "cpu" else ("",)
    for way in ways:
        model = sharded(env, Transformer().to(device) if done else transformer(device))
        app = App(model, adamw(model))
        if done:
            state_dict_loader.load({"app": app}, checkpoint_id=str(Path(folder) / f"{done}{way}"))
            assert app.steps == done
            same_parameters(model, alone)
            for a, b in zip(app.optimizer.state.values(), theirs.state.values(), strict=True):
                close(full(a["exp_avg"]), b["exp_avg"])
    close(train(env, model, app.optimizer, STEPS), reference(env, alone, theirs, STEPS))
    app.steps = done + STEPS
    where = str(Path(folder) / str(app.steps))
    state_dict_saver.save({"app": app}, checkpoint_id=where)
    if kind != "cpu":
        future = state_dict_saver.async_save({"app": app}, checkpoint_id=where + "-async")
        future.result()  # type: ignore[union-attr]
    through_one_rank(env, model, app.optimizer, Path(folder) / f"whole-{app.steps}.pt")


def through_one_rank(
    env: Env, model: Transformer, optimizer: torch.optim.Optimizer, path: Path
) -> None:
    """The whole state on the host of rank 0, and from there into a new model."""
    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = get_model_state_dict(model, options=whole)
    moments = get_optimizer_state_dict(model, optimizer, options=whole)
    if env.rank == 0:
        assert all(isinstance(t, torch.Tensor) and t.device.type == "cpu" for t in state.values())
        of_parameters = moments["state"]
        assert isinstance(of_parameters, dict)
        assert of_parameters.keys() == state.keys()
        torch.save(state, path)
    dist.barrier()
    fresh = sharded(env, Transformer().to(env.device))
    set_model_state_dict(
        fresh,
        torch.load(path) if env.rank == 0 else {},
        options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True),
    )
    for p, q in zip(fresh.parameters(), model.parameters(), strict=True):
        assert torch.equal(full(p), full(q))


@pytest.mark.slow
def test_travels(tmp_path: Path) -> None:
    """Saved by 4 ranks, read and trained on by 2, then by 1, then by 4 again."""
    for i, world in enumerate((4, 2, 1, 4)):
        run_ranks(world, travel, str(tmp_path), i * STEPS, backend=BACKENDS)
