"""What goes with `trace`: batches, cores, weights, partitions, buckets, analysis."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_neuronx
from torch_neuronx.inference.placement import cores_of

# PyTorch deprecates TorchScript, which is how traced models are saved.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

EPS = torch.finfo(torch.float32).eps


def make_net() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3)).eval()


NET = make_net()


def close(one: torch.Tensor, other: torch.Tensor) -> None:
    torch.testing.assert_close(one, other.detach(), rtol=16 * EPS, atol=16 * EPS)


@pytest.fixture(scope="module")
def batched() -> torch.jit.ScriptModule:
    traced = torch_neuronx.trace(NET, torch.rand(3, 4))
    assert torch_neuronx.dynamic_batch(traced) is traced
    return traced


@given(st.integers(0, 11), st.sampled_from(["cpu", "neuron:0"]))
@settings(max_examples=20, deadline=None)
def test_any_batch(batched: torch.jit.ScriptModule, rows: int, device: str) -> None:
    x = torch.rand(rows, 4)
    got = batched(x.to(device))
    assert str(got.device) == device
    close(got.cpu(), NET(x))


def test_dynamic_batch_errors(batched: torch.jit.ScriptModule) -> None:
    with pytest.raises(RuntimeError, match=r"float32\[3, 4\] as traced, with any first size"):
        batched(torch.rand(5, 5))
    two = torch_neuronx.trace(lambda x, y: x + y, (torch.rand(2, 3), torch.rand(1, 3)))
    with pytest.raises(ValueError, match=r"'x' was traced as float32\[2, 3\], 'y' as float32\[1"):
        torch_neuronx.dynamic_batch(two)
    total = torch_neuronx.trace(torch.sum, torch.rand(2, 3))
    with pytest.raises(ValueError, match=r"output 0 has the shape \[\]"):
        torch_neuronx.dynamic_batch(total)
    same = torch_neuronx.trace(lambda x, y: x + y, (torch.rand(2, 3), torch.rand(2, 3)))
    torch_neuronx.dynamic_batch(same)
    with pytest.raises(RuntimeError, match=r"'x'.* has 4 rows, input 'y'.* has 5"):
        same(torch.rand(4, 3), torch.rand(5, 3))
    with pytest.raises(TypeError, match="got Linear"):
        torch_neuronx.dynamic_batch(torch.nn.Linear(1, 1))  # type: ignore[arg-type]


def test_data_parallel() -> None:
    traced = torch_neuronx.trace(NET, torch.rand(2, 4))
    parallel = torch_neuronx.DataParallel(traced, device_ids=[0, "nc:1"])
    assert parallel.num_workers == 4
    assert cores_of(traced) == [0, 1]
    for rows in (1, 4, 11):
        x = torch.rand(rows, 4)
        close(parallel(x), NET(x))
    parallel.split_size, parallel.num_workers = 3, 2
    x = torch.rand(11, 4)
    close(parallel(x), NET(x))
    parallel.split_size = None
    parallel.disable_dynamic_batching()
    close(parallel(x[:4]), NET(x[:4]))
    with pytest.raises(ValueError, match=r"the size must be 2 \* 2 = 4"):
        parallel(x)
    columns = torch_neuronx.trace(lambda x: {"y": x * 2, "z": [x]}, torch.rand(3, 2))
    sideways = torch_neuronx.DataParallel(columns, [0, 1], dim=1)
    wide = torch.rand(3, 4)
    assert torch.equal(sideways(wide)["y"], wide * 2)
    for wrong in ([-1], ["core:0"], [10**6], []):
        with pytest.raises(ValueError, match="device_ids"):
            torch_neuronx.DataParallel(traced, wrong)


def test_placement(tmp_path: Path) -> None:
    traced = torch_neuronx.trace(NET, torch.rand(2, 4))
    path = tmp_path / "net.pt"
    torch.jit.save(traced, path)
    one, two = torch.jit.load(path), torch.jit.load(path)
    count = torch_neuronx.neuron.device_count()
    assert (cores_of(one)[0] + 1) % count == cores_of(two)[0]
    with torch_neuronx.experimental.neuron_cores_context(start_nc=2, nc_count=2):
        placed = torch.jit.load(path)
    assert cores_of(placed) == [2, 3]
    with torch_neuronx.multicore_context():
        assert cores_of(torch.jit.load(path)) == list(range(count))
    torch_neuronx.set_neuron_cores(placed, start_nc=1)
    assert cores_of(placed) == [1]
    torch_neuronx.set_multicore(placed)
    assert len(cores_of(placed)) == count
    for start, cores in ((0, 0), (0, count + 1), (count, 1), (-2, 1), (count - 1, 2)):
        with pytest.raises(ValueError, match="nc"):
            torch_neuronx.set_neuron_cores(placed, start, cores)
    with pytest.raises(ValueError, match="device_id"):
        torch_neuronx.move_trace_to_device(placed, count)


def test_when_models_are_loaded(tmp_path: Path) -> None:
    traced = torch_neuronx.trace(NET, torch.rand(2, 4))
    torch_neuronx.async_load(traced)
    torch.jit.save(traced, tmp_path / "async.pt")
    torch_neuronx.lazy_load(traced)
    torch_neuronx.async_load(traced, enable_async_load=False)
    torch.jit.save(traced, tmp_path / "lazy.pt")
    lazy, background = (torch.jit.load(tmp_path / f"{name}.pt") for name in ("lazy", "async"))
    assert cores_of(lazy) == []
    x = torch.rand(2, 4)
    for model in (lazy, background):
        close(model(x), NET(x))
        assert len(cores_of(model)) == 1
    with torch_neuronx.neuron_cores_context(3):
        later = torch.jit.load(tmp_path / "lazy.pt")
    close(later(x), NET(x))
    assert cores_of(later) == [3]


def test_separate_weights(tmp_path: Path) -> None:
    other = make_net()
    traced = torch_neuronx.trace(NET, torch.rand(2, 4), inline_weights_to_neff=False)
    assert set(traced.state_dict()) == set(NET.state_dict())
    x = torch.rand(2, 4)
    for new in (other, NET.state_dict()):
        torch_neuronx.replace_weights(traced, new)
        close(traced(x), (other if new is other else NET)(x))
    torch_neuronx.move_trace_to_device(traced, 1)
    assert {p.device.index for p in traced.parameters()} == {1}
    torch_neuronx.replace_weights(traced, other)
    close(traced(x.to("neuron:1")).cpu(), other(x))
    torch.jit.save(traced, tmp_path / "net.pt")
    close(torch.jit.load(tmp_path / "net.pt", map_location="cpu")(x), other(x))
    with pytest.raises(ValueError, match=r"'0.weight' must be torch.float32\[4, 4\]"):
        torch_neuronx.replace_weights(traced, {**NET.state_dict(), "0.weight": torch.ones(1)})
    with pytest.raises(ValueError, match=r"have no '0.weight'"):
        torch_neuronx.replace_weights(traced, {})
    inline = torch_neuronx.trace(NET, torch.rand(2, 4))
    with pytest.warns(UserWarning, match="nothing to replace"):
        torch_neuronx.replace_weights(inline, other)


class Sorted(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 8), torch.nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.log_softmax(self.b(torch.relu(self.a(x))), 1)
        return torch.sort(out)[0] + 1


def test_analyze_and_partition(tmp_path: Path) -> None:
    model, x = Sorted().eval(), torch.rand(2, 4)
    found = torch_neuronx.analyze(model, x)
    assert found["supported_operators"]["aten::linear"] == 2
    (failed,) = found["unsupported_operators"]
    assert (failed["kind"], failed["failureAt"]) == ("aten::sort", "neuronx-cc")
    assert "in forward" in failed["call"]
    config = torch_neuronx.PartitionerConfig()
    traced = torch_neuronx.trace(model, x, partitioner_config=config)
    torch.jit.save(traced, tmp_path / "sorted.pt")
    loaded = torch.jit.load(tmp_path / "sorted.pt")
    names = [name for name, _ in loaded.named_children()]
    assert names == ["part_0_neuron", "part_1_cpu", "part_2_neuron"]
    close(loaded(x), model(x))
    assert loaded(x.to("neuron")).device.type == "neuron"
    for limit in (
        {"max_subgraph_count": 2},
        {"min_subgraph_size": 2},
        {"model_support_percentage_threshold": 0.99},
    ):
        config = torch_neuronx.PartitionerConfig(**limit)
        with pytest.raises(ValueError, match=next(iter(limit))):
            torch_neuronx.trace(model, x, partitioner_config=config)
    with pytest.raises(ValueError, match="at least 1"):
        torch_neuronx.PartitionerConfig(min_subgraph_size=0)


def kernel(inputs: list[torch.Tensor]) -> tuple[list[torch.Tensor], torch.Tensor]:
    x = inputs[0]
    size, number = 2, 0
    if x.size(0) > 2:
        size, number = 8, 1
    return [torch.nn.functional.pad(x, [0, 0, 0, size - x.size(0)])], torch.tensor(number)


def test_buckets(tmp_path: Path) -> None:
    config = torch_neuronx.BucketModelConfig(lambda: torch.jit.script(kernel))
    model = torch_neuronx.bucket_model_trace(
        lambda: (NET, {}), [torch.rand(2, 4), torch.rand(8, 4)], config
    )
    torch.jit.save(model, tmp_path / "buckets.pt")
    loaded = torch.jit.load(tmp_path / "buckets.pt")
    for rows, bucket in ((1, 2), (5, 8)):
        x = torch.rand(rows, 4)
        got = loaded(x)
        assert len(got) == bucket
        close(got[:rows], NET(x))
    with pytest.raises(NotImplementedError, match="share a state"):
        torch_neuronx.BucketModelConfig(lambda: None, shared_state_buffer=[])
