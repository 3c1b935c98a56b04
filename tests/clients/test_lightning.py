"""Lightning's Trainer and Fabric on the device, equal to the same training without them."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("lightning", reason="the extra `test` has it")

import lightning.fabric
import lightning.pytorch as pl
from lightning.fabric import Fabric
from lightning.pytorch.plugins import MixedPrecision

from tests.clients import lightning_runs as runs
from tests.distributed.ranks import run_ranks
from torch_neuronx.integrations import lightning as ours
from torch_neuronx.integrations._lightning.accelerator import parse_devices
from torch_neuronx.integrations._lightning.notice import LINE

ROOT = Path(__file__).parents[2]
# What torchrun sets, which Lightning then believes about the ranks; the group is there already.
TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "GROUP_RANK": "0", "MASTER_ADDR": "localhost"}
TORCHRUN["MASTER_PORT"] = "1"
pytestmark = [
    # Lightning's advice about workers of loaders and about logging, and its use of an old pytree.
    pytest.mark.filterwarnings("ignore:The .train_dataloader. does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*is deprecated"),
    # It makes the plugin for CUDA before a strategy can give it another device.
    pytest.mark.filterwarnings("ignore:torch.cuda.amp.GradScaler is enabled"),
]


def by_hand(
    device: str, precision: str | None = None, loss_in_float32: bool = False
) -> list[runs.Array]:
    """What Lightning does for one process, written out.

    Fabric's modules return float32, so that what follows is outside of autocast.
    """
    half = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}.get(precision or "")
    net = runs.network().to(device)
    if precision == "bf16-true":
        net = net.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler(device, enabled=precision == "16-mixed")
    for _ in range(2):
        for batch in runs.batches():
            inputs, labels = (t.to(device) for t in batch)
            if precision == "bf16-true":
                inputs = inputs.to(torch.bfloat16)
            with torch.autocast(device, half, enabled=half is not None, cache_enabled=False):
                outputs = net(inputs)
                loss = nn.functional.cross_entropy(outputs, labels)
            if loss_in_float32:
                loss = nn.functional.cross_entropy(outputs.float(), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return runs.weights(net)


def close(got: list[runs.Array], expected: list[runs.Array], tolerance: float = 1e-5) -> None:
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance)


def same(got: list[runs.Array], expected: list[runs.Array]) -> None:
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one, other)


# One core.


@pytest.mark.parametrize("precision", [None, "bf16-mixed", "16-mixed", "bf16-true"])
def test_a_trainer_is_the_loop_written_out(precision: str | None) -> None:
    model = runs.Classifier()
    run = runs.trainer(accelerator="neuron", devices=[2], strategy="neuron", precision=precision)
    run.fit(model, runs.batches())
    assert model.devices == {"neuron:2"}
    halves = {None: torch.float32, "16-mixed": torch.float16}
    assert model.types == {halves.get(precision, torch.bfloat16)}
    same(runs.weights(model), by_hand("neuron", precision))
    if precision is None:
        close(runs.weights(model), by_hand("cpu"))


def test_scaling_is_on_for_float16() -> None:
    """Lightning's own plugin would have a scaler for CUDA, which is off without CUDA."""
    run = runs.trainer(accelerator="neuron", devices=1, strategy="neuron", precision="16-mixed")
    run.fit(runs.Classifier(), runs.batches())
    assert isinstance(run.precision_plugin, MixedPrecision)
    scaler = run.precision_plugin.scaler
    assert scaler is not None
    assert scaler.is_enabled()
    assert scaler.get_scale() == 65536.0


def test_a_plugin_that_was_given_stays() -> None:
    plugin = MixedPrecision("bf16-mixed", device="neuron")
    run = runs.trainer(accelerator="neuron", devices=1, strategy="neuron", plugins=[plugin])
    assert run.precision_plugin is plugin


def test_a_compiled_network() -> None:
    model = runs.CompiledClassifier()
    run = runs.trainer(accelerator="neuron", devices=1, strategy="neuron")
    run.fit(model, runs.batches())
    assert model.devices == {"neuron:0"}
    close(runs.weights(model), by_hand("cpu"))


