"""Every call of the Neuron SDK's guides for traced models, with models of our own.

The guides: trace, dynamic batching, DataParallel, core placement, lazy and asynchronous loading,
autobucketing, partitioner, analyze, replace_weights, and direct allocation of tensors in HBM.
"""

import json
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torch_neuronx
from torch_neuronx import _C
from torch_neuronx.inference.placement import cores_of

# PyTorch deprecates TorchScript, which is how traced models are saved.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit")

EPS = torch.finfo(torch.float32).eps


class Picture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.conv(x) + 1
        return result


def close(one: torch.Tensor, other: torch.Tensor) -> None:
    # 27 products a value, added in another order.
    torch.testing.assert_close(one, other.detach(), rtol=64 * EPS, atol=64 * EPS)


@pytest.fixture(scope="module")
def picture() -> Picture:
    torch.manual_seed(0)
    return Picture().eval()


@pytest.fixture(scope="module")
def image() -> torch.Tensor:
    return torch.rand(1, 3, 6, 6)


@pytest.fixture
def saved(picture: Picture, image: torch.Tensor, tmp_path: Path) -> Path:
    torch.jit.save(torch_neuronx.trace(picture, image), tmp_path / "model.pt")
    return tmp_path / "model.pt"


# ---- trace -------------------------------------------------------------------------------------


