"""Copies between devices, types and layouts, and views against the CPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

PLACES = ["cpu", "neuron:0", "neuron:1"]
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int8]


def sample(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(1 + sum(shape))
    return (8 * torch.randn(shape, generator=generator)).to(dtype)


@pytest.mark.parametrize("source", PLACES)
@pytest.mark.parametrize("target", PLACES)
@pytest.mark.parametrize("non_blocking", [False, True])
def test_between_places(source: str, target: str, non_blocking: bool) -> None:
    host = sample(5, 7)
    x = host.clone().to(source)
    y = x.to(target, non_blocking=non_blocking)
    for place in {source, target} - {"cpu"}:  # without an argument it waits for the current core
        torch.accelerator.synchronize(place)
    assert y.device == torch.device(target)
    assert y.cpu().equal(host)
    assert (y is x) == (source == target)
    x.zero_()
    assert source == target or y.cpu().equal(host)


@pytest.mark.parametrize("source", DTYPES, ids=str)
@pytest.mark.parametrize("target", DTYPES, ids=str)
def test_change_of_type_and_place(source: torch.dtype, target: torch.dtype) -> None:
    host = sample(33, dtype=source)
    expected = host.to(target)
    assert host.to("neuron", target).cpu().equal(expected)
    assert host.to("neuron").to("cpu", target).equal(expected)
    assert host.to("neuron").to("neuron:1", target).cpu().equal(expected)
    assert torch.empty(33, dtype=target, device="neuron").copy_(host).cpu().equal(expected)


def test_channels_last_is_kept() -> None:
    host = sample(2, 3, 4, 5).to(memory_format=torch.channels_last)
    x = host.to("neuron")
    assert x.stride() == host.stride()
    assert x.to("neuron:1").stride() == host.stride()
    assert x.cpu().stride() == host.stride()
    y = x.to(memory_format=torch.contiguous_format)
    assert y.is_contiguous()
    assert y.cpu().equal(host)
    flat = host.to("neuron", memory_format=torch.contiguous_format)
    assert flat.is_contiguous()
    assert torch.empty_like(x).stride() == host.stride()


def test_strides_of_dense_tensors_are_kept() -> None:
    host = sample(3, 4, 5).permute(2, 0, 1)
    assert host.to("neuron").stride() == host.stride()
    assert host.to("neuron").clone().stride() == host.clone().stride()


def test_copy_broadcasts_and_refuses() -> None:
    x = torch.zeros(3, 4, device="neuron")
    x.copy_(torch.arange(4.0))
    assert x[2].tolist() == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match="must match the size"):
        x.copy_(torch.zeros(3, 3))


def test_copy_of_overlapping_views() -> None:
    x, y = torch.arange(10.0, device="neuron"), torch.arange(10.0)
    for t in (x, y):
        t[1:].copy_(t[:-1].clone())
    assert x.cpu().equal(y)


def test_copy_carries_gradients() -> None:
    x = torch.ones(3, requires_grad=True)
    y = torch.zeros(3, device="neuron").copy_(x * 2)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.device.type == "cpu"
    assert x.grad.tolist() == [2, 2, 2]


def test_data_assignment_moves_a_parameter() -> None:
    x = torch.ones(3, requires_grad=True)
    before = x
    x.data = x.data.to("neuron:1")
    assert x is before
    assert x.device == torch.device("neuron:1")
    (x * 2).sum().backward()
    assert x.grad is not None
    assert x.grad.device == torch.device("neuron:1")
    x.grad = None
    x.data = x.data.cpu()
    assert x.device.type == "cpu"


def test_module_moves_keep_parameters() -> None:
    model = torch.nn.Linear(2, 2)
    ids = [id(p) for p in model.parameters()]
    model.to("neuron").to("neuron:1").to("cpu").to("neuron", torch.bfloat16)
    assert [id(p) for p in model.parameters()] == ids
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


def test_special_values_survive() -> None:
    host = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-45, 3.4e38])
    back = host.to("neuron").to("neuron:1").cpu()
    assert back.view(torch.int32).equal(host.view(torch.int32))


@pytest.mark.parametrize("kind", ["conj", "neg", "sparse", "nested", "zero-dim", "empty"])
def test_unusual_tensors(kind: str) -> None:
    if kind == "conj":
        host = torch.tensor([1 + 2j, 3 - 1j]).conj()
    elif kind == "neg":
        host = torch.tensor([1 + 2j, 3 - 1j]).conj().imag
    elif kind == "sparse":
        host = torch.eye(3).to_sparse()
    elif kind == "nested":
        host = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    else:
        host = torch.tensor(3.0) if kind == "zero-dim" else torch.empty(0, 3)
    x = host.to("neuron")
    assert x.device.type == "neuron"
    assert x.layout == host.layout
    back = x.cpu()
    if kind == "nested":
        pairs = zip(back.unbind(), host.unbind(), strict=True)
        assert all(one.equal(other) for one, other in pairs)
    else:
        assert back.to_dense().equal(host.to_dense())


def test_python_side_of_a_tensor() -> None:
    x = torch.arange(3, device="neuron")
    assert x.tolist() == [0, 1, 2]
    assert x[2].item() == int(x[2]) == 2
    assert [1, 2, 3][x[1]] == 2
    assert bool(x[1])
    assert list(x) == [0, 1, 2]
    with pytest.raises(TypeError, match=r"can.t convert neuron.*numpy"):
        x.numpy()
    assert x.cpu().numpy().tolist() == [0, 1, 2]


View = Callable[[Tensor], Tensor]


@st.composite
def views(draw: st.DrawFn) -> tuple[tuple[int, ...], list[View]]:
    """A shape, and a chain of views that fits it; each is applied to both devices' tensors."""
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    host = torch.zeros(shape)
    chain: list[View] = []
    for _ in range(draw(st.integers(0, 4))):
        view = draw(st.sampled_from(_steps(draw, host)))
        host = view(host)
        chain.append(view)
    return shape, chain


