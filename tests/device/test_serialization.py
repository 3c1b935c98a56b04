"""Saving, loading, pickling and copying."""

import copy
import io
import pickle
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from torch_neuronx import neuron

DEVICE = torch.device("neuron:1")
DTYPES = [
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.bool,
    torch.complex64,
    torch.float8_e4m3fn,
]


def values(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(12.0).view(3, 4).to(dtype).to(DEVICE)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("weights_only", [True, False])
def test_save_and_load(tmp_path: Path, dtype: torch.dtype, weights_only: bool) -> None:
    x = values(dtype)
    torch.save(x, tmp_path / "x.pt")
    loaded = torch.load(tmp_path / "x.pt", weights_only=weights_only)
    assert loaded.device == DEVICE
    assert loaded.dtype == dtype
    # 8-bit floats have no comparison on any device; their bytes say all.
    assert loaded.cpu().view(torch.uint8).equal(x.cpu().view(torch.uint8))


@pytest.mark.parametrize("target", ["cpu", "neuron:2", torch.device("neuron:3")])
def test_map_location(tmp_path: Path, target: str | torch.device) -> None:
    torch.save({"x": values()}, tmp_path / "x.pt")
    loaded = torch.load(tmp_path / "x.pt", map_location=target)["x"]
    assert loaded.device == torch.device(target)
    assert loaded.cpu().equal(values().cpu())


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize(
    ("target", "index"),
    [
        ("neuron", 2),
        ("privateuseone", 2),
        ("privateuseone:0", 0),
        ("privateuseone:3", 3),
        (torch.device("privateuseone:3"), 3),
        ({"neuron:1": "privateuseone:3"}, 3),
    ],
    ids=str,
)
def test_map_location_by_either_name(
    tmp_path: Path, target: Any, index: int, weights_only: bool
) -> None:
    """A device without an index is the current one, and the tensor names it."""
    torch.save({"x": values()}, tmp_path / "x.pt")
    with neuron.device(2):
        loaded = torch.load(tmp_path / "x.pt", map_location=target, weights_only=weights_only)["x"]
    assert loaded.device == torch.device("neuron", index)
    assert loaded.cpu().equal(values().cpu())


@pytest.mark.parametrize("target", ["privateuseone:99", "privateuseone1", "neuron:99"])
def test_map_location_that_is_not_there(tmp_path: Path, target: str) -> None:
    torch.save(values(), tmp_path / "x.pt")
    text = "device_count|don't know how to restore data location"
    with pytest.raises(RuntimeError, match=text):
        torch.load(tmp_path / "x.pt", map_location=target)


def test_map_location_by_function_and_table(tmp_path: Path) -> None:
    torch.save(values(), tmp_path / "x.pt")
    tags: list[str] = []

    def keep_on_host(storage: Any, tag: str) -> Any:
        tags.append(tag)
        return storage

    assert torch.load(tmp_path / "x.pt", map_location=keep_on_host).device.type == "cpu"
    assert tags == ["neuron:1"]
    moved = torch.load(tmp_path / "x.pt", map_location={"neuron:1": "neuron:0"})
    assert moved.device == torch.device("neuron:0")


def test_load_of_a_device_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save(values(), path)
    raw = path.read_bytes()
    torch.save(torch.zeros(3, 4), path)
    renamed = raw.replace(b"neuron:1", b"neuron:9")
    if renamed == raw:
        pytest.fail("the file doesn't hold the location tag in the clear")
    path.write_bytes(renamed)
    with pytest.raises(RuntimeError, match=r"device|checksum|CRC"):
        torch.load(path)
    assert torch.load(io.BytesIO(raw), map_location="cpu").device.type == "cpu"


def test_shared_storage_stays_shared(tmp_path: Path) -> None:
    x = values()
    torch.save([x, x[1:], x.t()], tmp_path / "x.pt")
    whole, part, turned = torch.load(tmp_path / "x.pt")
    assert turned.stride() == x.t().stride()
    part.fill_(-1)
    assert whole[1:].eq(-1).all()
    assert turned[:, 1:].eq(-1).all()


def test_state_dict_of_model_and_optimizer(tmp_path: Path) -> None:
    model = nn.Linear(3, 3).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 3, device=DEVICE)).sum().backward()
    optimizer.step()
    torch.save([model.state_dict(), optimizer.state_dict()], tmp_path / "s.pt")
    weights, state = torch.load(tmp_path / "s.pt", map_location="cpu")
    other = nn.Linear(3, 3)
    other.load_state_dict(weights)
    other_optimizer = torch.optim.AdamW(other.parameters())
    other_optimizer.load_state_dict(state)
    torch.testing.assert_close(other.weight, model.weight.cpu())
    back = nn.Linear(3, 3).to(DEVICE)
    back.load_state_dict(weights)
    assert back.weight.device == DEVICE
    moments = (
        optimizer.state[model.weight]["exp_avg"],
        other_optimizer.state[other.weight]["exp_avg"],
    )
    torch.testing.assert_close(moments[0].cpu(), moments[1])


