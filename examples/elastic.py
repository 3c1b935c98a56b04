"""Elastic training: ranks die, torchrun starts them again, training goes on from its checkpoint.

torchrun --standalone --nproc-per-node 2 --max-restarts 2 -m examples.elastic --die-at 3 5

A checkpoint may be read by more or fewer ranks than have written it, each reading its own shards:

torchrun --nproc-per-node 4 -m examples.elastic --folder /tmp/resharded --steps 4
torchrun --nproc-per-node 2 -m examples.elastic --folder /tmp/resharded --steps 8
"""

import argparse
import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.fsdp import fully_shard


class Training:
    """All that a checkpoint has: model, optimizer, and the number of steps made."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 4)).to("neuron")
        fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.step = 0

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        self.step = state["step"]

    def advance(self) -> float:
        """One step on this rank's data of that step; the mean loss of all ranks."""
        seed = 1000 * dist.get_rank() + self.step
        inputs = torch.randn(32, 16, generator=torch.Generator().manual_seed(seed)).to("neuron")
        loss = nn.functional.cross_entropy(self.model(inputs), inputs[:, :4].argmax(1))
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        mean = loss.detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        return mean.item()


def main() -> None:
    """Train to the end, from the newest checkpoint if there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/elastic"))  # noqa: S108
    parser.add_argument("--die-at", type=int, nargs="*", default=[])
    parser.add_argument("--steps", type=int, default=8, help="to be made in all")
    options = parser.parse_args()
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    dist.init_process_group()
    training = Training()
    newest = options.folder / "newest"  # its name says which checkpoint is complete
    if newest.exists():
        load({"training": training}, checkpoint_id=options.folder / newest.read_text())
    while training.step < options.steps:
        if dist.get_rank() == 1 and options.die_at[attempt : attempt + 1] == [training.step]:
            os.kill(os.getpid(), signal.SIGKILL)
        loss = training.advance()
        name = f"step-{training.step}"
        save({"training": training}, checkpoint_id=options.folder / name)
        if dist.get_rank() == 0:
            newest.write_text(name)
            print(f"attempt {attempt} step {training.step} loss {loss!r}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