def _steps(draw: st.DrawFn, x: Tensor) -> list[View]:
    dim = draw(st.integers(0, x.dim() - 1)) if x.dim() else 0
    steps: list[View] = [lambda t: t.unsqueeze(dim), lambda t: t.expand(2, *t.shape)]
    if x.dim():
        size = x.shape[dim]
        start, step = draw(st.integers(0, size - 1)), draw(st.integers(1, 3))
        other = draw(st.integers(0, x.dim() - 1))
        steps += [
            lambda t: t.narrow(dim, start, size - start),
            lambda t: t[(slice(None),) * dim + (slice(start, None, step),)],
            lambda t: t.transpose(dim, other),
            lambda t: t.select(dim, start),
            lambda t: t.flatten() if t.is_contiguous() else t,
        ]
    return steps


def follow(x: Tensor, chain: list[View]) -> Tensor:
    for view in chain:
        x = view(x)
    return x


@given(views(), st.sampled_from([torch.float32, torch.bfloat16, torch.int64]))
def test_any_view_reads_and_copies_alike(
    sampled: tuple[tuple[int, ...], list[View]], dtype: torch.dtype
) -> None:
    shape, chain = sampled
    host = sample(*shape, dtype=dtype)
    expected, got = follow(host, chain), follow(host.to("neuron"), chain)
    assert (got.shape, got.stride()) == (expected.shape, expected.stride())
    assert got.storage_offset() == expected.storage_offset()
    assert got.cpu().equal(expected)
    assert got.contiguous().cpu().equal(expected)
    assert got.to("neuron:1").cpu().equal(expected)
    assert got.float().cpu().equal(expected.float())
    assert torch.empty_like(got, device="cpu").copy_(got).equal(expected)


IN_PLACE: dict[str, Callable[[Tensor], Any]] = {
    "add": lambda t: t.add_(2),
    "mul by itself": lambda t: t.mul_(t),
    "fill": lambda t: t.fill_(3),
    "copy": lambda t: t.copy_(torch.full(t.shape, 5).to(t.device)),
    "clamp": lambda t: t.clamp_(-1, 1),
    "relu": torch.relu_,
    "masked": lambda t: t.masked_fill_(t > 0, 0),
    "out": lambda t: torch.add(t, 1, out=t),
}


@given(views(), st.sampled_from(sorted(IN_PLACE)))
def test_any_view_is_written_alike(
    sampled: tuple[tuple[int, ...], list[View]], operation: str
) -> None:
    shape, chain = sampled
    host = sample(*shape)
    device = host.to("neuron")
    target = follow(host, chain)
    if 0 in target.stride():  # an expanded view may not be written, on any device
        return
    IN_PLACE[operation](target)
    IN_PLACE[operation](follow(device, chain))
    assert device.cpu().equal(host)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=3), st.integers(-3, 3))
def test_rolled_flipped_and_joined_alike(shape: list[int], shift: int) -> None:
    host = sample(*shape)
    device = host.to("neuron")
    for function in (
        lambda t: t.roll(shift, 0),
        lambda t: t.flip(0),
        lambda t: torch.cat([t, t[:1], t]),
        lambda t: torch.stack([t, t], -1),
        lambda t: t.repeat(2, *[1] * (t.dim() - 1)),
    ):
        assert function(device).cpu().equal(function(host))