def test_trace_of_a_function(tmp_path: Path) -> None:
    def func(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return 2 * x + y

    trace = torch_neuronx.trace(func, (torch.rand(3), torch.rand(3)))
    torch.jit.save(trace, str(tmp_path / "func.pt"))
    loaded = torch.jit.load(str(tmp_path / "func.pt"))
    x, y = torch.rand(3), torch.rand(3)
    assert torch.equal(loaded(x, y), func(x, y))


def test_separate_weights_without_moving(picture: Picture, image: torch.Tensor) -> None:
    trace = torch_neuronx.trace(picture, image, inline_weights_to_neff=False)
    close(trace(image), picture(image))  # weights on the CPU: slower, not wrong
    torch_neuronx.move_trace_to_device(trace, 0)
    close(trace(image), picture(image))


def test_compile_for_another_machine(picture: Picture, image: torch.Tensor, tmp_path: Path) -> None:
    trace = torch_neuronx.trace(picture, image, compiler_args="--target trn2", cpu_backend=True)
    assert cores_of(trace) == []
    torch.jit.save(trace, tmp_path / "model.pt")
    close(torch.jit.load(tmp_path / "model.pt")(image), picture(image))


def test_compiler_workdir(picture: Picture, image: torch.Tensor, tmp_path: Path) -> None:
    """What is left there can be unpacked, and names what it was made of."""
    from neuronxcc.neff import read_neff  # noqa: PLC0415

    folder = tmp_path / "new" / "folder"
    torch_neuronx.trace(
        picture, image, compiler_workdir=folder, compiler_args=["-O1", "--auto-cast", "none"]
    )
    found = read_neff((folder / "graph.neff").read_bytes())
    inputs = [buffer for buffer in found.program.buffers if buffer.kind == "input"]
    assert [tuple(buffer.shape) for buffer in inputs] == [(1, 3, 6, 6)]  # weights are inside
    assert "conv" in (folder / "graph.ir.txt").read_text()
    command = (folder / "command.txt").read_text()
    assert command.startswith("neuronx-cc compile ")
    assert "PASS" in (folder / "log-neuron-cc.txt").read_text()
    config = torch_neuronx.BucketModelConfig(lambda: torch.jit.script(by_width))
    examples = [torch.rand(1, 2), torch.rand(1, 4)]
    torch_neuronx.bucket_model_trace(
        lambda: (nn.ReLU(), {}), examples, config, compiler_workdir=tmp_path / "buckets"
    )
    names = sorted(path.parent.name for path in (tmp_path / "buckets").glob("*/graph.neff"))
    assert names == ["bucket_0", "bucket_1"]


def by_width(inputs: list[torch.Tensor]) -> tuple[list[torch.Tensor], torch.Tensor]:
    x = inputs[0]
    size, number = 2, 0
    if x.size(1) > 2:
        size, number = 4, 1
    return [torch.nn.functional.pad(x, [0, size - x.size(1)])], torch.tensor([number])


def test_dynamic_batch(picture: Picture, image: torch.Tensor) -> None:
    trace = torch_neuronx.dynamic_batch(torch_neuronx.trace(picture, image))
    batch = torch.rand(8, 3, 6, 6)
    close(trace(batch), picture(batch))
    with pytest.raises(ValueError, match=r"must be float32\[1, 3, 6, 6\]"):
        trace(torch.rand(3, 2, 6, 6))


def test_exported_programs_from_a_file(picture: Picture, tmp_path: Path) -> None:
    """torch.export with a dynamic batch, saved, loaded, traced, saved, loaded."""
    example = torch.rand(2, 3, 6, 6)
    program = torch.export.export(
        picture, (example,), dynamic_shapes={"x": {0: torch.export.Dim("batch")}}
    )
    torch.export.save(program, tmp_path / "program.pt2")
    trace = torch_neuronx.trace(torch.export.load(tmp_path / "program.pt2"), example)
    torch.jit.save(trace, tmp_path / "model.pt")
    loaded = torch.jit.load(tmp_path / "model.pt")
    for rows in (1, 2, 5):
        batch = torch.rand(rows, 3, 6, 6)
        close(loaded(batch), picture(batch))


# ---- DataParallel ------------------------------------------------------------------------------


def test_data_parallel_by_default(saved: Path, picture: Picture) -> None:
    parallel = torch_neuronx.DataParallel(torch.jit.load(saved))
    assert len(parallel.device_ids) == torch_neuronx.neuron.device_count()
    assert parallel.num_workers == 2 * len(parallel.device_ids)
    for rows in (2, 3, 5):
        batch = torch.rand(rows, 3, 6, 6)
        close(parallel(batch), picture(batch))


def test_data_parallel_along_another_dimension(saved: Path, picture: Picture) -> None:
    parallel = torch_neuronx.DataParallel(torch.jit.load(saved), device_ids=[0, 1], dim=2)
    wide = torch.rand(1, 3, 12, 6)
    wanted = torch.cat([picture(part) for part in wide.split(6, 2)], 2)
    close(parallel(wide), wanted)


def test_data_parallel_without_dynamic_batch(saved: Path, picture: Picture) -> None:
    parallel = torch_neuronx.DataParallel(
        torch.jit.load(saved), device_ids=["nc:0", "nc:1"], set_dynamic_batching=False
    )
    batch = torch.rand(2, 3, 6, 6)
    close(parallel(batch), picture(batch))
    with pytest.raises(ValueError, match=r"1 \* 2 = 2"):
        parallel(torch.rand(4, 3, 6, 6))


# ---- placement ---------------------------------------------------------------------------------


def cores_that_ran(model: torch.jit.ScriptModule, image: torch.Tensor, calls: int) -> list[int]:
    """On which core every call ran: where it allocated memory."""

    def allocations() -> list[int]:
        return [
            torch.neuron.memory_stats(core)["allocation.all.allocated"]  # type: ignore[attr-defined]
            for core in range(torch_neuronx.neuron.device_count())
        ]

    found = []
    for _ in range(calls):
        before = allocations()
        model(image)
        ran = [i for i, (a, b) in enumerate(zip(before, allocations(), strict=True)) if a != b]
        assert len(ran) == 1, ran
        found += ran
    return found


def test_replicas_take_turns(saved: Path, image: torch.Tensor) -> None:
    with torch_neuronx.experimental.neuron_cores_context(start_nc=2, nc_count=2):
        model = torch.jit.load(saved)
    turns = cores_that_ran(model, image, 4)
    assert turns in ([2, 3, 2, 3], [3, 2, 3, 2])
    torch_neuronx.experimental.set_neuron_cores(model, start_nc=0, nc_count=1)
    assert cores_that_ran(model, image, 2) == [0, 0]
    torch_neuronx.experimental.set_multicore(model)
    assert len(cores_of(model)) == torch_neuronx.neuron.device_count()
    with torch_neuronx.experimental.multicore_context():
        assert len(cores_of(torch.jit.load(saved))) == torch_neuronx.neuron.device_count()


_CORES = """
import sys, torch, torch_neuronx
from torch_neuronx.inference.placement import cores_of
models = [torch.jit.load(sys.argv[1]) for _ in range(3)]
print([cores_of(model) for model in models])
try:
    torch_neuronx.set_neuron_cores(models[0], 2)
except ValueError as error:
    print(error)
"""


@pytest.mark.slow
def test_visible_cores(saved: Path) -> None:
    """Cores are counted by process, from 0; models take them in turn."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _CORES, str(saved)],
        capture_output=True, text=True, check=False,
        env={**os.environ, "NEURON_RT_VISIBLE_CORES": "2-3"},
    )  # fmt: skip
    assert done.stdout == "[[0], [1], [0]]\nstart_nc=2 must be -1 or from 0 to 1\n", done.stderr


def test_lazy_and_asynchronous(picture: Picture, image: torch.Tensor, tmp_path: Path) -> None:
    trace = torch_neuronx.trace(picture, image)
    torch_neuronx.lazy_load(trace)
    torch_neuronx.async_load(trace)
    torch.jit.save(trace, tmp_path / "both.pt")
    model = torch.jit.load(tmp_path / "both.pt")
    assert cores_of(model) == []
    parallel = torch_neuronx.DataParallel(model, [1, 3])
    close(parallel(image), picture(image))
    assert cores_of(model) == [1, 3]


# ---- partitioner, analyze ----------------------------------------------------------------------


class Unsupported(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ordered, _ = torch.sort(torch.log_softmax(self.layers(x), dim=1))
        return ordered


def test_partitioner(tmp_path: Path) -> None:
    model, x = Unsupported().eval(), torch.rand(4, 8)
    config = torch_neuronx.PartitionerConfig(
        trace_kwargs={"compiler_workdir": tmp_path / "parts", "compiler_args": ["-O1"]},
        model_support_percentage_threshold=0.5,
        ops_to_partition={"aten::relu"},
        analyze_parameters={"additional_ignored_ops": set(), "max_workers": 2},
    )
    trace = torch_neuronx.trace(model, x, partitioner_config=config)
    kinds = [name.rsplit("_", 1)[1] for name, _ in trace.named_children()]
    assert kinds == ["neuron", "cpu", "neuron", "cpu"]
    close(trace(x), model(x))
    with pytest.raises(ValueError, match="analyze_parameters has cleanup"):
        torch_neuronx.PartitionerConfig(analyze_parameters={"cleanup": True})


def test_analyze(tmp_path: Path) -> None:
    found = torch_neuronx.analyze(
        torch.fft.fft, torch.arange(4.0), compiler_workdir=tmp_path / "w", max_workers=2,
        is_hf_transformers=True,
    )  # fmt: skip
    assert found["support_percentage"] == "0.00%"
    assert found["unsupported_operators"][0]["kind"].startswith("aten::fft")
    assert json.loads(json.dumps(found)) == found
    assert any((tmp_path / "w").iterdir())
    good = torch_neuronx.analyze(nn.Linear(2, 2), torch.rand(1, 2), cleanup=True)
    assert good["support_percentage"] == "100.00%"
    assert good["unsupported_operators"] == []
    assert set(good) >= {"torch_neuronx_version", "neuronx_cc_version"}


# ---- replace_weights ---------------------------------------------------------------------------


def test_weights_from_safetensors(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    one, two = (nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).eval() for _ in range(2))
    trace = torch_neuronx.trace(one, torch.rand(2, 4), inline_weights_to_neff=False)
    safetensors.save_model(two, str(tmp_path / "two.safetensors"))
    torch_neuronx.replace_weights(trace, safetensors.load_file(tmp_path / "two.safetensors"))
    x = torch.rand(2, 4)
    close(trace(x), two(x))


# ---- tensors in HBM ----------------------------------------------------------------------------


def test_tensors_in_hbm() -> None:
    """Both names of the device; all inputs there, or all outputs on the CPU; dynamic batches."""
    pair = torch_neuronx.trace(lambda a, b: (a @ b, a + b), (torch.rand(2, 2), torch.rand(2, 2)))
    torch_neuronx.move_trace_to_device(pair, 0)
    a = torch.rand(2, 2, device="neuron:0")
    for name in ("neuron:0", "privateuseone:0"):
        b = torch.rand(2, 2, device=name)
        assert [out.device for out in pair(a, b)] == 2 * [torch.device(type="neuron", index=0)]
    assert {out.device.type for out in pair(a, torch.rand(2, 2, device="cpu"))} == {"cpu"}
    single = torch_neuronx.dynamic_batch(torch_neuronx.trace(nn.ReLU(), torch.rand(1, 3)))
    torch_neuronx.move_trace_to_device(single, 0)
    assert single(torch.rand(5, 3, device="neuron:0")).device == a.device
    assert torch.neuron.memory_allocated(0) > 0  # type: ignore[attr-defined]


def test_a_chain_copies_nothing() -> None:
    """Between two traced models no operator runs and no tensor but the results is made."""
    first = torch_neuronx.trace(nn.Linear(256, 256).eval(), torch.rand(1, 256))
    second = torch_neuronx.trace(nn.Linear(256, 16).eval(), torch.rand(1, 256))
    for model in (first, second):
        torch_neuronx.move_trace_to_device(model, 0)
    x = torch.rand(1, 256, device="neuron:0")

    def calls() -> dict[str, int]:
        return {name: count for name, _, count, _ in _C.operator_counts()}

    second(first(x))
    _C.reset_operator_counts()
    allocated = torch.neuron.memory_allocated(0)  # type: ignore[attr-defined]
    between = first(x)
    last = second(between)
    copies = [name for name in calls() if "copy" in name or "to" in name.split("::")[-1].split("_")]
    assert copies == [], calls()
    grown = torch.neuron.memory_allocated(0) - allocated  # type: ignore[attr-defined]
    assert grown <= 2 * 1024 + 1024, grown  # two results, in units of 512 bytes
    assert last.shape == (1, 16)
    second(between.cpu())
    host = first(x.cpu())
    assert host.device.type == "cpu"
    assert any("copy" in name for name in calls()), calls()  # the count does see copies


# ---- what is ours ------------------------------------------------------------------------------


def test_nothing_of_ours_is_deprecated(tmp_path: Path) -> None:
    """Users see PyTorch's warnings about what they call, and none about what we call."""
    model, x = Unsupported().eval(), torch.rand(2, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel = None
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`torch.jit")
            kernel = torch.jit.script(by_width)
        config = torch_neuronx.PartitionerConfig()
        trace = torch_neuronx.trace(model, x, partitioner_config=config)
        plain = torch_neuronx.trace(nn.Linear(8, 2), x, compiler_workdir=tmp_path)
        torch_neuronx.dynamic_batch(plain)
        torch_neuronx.lazy_load(plain)
        torch_neuronx.set_neuron_cores(plain, 0, 2)
        torch_neuronx.DataParallel(plain)(torch.rand(5, 8))
        torch_neuronx.bucket_model_trace(
            lambda: (nn.ReLU(), {}),
            [torch.rand(1, 2), torch.rand(1, 4)],
            torch_neuronx.BucketModelConfig(lambda: kernel),
        )
        close(trace(x), model(x))


def test_users_still_see_what_they_cause(tmp_path: Path) -> None:
    trace = torch_neuronx.trace(nn.ReLU(), torch.rand(2))
    # The second is PyTorch's since 2.14.
    with pytest.warns((DeprecationWarning, FutureWarning), match="torch.jit.save"):
        torch.jit.save(trace, tmp_path / "model.pt")


@torch.library.custom_op("neuron_test_documented::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


_LIBRARY = """
import sys, torch, torch_neuronx
torch.library.define("neuron_test_documented::twice", "(Tensor x) -> Tensor")
torch.library.impl("neuron_test_documented::twice", "cpu", lambda x: x * 2)
try:
    torch.jit.load(sys.argv[1])
except RuntimeError as error:
    asks = "torch_neuronx.allow_operators('neuron_test_documented::twice')" in str(error)
    print("refused" if asks else error)
torch_neuronx.allow_operators("neuron_test_documented::twice")
print(torch.jit.load(sys.argv[1])(torch.ones(2)).tolist())
"""


def test_operators_of_others(tmp_path: Path) -> None:
    """In another process they have to be registered and allowed."""
    trace = torch_neuronx.trace(lambda x: twice(x) + 1, torch.ones(2))
    assert trace(torch.ones(2)).tolist() == [3.0, 3.0]
    torch.jit.save(trace, tmp_path / "model.pt")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _LIBRARY, str(tmp_path / "model.pt")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "refused\n[3.0, 3.0]\n", done.stderr
    with pytest.raises(ValueError, match="'nobody::knows': there is no such operator"):
        torch_neuronx.allow_operators("nobody::knows")
    with pytest.raises(ValueError, match="no such operator"):
        torch_neuronx.allow_operators("neuron_test_documented::twice.Nothing")


def test_calls_from_threads(saved: Path, picture: Picture) -> None:
    """One model on several cores, called from as many threads as one likes."""
    model = torch.jit.load(saved)
    torch_neuronx.set_neuron_cores(model, 0, 4)
    failures: list[Any] = []

    def work() -> None:
        for _ in range(5):
            image = torch.rand(1, 3, 6, 6)
            try:
                close(model(image), picture(image))
            except AssertionError as error:
                failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
