"""accelerate and transformers' Trainer, unmodified, on two ranks against one."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.distributed.accelerate_worker import EPOCHS, PER_RANK, SAMPLES, data, network
from tests.distributed.launch import run, torchrun

HERE = Path(__file__).parent
RANKS = 2


def reference(accumulation: int) -> list[float]:
    """The losses of one process on the host that takes all ranks' batches at once."""
    torch.manual_seed(2)
    model, samples = network(), data()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batches = [
        samples[begin : begin + RANKS * PER_RANK]
        # The samples that fill no batch of one rank are dropped.
        for begin in range(0, SAMPLES // (RANKS * PER_RANK) * RANKS * PER_RANK, RANKS * PER_RANK)
    ] * EPOCHS
    losses = []
    for index, (inputs, targets) in enumerate(batches):
        loss = nn.functional.cross_entropy(model(inputs), targets)
        (loss / accumulation).backward()
        losses.append(loss.item())
        # accelerate counts anew in each epoch and steps at its end.
        step, steps = index % (len(batches) // EPOCHS) + 1, len(batches) // EPOCHS
        if step % accumulation == 0 or step == steps:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return losses


@pytest.mark.slow
def test_accelerate(tmp_path: Path) -> None:
    torchrun(RANKS, str(HERE / "accelerate_worker.py"), str(tmp_path))
    found: dict[str, Any] = json.loads((tmp_path / "results.json").read_text())
    assert {name: entry["evaluated"] for name, entry in found.items()} == dict.fromkeys(
        found, SAMPLES
    )
    exact = reference(1)
    # float32 sums in another order, then Adam, whose steps amplify differences of tiny gradients.
    assert found["ddp"]["losses"] == pytest.approx(exact, rel=1e-4)
    assert found["fsdp2"]["losses"] == pytest.approx(exact, rel=1e-4)
    assert found["accumulated"]["losses"] == pytest.approx(reference(2), rel=1e-4)
    # Products of operands rounded to 8 bits, through three layers and 14 steps.
    assert found["bfloat16"]["losses"] == pytest.approx(exact, rel=0.03)
    assert found["ddp"]["wrapper"] == "DistributedDataParallel"
    assert found["fsdp2"]["wrapper"].startswith("FSDP")
    assert found["fsdp2"]["norm"] == pytest.approx(found["ddp"]["norm"], rel=1e-4)


@pytest.mark.slow
def test_trainer(tmp_path: Path) -> None:
    """`accelerate launch` on two ranks, then `python` alone."""
    modes, worker = ["ddp", "accumulated"], str(HERE / "trainer_worker.py")
    results = [tmp_path / "two", tmp_path / "one"]
    for directory in results:
        directory.mkdir()
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu"]
    counts = [f"--num_processes={RANKS}", "--num_machines=1", "--mixed_precision=no"]
    port = ["--dynamo_backend=no", "--main_process_port=0"]
    run([*launcher, *counts, *port, worker, str(results[0]), *modes, "fsdp"])
    run([sys.executable, worker, str(results[1]), *modes])
    two, one = (json.loads((directory / "results.json").read_text()) for directory in results)
    for mode, entry in two.items():
        alone = one[mode.replace("fsdp", "ddp")]
        assert entry["losses"] == pytest.approx(alone["losses"], rel=1e-4), mode
        # Not the loss of the evaluation: Trainer weights an incomplete batch, filled up here, anew.
        assert entry["evaluation"] == pytest.approx(alone["evaluation"], rel=1e-4), mode
        assert entry["device"] == "neuron:0"
