"""Zeros without memory, which autograd makes of gradients that are known to be zero.

PyTorch's fallback gives them memory before most operators; copies, and whatever is made of copies,
have to take them as they are.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

_READS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "clone": torch.Tensor.clone,
    "contiguous": torch.Tensor.contiguous,
    "channels_last": lambda z: z.contiguous(memory_format=torch.channels_last),
    "to_cpu": torch.Tensor.cpu,
    "to_dtype": lambda z: z.to(torch.bfloat16),
    "to_core": lambda z: z.to("neuron:1"),
    "copy_": lambda z: torch.ones_like(z).copy_(z),
    "copy_into_view": lambda z: torch.ones(4, 3, 4, 5, device=z.device)[::2].copy_(z),
    "copy_from_cpu_side": lambda z: torch.ones(z.shape).copy_(z),
    "setitem": lambda z: torch.ones(3, *z.shape, device=z.device).index_put_((torch.tensor(1),), z),
    "cat": lambda z: torch.cat([z, torch.ones_like(z)]),
    "stack": lambda z: torch.stack([z, z]),
    "view": lambda z: z.view(-1).clone(),
    "transposed": lambda z: z.transpose(0, 1).clone(),
    "expanded": lambda z: z[:1].expand(3, -1, -1, -1).contiguous(),
    "conj": lambda z: z.conj().clone(),
    "add": lambda z: z + 1,
    "mul": lambda z: z * torch.ones_like(z),
    "matmul": lambda z: z @ torch.ones(5, 2, device=z.device),
    "dot": lambda z: z.view(-1).dot(torch.ones(120, device=z.device)),
    "dot_with": lambda z: torch.ones(120, device=z.device).dot(z.view(-1)),
    "vdot": lambda z: z.view(-1).vdot(z.view(-1)),
    "sum": torch.Tensor.sum,
    "item": lambda z: torch.tensor(z[0, 0, 0, 0].item()),
    "nonzero": torch.Tensor.nonzero,
    "softmax": lambda z: z.softmax(-1),
    "foreach": lambda z: torch._foreach_add([z], 1.0)[0],
    "linear": lambda z: torch.nn.functional.linear(z, torch.ones(2, 5, device=z.device)),
    "out": lambda z: torch.add(z, 1, out=torch.empty(z.shape, device=z.device)),
}


@pytest.mark.parametrize("name", _READS)
def test_reading_zeros_without_memory(name: str) -> None:
    expected = _READS[name](torch._efficientzerotensor((2, 3, 4, 5), device="cpu"))
    got = _READS[name](torch._efficientzerotensor((2, 3, 4, 5), device="neuron"))
    torch.testing.assert_close(got.cpu().clone(), expected.cpu().clone(), rtol=0, atol=0)


@pytest.mark.parametrize("source", ["cpu", "neuron"])
def test_writing_to_zeros_without_memory_is_refused(source: str) -> None:
    z = torch._efficientzerotensor((3,), device="neuron")
    with pytest.raises(RuntimeError, match="ZeroTensors are immutable"):
        z.copy_(torch.ones(3, device=source))


def test_a_gradient_known_to_be_zero_arrives() -> None:
    gradients = []
    for device in ("cpu", "neuron"):
        x = torch.ones(4, device=device, requires_grad=True)
        torch.floor(x * 2).sum().backward()
        assert x.grad is not None
        gradients.append(x.grad.cpu())
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=0)
