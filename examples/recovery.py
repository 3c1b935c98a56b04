"""Recovery, tried out: a server that tries again, a training that survives a NaN.

python -m examples.recovery

A job of several ranks that loses one is examples.elastic:

TORCH_NEURONX_FAULTS=lost_rank:rank=1,at=40,attempt=0 \
torchrun --standalone --nproc-per-node 2 --max-restarts 1 -m examples.elastic
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
from torch import nn

from torch_neuronx.testing import inject

# What may pass by itself; after any other error the process has to be replaced.
TRANSIENT = frozenset({5, 1005})  # NRT_TIMEOUT, NRT_EXEC_NC_BUSY
MOST_TRIES = 5


def answer(model: nn.Module, request: torch.Tensor) -> tuple[torch.Tensor, int]:
    """What the model says, and how often it was asked again."""
    for tries in range(MOST_TRIES):
        try:
            return model(request.to("neuron")).cpu(), tries
        except torch.AcceleratorError as error:
            # PyTorch's stubs leave the attribute out.
            code = error.error_code  # type: ignore[attr-defined]
            if code not in TRANSIENT or tries == MOST_TRIES - 1:
                raise
            time.sleep(0.001 * 2**tries)
    raise AssertionError


def server() -> list[str]:
    """Answer requests on a core that is busy now and then. Returns what went wrong, in words."""
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4)).to("neuron").eval()
    requests = torch.randn(200, 8, 16)
    with torch.inference_mode():
        wanted = [answer(model, request)[0] for request in requests]
        # Four operators to a request: about one request in twelve meets a busy core.
        with inject("busy", probability=0.02, seed=1) as busy:
            answers = [answer(model, request) for request in requests]
    again = sum(tries for _, tries in answers)
    print(f"server: {len(requests)} requests, core busy {busy.acted} times, {again} tries more")
    same = all(a.equal(b) for (a, _), b in zip(answers, wanted, strict=True))
    failures = [] if same else ["an answer is another than without faults"]
    return failures + ([] if again == busy.acted > 0 else ["tries don't match the faults"])


def train(steps: int, step: Callable[[nn.Module, int], torch.Tensor]) -> tuple[list[float], int]:
    """Losses of steps, and how many were skipped because one was not a number."""
    torch.manual_seed(0)
    model = nn.Linear(16, 4).to("neuron")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses, skipped = [], 0
    for number in range(steps):
        loss = step(model, number)
        optimizer.zero_grad()
        loss.backward()
        if not loss.isfinite():
            skipped += 1
            continue
        optimizer.step()
        losses.append(loss.item())
    return losses, skipped


def training() -> list[str]:
    """Train while one product comes out wrong. Returns what went wrong, in words."""
    data = torch.randn(32, 16, generator=torch.Generator().manual_seed(1)).to("neuron")
    goal = data[:, :4]

    def step(model: nn.Module, _: int) -> torch.Tensor:
        return nn.functional.mse_loss(model(data), goal)

    with inject("nan", match="addmm", at=6) as fault:
        losses, skipped = train(30, step)
    course = f"loss {losses[0]:.3f} to {losses[-1]:.3f}"
    print(f"training: {len(losses)} steps, {skipped} skipped, {course}")
    fine = fault.acted == skipped == 1 and losses[-1] < losses[0] / 2
    return [] if fine else ["the training did not go on as if nothing had happened"]


def main() -> int:
    """Run both; the exit code says whether all went well."""
    failures = server() + training()
    for failure in failures:
        print(f"failed: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
