"""Modules and optimizers: the same numbers as on the CPU, forward and backward."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn


def image() -> Tensor:
    return torch.randn(2, 4, 9, 9, generator=torch.Generator().manual_seed(0))


def sequence() -> Tensor:
    return torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(0))


def tokens() -> Tensor:
    return torch.tensor([[1, 2, 3], [4, 0, 9]])


MODULES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "Linear": (lambda: nn.Linear(8, 5), sequence),
    "Bilinear-free MLP": (
        lambda: nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 2)),
        sequence,
    ),
    "Conv2d": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1), image),
    "Conv2d grouped": (lambda: nn.Conv2d(4, 8, 3, groups=4, dilation=2), image),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(4, 3, 3, stride=2), image),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(4), image),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), image),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(4, affine=True), image),
    "LayerNorm": (lambda: nn.LayerNorm(8), sequence),
    "RMSNorm": (lambda: nn.RMSNorm(8), sequence),
    "MaxPool2d": (lambda: nn.MaxPool2d(3, 2), image),
    "AvgPool2d": (lambda: nn.AvgPool2d(2), image),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d(3), image),
    "Upsample": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), image),
    "PixelShuffle": (lambda: nn.PixelShuffle(2), image),
    "GELU": (nn.GELU, sequence),
    "GELU tanh": (lambda: nn.GELU("tanh"), sequence),
    "Softmax": (lambda: nn.Softmax(-1), sequence),
    "Embedding": (lambda: nn.Embedding(10, 4, padding_idx=0), tokens),
    "EmbeddingBag": (lambda: nn.EmbeddingBag(10, 4, mode="mean"), tokens),
    "LSTM": (lambda: nn.LSTM(8, 5, 2, batch_first=True, bidirectional=True), sequence),
    "GRU": (lambda: nn.GRU(8, 5, batch_first=True), sequence),
    "RNN": (lambda: nn.RNN(8, 5, batch_first=True), sequence),
    "TransformerEncoderLayer": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        sequence,
    ),
}


def outputs(result: Any) -> list[Tensor]:
    """The tensors of a result, which for recurrent modules is nested."""
    if isinstance(result, Tensor):
        return [result]
    return [tensor for part in result for tensor in outputs(part)]


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", MODULES)
def test_module(name: str, training: bool) -> None:
    make, make_input = MODULES[name]
    torch.manual_seed(0)
    host = make().train(training)
    device = copy.deepcopy(host).to("neuron")
    x = make_input()
    results = []
    for model in (host, device):
        where = "neuron" if model is device else "cpu"
        given = x.detach().to(where)
        given.requires_grad_(x.is_floating_point())
        out = outputs(model(given))
        sum(o.square().sum() for o in out).backward()  # type: ignore[union-attr]
        assert {o.device.type for o in out} == {where}
        grads = [p.grad for p in model.parameters()] + [given.grad]
        buffers = list(model.buffers())
        results.append([t.cpu() for t in [*out, *grads, *buffers] if t is not None])
    # Sums of at most a few hundred float32 products, in another order.
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-5)


def test_no_grad_transformer_takes_the_fast_path() -> None:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
    x = torch.randn(2, 5, 16)
    with torch.no_grad():
        expected = layer(x)
        layer.to("neuron")
        torch.testing.assert_close(layer(x.to("neuron")).cpu(), expected)


def test_packed_sequence_through_an_lstm() -> None:
    lstm = nn.LSTM(3, 4)
    packed = nn.utils.rnn.pack_sequence([torch.randn(4, 3), torch.randn(2, 3)])
    expected = lstm(packed)[0].data
    got = lstm.to("neuron")(packed.to(torch.device("neuron")))[0]  # type: ignore[arg-type]
    assert got.data.device.type == "neuron"
    torch.testing.assert_close(got.data.cpu(), expected)
    padded, lengths = nn.utils.rnn.pad_packed_sequence(got)
    assert padded.device.type == "neuron"
    assert lengths.tolist() == [4, 2]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_attention(causal: bool, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    host = [torch.randn(2, 3, 17, 8, generator=generator, dtype=dtype) for _ in range(3)]
    results = []
    for place, kind in (("cpu", torch.float64), ("cpu", dtype), ("neuron", dtype)):
        q, k, v = (t.detach().to(place, kind).requires_grad_() for t in host)
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        (out.float() if kind != torch.float64 else out).square().sum().backward()
        assert out.device.type == place
        results.append([t.cpu().double() for t in (out, q.grad, k.grad, v.grad) if t is not None])
    assert len(results[0]) == 4
    # At least as close to the exact result as the CPU's kernel, up to a rounding of the result and
    # those of sums in float32: over the width for a score, over the keys for what it weighs.
    sums = (8 + 17) * torch.finfo(torch.float32).eps
    for exact, cpu, got in zip(*results, strict=True):
        rounding = (torch.finfo(dtype).eps + sums) * exact.abs().max()
        assert (got - exact).abs().max() <= (cpu - exact).abs().max() + rounding


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "SGD fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "Adafactor": torch.optim.Adafactor,
    "LBFGS": lambda p: torch.optim.LBFGS(p, max_iter=4),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_follows_the_cpu(name: str) -> None:
    torch.manual_seed(0)
    host = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    device = copy.deepcopy(host).to("neuron")
    x, y = torch.randn(16, 6), torch.randn(16, 3)
    losses = []
    for model in (host, device):
        where = next(model.parameters()).device
        optimizer = OPTIMIZERS[name](list(model.parameters()))
        given, wanted = x.to(where), y.to(where)

        def closure(
            model: nn.Module = model,
            optimizer: torch.optim.Optimizer = optimizer,
            given: Tensor = given,
            wanted: Tensor = wanted,
        ) -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(given), wanted)
            loss.backward()
            return loss

        losses.append([optimizer.step(closure).item() for _ in range(5)])  # type: ignore[arg-type, attr-defined]
    assert losses[0][-1] < losses[0][0]
    # Five steps let rounding differences grow; the update rule itself is the same.
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    torch.testing.assert_close(
        [p.cpu() for p in device.parameters()], list(host.parameters()), rtol=1e-3, atol=1e-4
    )


def test_gradient_clipping() -> None:
    model = nn.Linear(4, 4).to("neuron")
    (100 * model(torch.ones(1, 4, device="neuron"))).sum().backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    assert norm.device.type == "neuron"
    clipped = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    assert clipped.norm().item() == pytest.approx(1.0, rel=1e-4)


def test_state_dict_loads_across_devices() -> None:
    host, device = nn.BatchNorm1d(3), nn.BatchNorm1d(3).to("neuron")
    device(torch.randn(8, 3, device="neuron"))
    host.load_state_dict(device.state_dict())
    assert host.running_mean is not None
    assert device.running_mean is not None
    assert host.running_mean.equal(device.running_mean.cpu())
    assert host.running_mean.device.type == "cpu"
