"""Recurrent networks, quantization, and captures that are refused, compiled."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import Parameter

from .dynamo_tools import check, host_operators


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch.compiler.reset()


@pytest.fixture
def networks() -> Iterator[None]:
    """Dynamo captures recurrent networks only if told to."""
    with torch._dynamo.config.patch(allow_rnn=True):
        yield


def operand(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator).to("neuron", dtype).requires_grad_()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell])
def test_cells(kind: type[nn.Module], bias: bool, dtype: torch.dtype) -> None:
    if kind is nn.LSTMCell and not bias:
        pytest.skip("PyTorch's own shape rule refuses LSTM cells without biases")
    torch.manual_seed(0)
    cell: Any = kind(3, 5, bias=bias).to("neuron", dtype)

    def function(x: Tensor, y: Tensor) -> Any:
        return cell(x, (y, y * 2) if kind is nn.LSTMCell else y)

    args = [operand(4, 3, dtype=dtype), operand(4, 5, dtype=dtype)]
    assert not host_operators(check(function, args))


@pytest.mark.slow
@pytest.mark.usefixtures("networks")
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_networks(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    network: Any = kind(3, 5, bidirectional=True).to("neuron")

    def function(x: Tensor) -> Any:
        return network(x)

    assert not host_operators(check(function, [operand(3, 2, 3)]))


@pytest.mark.usefixtures("networks", "reference")
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_networks_by_the_reference(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    assert not host_operators(check(kind(3, 5).to("neuron"), [operand(3, 2, 3)]))


@pytest.mark.usefixtures("networks")
def test_dropout_between_layers_is_refused() -> None:
    network = nn.LSTM(3, 5, num_layers=2, dropout=0.5).to("neuron")
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        torch.compile(network, backend="neuron")(operand(3, 2, 3))
    text = str(caught.value)
    assert "[NCC_ICAP001] cannot compile lstm with dropout between its layers" in text
    assert "remedy: leave torch._dynamo.config.allow_rnn off" in text
    network.eval()
    check(network, [operand(3, 2, 3)])


@pytest.mark.filterwarnings("ignore")  # Dynamo's own, of the profiler
def test_step_counts_on_the_cpu_are_refused() -> None:
    def step(**options: Any) -> list[float]:
        made = [Parameter(torch.ones(3, device="neuron")) for _ in range(2)]
        groups: list[dict[str, Any]] = [{"params": made[:1], "lr": 0.1}, {"params": made[1:]}]
        optimizer = torch.optim.AdamW(groups, lr=0.01, **options)
        compiled = torch.compile(optimizer.step, backend="neuron")
        for number in range(3):
            for p in made:
                p.grad = torch.ones_like(p)
            if number == 2:
                optimizer.param_groups[0]["lr"] = 0.05
            compiled()
        return [float(s["step"]) for s in optimizer.state.values()]

    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        step()
    assert "Dynamo loses the counts of all groups but the last" in str(caught.value)
    assert "remedy: construct the optimizer with capturable=True" in str(caught.value)
    torch.compiler.reset()
    assert step(capturable=True) == [3, 3]


def test_fake_quantization() -> None:
    scales = torch.tensor([0.1, 0.03, 0.2, 0.07], device="neuron")
    zeros = torch.tensor([0, 3, -2, 1], dtype=torch.int32, device="neuron")

    def function(x: Tensor) -> Any:
        whole = torch.fake_quantize_per_tensor_affine(x, 0.1, 2, -8, 7)
        by_tensor = torch.fake_quantize_per_tensor_affine(x, scales[:1], zeros[:1], -8, 7)
        channels = torch.fake_quantize_per_channel_affine(x, scales, zeros, 0, -8, 7)
        # A zero point between two levels is cut off for a tensor, and not for channels.
        cut = torch.fake_quantize_per_tensor_affine(x, scales[:1], zeros[1:2] + 0.7, -8, 7)
        between = torch.fake_quantize_per_channel_affine(x, scales, zeros + 0.7, 0, -8, 7)
        return whole, by_tensor, channels, cut, between

    assert not host_operators(check(function, [operand(4, 6)]))
    # The level of NaN, too, as the kernels have it, which convert to integers first.
    unknown = operand(4, 6).detach()
    unknown[:, 1] = torch.nan
    assert not any(result.isnan().any() for result in function(unknown))
    compiled, eager = torch.compile(function, backend="neuron")(unknown), function(unknown)
    for mine, other in zip(compiled[:-1], eager[:-1], strict=True):
        assert torch.equal(mine, other)
    # Of the difference to a zero point that is a float, compilers round one part or both.
    torch.testing.assert_close(compiled[-1], eager[-1], rtol=2.0**-22, atol=2.0**-23)


@pytest.mark.parametrize("executor", ["native", "reference"])
def test_host_results_under_a_mode(executor: str, request: pytest.FixtureRequest) -> None:
    """PyTorch computes this wrongly under any dispatch mode, such as AOTAutograd's own."""
    if executor == "reference":
        request.getfixturevalue("reference")
    x = torch.complex(operand(4, 4), operand(4, 4).t()).detach()
    got = torch.compile(torch.linalg.pinv, backend="neuron")(x)  # type: ignore[no-untyped-call]
    identity = torch.eye(4, dtype=x.dtype)
    # The error of an inverse is the condition number times eps, here below 64 * 32.
    torch.testing.assert_close((got @ x).cpu(), identity, rtol=0, atol=64 * 32 * 2.0**-23)
