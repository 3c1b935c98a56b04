"""How operators reach the device: each kind of schema and registration, against the CPU.

Which operators work at all is the business of PyTorch's own operator tests; here stands one example
of every way to get there.
"""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.distributed.run import determine_local_world_size

DEVICE = torch.device("neuron")


def pair(*shape: int) -> tuple[Tensor, Tensor]:
    """The same random values on the host and on the device."""
    host = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    return host, host.to(DEVICE)


def test_lists_of_tensors() -> None:
    (a, x), (b, y) = pair(3), pair(2, 2)
    results = torch._foreach_add([x, y], [x, y], alpha=2)
    assert [r.device.type for r in results] == ["neuron", "neuron"]
    torch.testing.assert_close([r.cpu() for r in results], [3 * a, 3 * b])
    torch._foreach_mul_([x, y], 2)
    torch.testing.assert_close([x.cpu(), y.cpu()], [2 * a, 2 * b])
    norms = torch._foreach_norm([x, y])
    torch.testing.assert_close([n.cpu() for n in norms], [(2 * a).norm(), (2 * b).norm()])


def test_factories_without_a_tensor_argument() -> None:
    makers: tuple[Callable[..., Tensor], ...] = (
        lambda **k: torch.triu_indices(3, 4, **k),
        lambda **k: torch.linspace(0, 1, 7, **k),
        lambda **k: torch.eye(3, **k),
        lambda **k: torch.hann_window(8, **k),
        lambda **k: torch.full((2, 3), 7, **k),
    )
    for make in makers:
        assert make(device=DEVICE).device == torch.device("neuron:0")
        torch.testing.assert_close(make(device=DEVICE).cpu(), make())


def test_out_into_strided_memory() -> None:
    host, device = pair(4, 6)
    out_host, out_device = torch.zeros(6, 8), torch.zeros(6, 8, device=DEVICE)
    for function in (torch.abs, torch.exp, torch.sort):
        for x, out in ((host, out_host), (device, out_device)):
            target: Any = out.t()[2:6, :6]
            if function is torch.sort:
                target = (target, torch.empty(0, dtype=torch.int64, device=out.device))
            function(x, out=target)
        assert out_device.cpu().equal(out_host)


def test_out_is_resized_and_keeps_its_identity() -> None:
    out = torch.empty(0, device=DEVICE)
    x = torch.ones(3, 4, device=DEVICE)
    assert torch.add(x, x, out=out) is out
    assert out.shape == (3, 4)
    assert torch.cumprod(x, 0, out=out) is out
    with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
        torch.add(x[0], x[0], out=out)


def test_results_that_are_views_share_memory() -> None:
    x = torch.arange(12.0, device=DEVICE)
    for view in (
        x.view(3, 4),
        x.as_strided((2, 2), (1, 3)),
        x.unfold(0, 4, 2),
        torch.view_as_complex(x.view(6, 2)),
        x.view(torch.int32),
        x.split(5)[1],
        x.real,
        torch.ops.aten._reshape_alias(x, (4, 3), (3, 1)),
    ):
        assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_results_of_data_dependent_size() -> None:
    host, device = pair(30)
    assert device.masked_select(device > 0).cpu().equal(host.masked_select(host > 0))
    assert device.gt(0).nonzero().cpu().equal(host.gt(0).nonzero())
    assert device[device > 0].cpu().equal(host[host > 0])
    got, expected = (
        device.round().unique(return_counts=True),
        host.round().unique(return_counts=True),
    )
    assert [t.cpu().tolist() for t in got] == [t.tolist() for t in expected]


def test_indexing_with_host_indices() -> None:
    host, device = pair(5, 3)
    index = torch.tensor([4, 0])
    assert device[index].cpu().equal(host[index])
    assert device[index.to(DEVICE), 1].cpu().equal(host[index, 1])
    device[index] = 0
    host[index] = 0
    device[:, torch.tensor([True, False, True])] = -1
    host[:, torch.tensor([True, False, True])] = -1
    assert device.cpu().equal(host)


def test_several_results() -> None:
    host, device = pair(4, 4)
    for function in (torch.linalg.qr, torch.linalg.slogdet, lambda t: t.topk(2), torch.aminmax):
        for got, expected in zip(function(device), function(host), strict=True):
            assert got.device.type == "neuron"
            torch.testing.assert_close(got.cpu(), expected)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_sparse_tensors() -> None:
    host = torch.tensor([[0.0, 2], [3, 0]])
    dense = torch.ones(2, 2, device=DEVICE)
    for layout in (torch.sparse_coo, torch.sparse_csr):
        device = host.to(DEVICE).to_sparse(layout=layout)
        assert device.layout == layout
        assert (device @ dense).cpu().equal(host @ torch.ones(2, 2))
        assert device.to_dense().cpu().equal(host)


def test_complex_numbers() -> None:
    host = torch.view_as_complex(torch.randn(8, 2))
    device = host.to(DEVICE)
    torch.testing.assert_close(torch.fft.fft(device).cpu(), torch.fft.fft(host))
    torch.testing.assert_close((device * device.conj()).real.cpu(), host.abs() ** 2)


# Deprecated by PyTorch and still to be carried; it warns once in a process.
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor, torch.quantize_per_channel")
def test_quantized_tensors() -> None:
    host, device = pair(4, 4)
    expected = torch.quantize_per_tensor(host, 0.1, 10, torch.quint8)
    got = torch.quantize_per_tensor(device, 0.1, 10, torch.quint8)
    assert got.device.type == "neuron"
    assert got.q_scale() == expected.q_scale()
    assert got.int_repr().cpu().equal(expected.int_repr())
    assert got.dequantize().cpu().equal(expected.dequantize())
    fake = torch.fake_quantize_per_tensor_affine(device, 0.1, 0, -128, 127)
    assert fake.cpu().equal(torch.fake_quantize_per_tensor_affine(host, 0.1, 0, -128, 127))


