"""Autograd on the device: functions, hooks, checkpoints, threads."""

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

DEVICE = torch.device("neuron")


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=dtype).to(DEVICE).requires_grad_()


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        cube: Tensor = x**3
        return cube

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        assert x.device == gradients[0].device
        gradient: Tensor = gradients[0] * 3 * x**2
        return gradient


def test_gradients_equal_those_on_cpu() -> None:
    model = nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.LayerNorm(7), nn.Linear(7, 3))
    x = torch.randn(4, 5)
    grads = []
    for device in ("cpu", "neuron"):
        model.zero_grad()
        model.to(device)
        functional.cross_entropy(model(x.to(device)), torch.arange(4, device=device) % 3).backward()
        grads.append([p.grad.cpu() for p in model.parameters() if p.grad is not None])
    assert len(grads[0]) == 6
    torch.testing.assert_close(grads[1], grads[0])


def test_gradient_is_on_the_device_of_its_leaf() -> None:
    x = torch.ones(3, requires_grad=True)
    (x.to("neuron:1").to("neuron:2") * 2).sum().backward()
    assert x.grad is not None
    assert x.grad.device.type == "cpu"
    assert x.grad.tolist() == [2, 2, 2]
    y = torch.ones(3, device="neuron:1", requires_grad=True)
    y.exp().sum().backward()
    assert y.grad is not None
    assert y.grad.device == torch.device("neuron:1")
    # Where a gradient is zero by rule, autograd passes around a zero without memory.
    z = torch.ones(3, device="neuron:1", requires_grad=True)
    z.sgn().sum().backward()
    assert z.grad is not None
    assert z.grad.device == torch.device("neuron:1")
    assert not z.grad.any()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.linalg.inv(x @ x.mT + 3 * torch.eye(3, device=x.device, dtype=x.dtype)),
        lambda x: x.softmax(-1),
        lambda x: functional.layer_norm(x, (3,)),
        functional.gelu,
        lambda x: x.cumsum(0)[:, ::2],
        lambda x: torch.cat([x, x.t()]).index_select(0, torch.tensor([0, 4], device=x.device)),
        lambda x: functional.scaled_dot_product_attention(x, x + 1, x * 2),
        Cube.apply,
    ],
    ids=["inv", "softmax", "layer_norm", "gelu", "cumsum", "select", "sdpa", "custom"],
)
def test_gradcheck(function: Any) -> None:
    x = leaf(3, 3, dtype=torch.float64)
    assert gradcheck(function, (x,))
    assert gradgradcheck(function, (x,))


def test_hooks_see_device_tensors() -> None:
    seen: dict[str, torch.device] = {}

    def note(name: str) -> Any:
        def hook(*arguments: Any) -> None:
            last = arguments[-1]
            tensor = last[0] if isinstance(last, tuple) else last
            seen[name] = tensor.device

        return hook

    model = nn.Linear(2, 2).to(DEVICE)
    model.register_forward_hook(note("forward"))
    model.register_full_backward_hook(note("backward"))
    model.weight.register_hook(note("tensor"))
    model.weight.register_post_accumulate_grad_hook(note("accumulated"))
    out = model(leaf(2, 2))
    out.grad_fn.register_hook(note("node"))
    out.sum().backward()
    names = {"forward", "backward", "tensor", "accumulated", "node"}
    assert seen == dict.fromkeys(names, torch.device("neuron:0"))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_replays_dropout(reentrant: bool) -> None:
    layers = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5), nn.Linear(64, 64)).to(DEVICE)
    x = leaf(8, 64)
    results = []
    for saved in (True, False):
        layers.zero_grad()
        x.grad = None
        torch.manual_seed(5)
        y = layers(x) if saved else checkpoint(layers, x, use_reentrant=reentrant)
        y.square().sum().backward()
        results.append([y, x.grad, *(p.grad for p in layers.parameters())])
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)


def test_saved_tensors_on_cpu() -> None:
    x = leaf(4, 4)
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        y = (x.exp() * x).sum()
    y.backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, (x.exp() * (1 + x)).detach())


def test_backward_in_many_threads_accumulates() -> None:
    x = leaf(100)
    errors: list[BaseException] = []

    def work(device: int) -> None:
        try:
            for _ in range(10):
                (x.to(f"neuron:{device}") ** 2).sum().backward()
        except BaseException as error:  # noqa: BLE001 - reported below, in the test's thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i % 4,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert x.grad is not None
    torch.testing.assert_close(x.grad, 160 * x.detach())


def test_graph_over_two_devices() -> None:
    x = leaf(10)
    y = x.to("neuron:1").sin() + (x * 2).to("neuron:1")
    y.to("neuron:2").sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, (x.cos() + 2).detach())


def test_in_place_change_of_a_saved_tensor_is_found() -> None:
    x = leaf(3)
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_second_backward_is_refused() -> None:
    y = leaf(3).exp().sum()
    y.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.backward()


def test_anomaly_mode_names_the_forward_operator() -> None:
    x = torch.zeros(2, device=DEVICE, requires_grad=True)
    with pytest.warns(UserWarning, match="Anomaly Detection"):
        anomaly = torch.autograd.detect_anomaly()
    with anomaly:
        y = torch.sqrt(x * -1 - 1).sum()
        with (
            pytest.warns(UserWarning, match="Error detected in SqrtBackward0"),
            pytest.raises(RuntimeError, match="returned nan values"),
        ):
            y.backward()


def test_inference_and_no_grad_modes() -> None:
    x = leaf(3)
    with torch.no_grad():
        assert not (x * 2).requires_grad
    with torch.inference_mode():
        y = x * 2
    assert y.is_inference()
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        _ = y * x


# PyTorch's own forward mode calls its deprecated TorchScript compiler.
FORWARD_MODE = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")


@FORWARD_MODE
def test_functional_transforms() -> None:
    x = leaf(3).detach()
    gradient = torch.func.grad(lambda t: t.sin().sum())(x)
    torch.testing.assert_close(gradient, x.cos())
    value, tangent, *_ = torch.func.jvp(torch.exp, (x,), (torch.ones_like(x),))
    torch.testing.assert_close(tangent, value)
    torch.testing.assert_close(torch.func.jacrev(lambda t: t**2)(x), torch.diag(2 * x))
    rows = torch.randn(5, 3, device=DEVICE)
    torch.testing.assert_close(torch.func.vmap(torch.dot, (0, None))(rows, x), rows @ x)


@FORWARD_MODE
def test_forward_mode() -> None:
    x = leaf(3).detach()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        tangent = torch.autograd.forward_ad.unpack_dual(dual.sin()).tangent
    torch.testing.assert_close(tangent, x.cos())


def test_retain_grad_and_backward_to_an_intermediate() -> None:
    x = leaf(3)
    y = x * 3
    y.retain_grad()
    (y**2).sum().backward()
    assert y.grad is not None
    torch.testing.assert_close(y.grad, (2 * y).detach())
    (partial,) = torch.autograd.grad((x * 5).sum(), x)
    assert partial.tolist() == [5, 5, 5]