def test_checkpoints_move_between_devices(tmp_path: Path) -> None:
    """One epoch there, one here, in both directions, is two epochs in one go."""
    there: dict[str, Any] = {"accelerator": "neuron", "devices": 1, "strategy": "neuron"}
    here: dict[str, Any] = {"accelerator": "cpu", "devices": 1}
    for index, (first, second) in enumerate([(there, here), (here, there)]):
        path = tmp_path / f"{index}.ckpt"
        begun = runs.trainer(1, **first)
        begun.fit(runs.Classifier(), runs.batches())
        begun.save_checkpoint(path)
        model = runs.Classifier()
        ended = runs.trainer(2, **second)
        ended.fit(model, runs.batches(), ckpt_path=path, weights_only=False)
        close(runs.weights(model), by_hand("cpu"))


def test_validation_prediction_and_statistics() -> None:
    class Whole(runs.Classifier):
        def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
            self.log("seen", float(batch[0].device.type == "neuron"))

        def predict_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
            result: torch.Tensor = self.net(batch[0])
            return result

    model = Whole()
    run = runs.trainer(accelerator="neuron", devices=1, strategy="neuron")
    run.validate(model, runs.batches(), verbose=False)
    assert run.callback_metrics["seen"] == 1
    predicted = run.predict(model, runs.batches())
    assert predicted is not None
    expected = [model.net.cpu()(inputs) for inputs, _ in runs.batches()]
    for got, want in zip(predicted, expected, strict=True):
        assert isinstance(got, torch.Tensor)
        torch.testing.assert_close(got.cpu(), want)
    statistics = run.accelerator.get_device_stats(torch.device("neuron:0"))
    assert statistics["allocated_bytes.all.peak"] > 0


@pytest.mark.parametrize("precision", [None, "bf16-mixed", "16-mixed"])
def test_fabric_is_the_loop_written_out(precision: str | None, tmp_path: Path) -> None:
    got = runs.by_fabric(0, 1, "neuron", precision, str(tmp_path))
    same(got, by_hand("neuron", precision, loss_in_float32=True))


# Two cores.


@pytest.mark.slow
@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("name", "plugin"),
    [
        ("ddp", "Precision"),
        ("auto", "Precision"),
        ("neuron_fsdp", "FSDPPrecision"),
        ("hybrid", "FSDPPrecision"),
        ("sharded", "FSDPPrecision"),
        ("fsdp2", "Precision"),
    ],
)
def test_two_ranks_are_one_with_the_whole_batch(name: str, plugin: str, tmp_path: Path) -> None:
    """And a run that goes on from a checkpoint ends where one in one go does."""
    results = run_ranks(2, runs.fit, name, None, str(tmp_path), env=TORCHRUN)
    expected = by_hand("cpu")
    for rank, result in enumerate(results):
        assert result["devices"] == {f"neuron:{rank}"}
        assert result["plugin"] == plugin
        close(result["weights"], expected)
        same(result["continued"], result["weights"])


@pytest.mark.slow
@pytest.mark.every(4)
@pytest.mark.parametrize("name", ["ddp", "neuron_fsdp", "fsdp2"])
@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_two_ranks_in_mixed_precision(name: str, precision: str) -> None:
    """Near float32: 8 steps of at most 1e-2 each differ where a gradient is near zero."""
    if name == "fsdp2" and precision == "16-mixed":
        with pytest.raises(AssertionError, match=r"does not support .*16-mixed"):
            run_ranks(2, runs.fit, name, precision, env=TORCHRUN)
        return
    half = torch.float16 if precision == "16-mixed" else torch.bfloat16
    exact = by_hand("cpu")
    for result in run_ranks(2, runs.fit, name, precision, env=TORCHRUN):
        assert result["types"] == {half}
        for got, want in zip(result["weights"], exact, strict=True):
            assert 0 < np.abs(got - want).max() < 2e-2


