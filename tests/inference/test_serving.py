"""What goes with `trace`: batches, cores, weights, partitions, buckets, analysis."""

import threading
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_neuronx
from torch_neuronx.inference.placement import cores_of

# PyTorch deprecates TorchScript, which is how traced models are saved.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit")

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
    with pytest.raises(ValueError, match=r"float32\[3, 4\] as traced, with any first size"):
        batched(torch.rand(5, 5))
    two = torch_neuronx.trace(lambda x, y: x + y, (torch.rand(2, 3), torch.rand(1, 3)))
    with pytest.raises(ValueError, match=r"'x' was traced as float32\[2, 3\], 'y' as float32\[1"):
        torch_neuronx.dynamic_batch(two)
    total = torch_neuronx.trace(torch.sum, torch.rand(2, 3))
    with pytest.raises(ValueError, match=r"output 0 has the shape \[\]"):
        torch_neuronx.dynamic_batch(total)
    same = torch_neuronx.trace(lambda x, y: x + y, (torch.rand(2, 3), torch.rand(2, 3)))
    torch_neuronx.dynamic_batch(same)
    with pytest.raises(ValueError, match=r"'x'.* has 4 rows, input 'y'.* has 5"):
        same(torch.rand(4, 3), torch.rand(5, 3))
    with pytest.raises(TypeError, match="got Linear"):
        torch_neuronx.dynamic_batch(torch.nn.Linear(1, 1))  # type: ignore[arg-type]


def test_chunks_run_at_the_same_time() -> None:
    """Two host operators that wait for each other, one on each core."""
    meeting = threading.Barrier(2)

    @torch.library.custom_op("neuron_test_serving::meet", mutates_args=())
    def meet(x: torch.Tensor) -> torch.Tensor:
        meeting.wait(timeout=30)
        return x.clone()

    @meet.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    traced = torch_neuronx.trace(lambda x: meet(x) + 1, torch.rand(1, 2))
    torch_neuronx.dynamic_batch(traced)
    torch_neuronx.set_neuron_cores(traced, 0, 2)
    for rows in (2, 4):
        x = torch.rand(rows, 2)
        assert torch.equal(traced(x), x + 1)
        # A chunk that fails ends the call, after the others.
    meeting.abort()
    with pytest.raises(RuntimeError, match="BrokenBarrierError"):
        traced(torch.rand(2, 2))


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
    wrong = torch_neuronx.BucketModelConfig(lambda: torch.jit.script(one_too_many))
    model = torch_neuronx.bucket_model_trace(lambda: (NET, {}), [torch.rand(2, 4)], wrong)
    with pytest.raises(torch_neuronx.InputError, match="bucket_kernel chose bucket 1 of 1"):
        model(torch.rand(2, 4))


def one_too_many(inputs: list[torch.Tensor]) -> tuple[list[torch.Tensor], torch.Tensor]:
    return inputs, torch.tensor([1])


class Memory(torch.nn.Module):
    """Adds every call's row to a cache of so many rows, the newest last."""

    rows: torch.Tensor
    calls: torch.Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.rows = torch.nn.Parameter(torch.zeros(size, 2), requires_grad=False)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int32))

    def forward(self, x: torch.Tensor, pad: torch.Tensor) -> tuple[torch.Tensor, ...]:
        new = torch.cat([self.rows[1:], x])
        return new.sum(0) + 0 * pad.sum(), new, self.calls + 1


def make_memory(size: int) -> tuple[torch.nn.Module, dict[torch.Tensor, int]]:
    memory = Memory(size)
    return memory, {memory.calls: 2, memory.rows: 1}


def by_width(inputs: list[torch.Tensor]) -> tuple[list[torch.Tensor], torch.Tensor]:
    number = 0
    if inputs[1].size(0) > 2:
        number = 1
    return inputs, torch.tensor([number])


def newest(
    shapes: list[list[list[int]]], states: list[torch.Tensor], number: torch.Tensor
) -> list[torch.Tensor]:
    """The last rows of a state, as many as the bucket has."""
    found: list[torch.Tensor] = []
    for i, shape in enumerate(shapes[int(number)]):
        state = states[i]
        for dim, size in enumerate(shape):
            state = torch.ops.aten.slice(state, dim, state.size(dim) - size, state.size(dim))
        found.append(state)
    return found


def test_buckets_share_a_state(tmp_path: Path) -> None:
    """Two buckets see the last two and four rows of one cache."""
    shared = [torch.zeros((), dtype=torch.int32), torch.zeros(4, 2)]
    config = torch_neuronx.BucketModelConfig(
        lambda: torch.jit.script(by_width),
        shared_state_buffer=shared,
        shared_state_buffer_preprocessor=lambda: torch.jit.script(newest),
        func_kwargs=[{"size": 2}, {"size": 4}],
    )
    examples = [(torch.zeros(1, 2), torch.zeros(2)), (torch.zeros(1, 2), torch.zeros(4))]
    model = torch_neuronx.bucket_model_trace(make_memory, examples, config)
    torch.jit.save(model, tmp_path / "memory.pt")
    rows = torch.zeros(4, 2)
    for calls, width in enumerate((4, 2, 2, 4, 2), start=1):
        if calls == 4:
            torch.jit.save(model, tmp_path / "later.pt")  # with what the state is now
            model = torch.jit.load(tmp_path / "later.pt")
            torch_neuronx.move_trace_to_device(model, 2)
        x = torch.full((1, 2), float(calls))
        on_core = x.to("neuron:2") if calls == 5 else x
        got = model(on_core, torch.zeros(width, device=on_core.device))
        assert got.device == on_core.device
        rows[-width:] = torch.cat([rows[-width:][1:], x])
        assert torch.equal(got.cpu(), rows[-width:].sum(0))
        held = dict(model.named_buffers())
        assert torch.equal(held["shared_state_1"].cpu(), rows)
        assert int(held["shared_state_0"]) == calls
    assert not shared[1].any()
    fresh = torch.jit.load(tmp_path / "memory.pt")
    assert fresh(torch.ones(1, 2), torch.zeros(4)).tolist() == [1.0, 1.0]


def test_shared_states_that_do_not_fit() -> None:
    examples = [(torch.zeros(1, 2), torch.zeros(2)), (torch.zeros(1, 2), torch.zeros(4))]
    for shared, preprocessor, text in (
        ([torch.zeros(())], None, "has 1 tensors, but bucket 0 has 2 states"),
        ([torch.zeros(()), torch.zeros(4, 2)], None, r"'calls' as int32\[\], but gets .* 0"),
        ([torch.zeros((), dtype=torch.int32), torch.zeros(4, 2)], None,
         r"'rows' as float32\[2, 2\], but gets .* float32\[4, 2\]; a shared_state_buffer_pre"),
    ):  # fmt: skip
        config = torch_neuronx.BucketModelConfig(
            lambda: torch.jit.script(by_width),
            shared_state_buffer=shared,
            shared_state_buffer_preprocessor=preprocessor,
            func_kwargs={"size": 2},
        )
        with pytest.raises(ValueError, match=text):
            torch_neuronx.bucket_model_trace(make_memory, examples[:1], config)
    with pytest.raises(TypeError, match=r"shared_state_buffer\[0\] is a int"):
        torch_neuronx.BucketModelConfig(lambda: None, shared_state_buffer=[1])  # type: ignore[list-item]