def test_a_custom_operator_with_a_cpu_kernel_runs_on_the_device() -> None:
    with torch.library._scoped_library("torchneuron_test", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CPU")
        library.impl("twice", torch.empty_like, "Meta")
        twice = torch.ops.torchneuron_test.twice
        host, device = pair(3)
        assert twice(host).equal(host * 2)
        result = twice(device)
        assert result.device.type == "neuron"
        assert result.cpu().equal(host * 2)
        assert twice(device.to("meta")).device.type == "meta"


def test_a_custom_operator_for_the_device_is_preferred() -> None:
    with torch.library._scoped_library("torchneuron_test", "DEF") as library:
        library.define("where(Tensor x) -> Tensor")
        library.impl("where", lambda x: x + 1, "CPU")
        library.impl("where", lambda x: x + 2, "PrivateUse1")
        where = torch.ops.torchneuron_test.where
        assert where(torch.zeros(1)).item() == 1
        assert where(torch.zeros(1, device=DEVICE)).item() == 2


def test_an_operator_of_another_backend_is_refused() -> None:
    with torch.library._scoped_library("torchneuron_test", "DEF") as library:
        library.define("nowhere(Tensor x) -> Tensor")
        with pytest.raises(NotImplementedError, match="torchneuron_test::nowhere"):
            torch.ops.torchneuron_test.nowhere(torch.zeros(1, device=DEVICE))


def test_fake_tensors_know_the_device() -> None:
    with torch._subclasses.FakeTensorMode():
        x = torch.empty(2, 3, device=DEVICE)
        y = (x @ x.t()).relu()
    assert y.device == torch.device("neuron:0")
    assert y.shape == (2, 2)


def test_torchrun_counts_the_devices() -> None:
    assert determine_local_world_size("neuron") == torch.accelerator.device_count()
    assert determine_local_world_size("auto") == torch.accelerator.device_count()


def laid_out(draw: st.DrawFn, shape: list[int]) -> Tensor:
    """A tensor of a shape whose memory has its dimensions in some order, dense or with gaps."""
    order = draw(st.permutations(range(len(shape))))
    gaps = draw(st.lists(st.sampled_from([1, 1, 2]), min_size=len(shape), max_size=len(shape)))
    memory = torch.randn([shape[d] * gap for d, gap in zip(order, gaps, strict=True)])
    window = memory[tuple(slice(0, None, gap) for gap in gaps)]
    return window.permute([order.index(d) for d in range(len(shape))])


@st.composite
def same_or_other_layouts(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    a = laid_out(draw, shape)
    if draw(st.booleans()):
        return a, torch.randn_like(a)  # as the first where that is dense
    return a, laid_out(draw, shape)


BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "maximum": torch.maximum,
    "gelu of sum": lambda a, b: torch.nn.functional.gelu(a) + b,
    "where": lambda a, b: torch.where(a > 0, a, b),
    "silu": lambda a, b: torch.nn.functional.silu(a) * b,
}


@pytest.mark.parametrize("name", BINARY)
@given(operands=same_or_other_layouts())
def test_values_and_strides_in_every_layout(name: str, operands: tuple[Tensor, Tensor]) -> None:
    expected = BINARY[name](*operands)
    # A copy to the device keeps the strides of dense memory; as_strided keeps those of any.
    found = BINARY[name](*(same_strides(x) for x in operands))
    torch.testing.assert_close(found.cpu(), expected)
    assert found.stride() == expected.stride()


F = torch.nn.functional
OF_ONE: dict[str, Callable[[Tensor], Tensor]] = {
    name: getattr(torch, name)
    for name in ("abs", "cos", "exp", "isnan", "neg", "rsqrt", "sigmoid", "sin", "sqrt", "tanh")
} | {
    name: getattr(F, name)
    for name in ("elu", "gelu", "hardswish", "leaky_relu", "logsigmoid", "mish", "relu", "silu")
}


@pytest.mark.parametrize("shape", [(1, 2, 2, 1), (2, 1, 2), (1, 1, 3), (1, 2, 1, 2), (1,), (1, 1)])
def test_strides_of_dimensions_of_one(shape: tuple[int, ...]) -> None:
    """Memory is the same whatever they are; results have those that the CPU's have."""
    for order in itertools.permutations(range(len(shape))):
        dense = torch.rand([shape[i] for i in order]).permute(*map(order.index, range(len(shape))))
        for odd in (1, 2, 5):
            strides = [odd if n == 1 else s for n, s in zip(shape, dense.stride(), strict=True)]
            x = dense.as_strided(shape, strides)
            there = same_strides(x)
            for name, function in OF_ONE.items():
                assert function(there).stride() == function(x).stride(), (name, strides)


def same_strides(x: Tensor) -> Tensor:
    reach = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)) + 1
    memory = torch.as_strided(x, (reach,), (1,)).to(DEVICE)
    return memory.as_strided(x.shape, x.stride())


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_histogram_of_integers(dtype: torch.dtype) -> None:
    # Accelerators have it, PyTorch's CPU does not; transformers' mixtures of experts use it.
    experts = torch.tensor([0, 3, 3, 1, 7, 0, 9], dtype=dtype, device="neuron")
    counts = torch.histc(experts, bins=8, min=0, max=7)
    assert counts.dtype == dtype
    assert counts.tolist() == [2, 1, 0, 2, 0, 0, 0, 1]
    assert torch.histc(experts, bins=3).tolist() == [3, 2, 2]
    with pytest.raises(RuntimeError, match="max must be larger than min"):
        torch.histc(experts, bins=3, min=4, max=1)