@pytest.mark.slow
def test_hooks_of_ddp_are_called() -> None:
    """Lightning registers them on CUDA only, and says nothing elsewhere."""
    for calls, weights in run_ranks(2, runs.hooked, env=TORCHRUN):
        assert calls == 2 * runs.SAMPLES // runs.BATCH
        close(weights, by_hand("cpu"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp", "neuron_fsdp"])
def test_fabric_on_two_ranks(name: str, tmp_path: Path) -> None:
    for weights in run_ranks(2, runs.by_fabric, name, None, str(tmp_path), env=TORCHRUN):
        close(weights, by_hand("cpu"))


@pytest.mark.slow
def test_a_script_starts_its_own_ranks() -> None:
    command = [sys.executable, "-m", "examples.lightning_digits", "--devices", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "2 NeuronCores" in done.stdout
    correct = float(done.stdout.split("correct: ")[1].split(" %")[0])
    assert correct > 85


# What is chosen and what is refused.


def test_devices() -> None:
    assert parse_devices(2) == [0, 1]
    assert parse_devices("2") == [0, 1]
    assert parse_devices(-1) == [0, 1, 2, 3]
    assert parse_devices("-1") == [0, 1, 2, 3]
    assert parse_devices([3, 1]) == [3, 1]
    assert parse_devices("3,1") == [3, 1]
    assert parse_devices("2,") == [2]
    wrong: list[Any] = [0, 5, -2, [4], [-1], [0, 0], [], "0", ","]
    for devices in wrong:
        with pytest.raises(ValueError, match=r"this machine has 4 NeuronCores, 0 to 3|indices"):
            parse_devices(devices)
    with pytest.raises(ValueError, match=r"devices='all': a number of cores or indices"):
        parse_devices("all")
    others: list[Any] = [True, 1.5, None, {0}]
    for devices in others:
        with pytest.raises(TypeError, match="a number of cores or a list of their indices"):
            parse_devices(devices)


def test_one_device_and_no_strategy_is_refused() -> None:
    """Lightning makes the strategy for the CPU; nothing is trained there unasked."""
    run = runs.trainer(accelerator="neuron", devices=1)
    with pytest.raises(ValueError, match=r"chosen the device 'cpu'.*Say strategy='neuron'"):
        run.fit(runs.Classifier(), runs.batches())
    fabric = Fabric(accelerator="neuron", devices=1)
    with pytest.raises(ValueError, match=r"Say strategy='neuron' for one core"):
        fabric.launch()


def test_the_strategy_for_one_core_refuses_others() -> None:
    with pytest.raises(ValueError, match=r"is for one NeuronCore.*given neuron:0, neuron:1"):
        runs.trainer(accelerator="neuron", devices=2, strategy="neuron")
    with pytest.raises(ValueError, match=r"accelerator='neuron'.*it was given cpu"):
        runs.trainer(accelerator="cpu", devices=1, strategy="neuron")


def test_ddp_on_the_cpu_is_lightnings() -> None:
    run = runs.trainer(accelerator="cpu", devices=2, strategy="ddp", precision="bf16-mixed")
    assert isinstance(run.precision_plugin, MixedPrecision)
    assert run.precision_plugin.device == "cpu"
    strategy: Any = run.strategy
    assert strategy.determine_ddp_device_ids() is None


def test_the_entry_points_are_declared() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    for library in ("lightning.pytorch", "pytorch_lightning"):
        group = f"{library}.callbacks_factory"
        (point,) = declared[group].values()
        found = importlib.metadata.entry_points(group=group)
        assert point in [each.value for each in found], "run `make setup` again"


SPEAKS = """
import torch, {library} as pl
from torch.utils.data import DataLoader, TensorDataset
class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(2, 1)
    def training_step(self, batch, index):
        return self.net(batch[0]).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
quiet = dict(max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False)
data = DataLoader(TensorDataset(torch.ones(4, 2)))
pl.Trainer(accelerator="auto", **quiet).fit(Model(), data)
print("MARK")
import torch_neuronx.integrations.{module}
run = pl.Trainer(accelerator="neuron", devices=1, strategy="neuron", **quiet)
run.fit(Model(), data)
print(run.strategy.root_device, len(run.callbacks))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "module"),
    [("lightning.pytorch", "lightning"), ("pytorch_lightning", "pytorch_lightning")],
)
def test_auto_says_that_it_takes_the_cpu(library: str, module: str) -> None:
    pytest.importorskip(library, reason="the extra `clients` has it")
    command = [sys.executable, "-c", SPEAKS.format(library=library, module=module)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(LINE.format(count=4, module=module)) == 1
    # Lightning's own summary of the model is the one callback.
    assert done.stdout.rsplit("\n", 2)[1] == "neuron:0 1"


def test_the_classes_are_lightnings_own_with_changes() -> None:
    for name in ("SingleDevice", "DDP", "FSDP", "ModelParallel"):
        for made, library in ((ours.pytorch, pl), (ours.fabric, lightning.fabric)):
            theirs = getattr(library.strategies, f"{name}Strategy")
            assert issubclass(getattr(made, f"{name}Strategy"), theirs)