def test_file_saved_on_the_host_is_the_same_on_the_device(tmp_path: Path) -> None:
    torch.save(values().cpu(), tmp_path / "x.pt")
    assert torch.load(tmp_path / "x.pt", map_location=DEVICE).equal(values())


def test_memory_mapped_file(tmp_path: Path) -> None:
    torch.save(values().cpu(), tmp_path / "x.pt")
    mapped = torch.load(tmp_path / "x.pt", mmap=True, map_location="cpu")
    assert mapped.to(DEVICE).equal(values())


def test_old_format(tmp_path: Path) -> None:
    torch.save(values(), tmp_path / "x.pt", _use_new_zipfile_serialization=False)
    loaded = torch.load(tmp_path / "x.pt")
    assert loaded.device == DEVICE
    assert loaded.equal(values())


def test_safetensors(tmp_path: Path) -> None:
    tensors = {"a": values(), "b": values(torch.bfloat16)}
    save_file(tensors, tmp_path / "x.safetensors")
    # safetensors 0.8 refuses names that it doesn't know, but passes any index on to torch.
    for target in ("cpu", 2):
        loaded = load_file(tmp_path / "x.safetensors", device=target)
        assert loaded["a"].device == torch.device(target)
        for name, tensor in tensors.items():
            assert loaded[name].cpu().equal(tensor.cpu())


def test_pickle() -> None:
    x = values()
    loaded = pickle.loads(pickle.dumps({"x": x, "p": nn.Parameter(x)}))  # noqa: S301
    assert loaded["x"].equal(x)
    assert loaded["x"].device == DEVICE
    assert isinstance(loaded["p"], nn.Parameter)


def test_deepcopy() -> None:
    x = values()
    x_copy, view_copy = copy.deepcopy([x, x[0]])
    assert x_copy.device == DEVICE
    assert x_copy.data_ptr() != x.data_ptr()
    view_copy.fill_(9)
    assert x_copy[0].eq(9).all()
    assert not x[0].eq(9).any()
    model = nn.Linear(2, 2).to(DEVICE)
    assert copy.deepcopy(model).weight.equal(model.weight)
    assert copy.copy(x).data_ptr() == x.data_ptr()


@pytest.mark.parametrize("keep", [0, 10, 200])
def test_truncated_file(tmp_path: Path, keep: int) -> None:
    buffer = io.BytesIO()
    torch.save(values(), buffer)
    (tmp_path / "x.pt").write_bytes(buffer.getvalue()[:keep])
    before = torch.accelerator.memory_allocated(DEVICE)
    with pytest.raises((RuntimeError, EOFError, pickle.UnpicklingError)):
        torch.load(tmp_path / "x.pt")
    assert torch.accelerator.memory_allocated(DEVICE) == before


def test_safetensors_truncated(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"a": values()}, path)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(SafetensorError, match="incomplete metadata, file not fully covered"):
        load_file(path, device=1)


def test_sharing_with_another_process_is_refused() -> None:
    """PyTorch 2.13 gives out-of-tree devices no way to do it; the remedy is a host tensor."""
    with pytest.raises(RuntimeError, match="_share_fd_: only available on CPU"):
        ForkingPickler.dumps(values())
