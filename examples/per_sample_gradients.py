"""Gradients of each sample by `torch.func`, and activations that wait on the host.

    python -m examples.per_sample_gradients

The gradient of every sample of a batch on its own, as private training clips it, is one call of
`vmap(grad(...))`; attention runs once for all of them. Then a compiled training step keeps what its
backward pass needs in the host's memory (`torch.autograd.graph.save_on_cpu`). Exit code 1 when
either differs from the CPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

SAMPLES, TOKENS, WIDTH = 8, 6, 16


def _layer(device: str) -> tuple[nn.Module, Tensor]:
    """A block of a transformer, and a batch for it [SAMPLES, TOKENS, WIDTH]."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.0, batch_first=True)
    return layer.to(device), torch.randn(SAMPLES, TOKENS, WIDTH).to(device)


def _loss(layer: nn.Module, parameters: dict[str, Tensor], sample: Tensor) -> Tensor:
    made: Tensor = functional_call(layer, parameters, (sample.unsqueeze(0),))
    return made.square().mean()


def _norms(layer: nn.Module, batch: Tensor, *, compiled: bool) -> Tensor:
    """The norm of each sample's gradient of all parameters [SAMPLES]."""
    each: Callable[..., dict[str, Tensor]] = vmap(grad(partial(_loss, layer)), in_dims=(None, 0))
    if compiled:
        each = torch.compile(each, backend="neuron")
    gradients = each({name: p.detach() for name, p in layer.named_parameters()}, batch)
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients.values()])
    joined: Tensor = norms.norm(dim=0)
    return joined.cpu()


def _norms_one_by_one(layer: nn.Module, batch: Tensor) -> Tensor:
    """The same by a backward pass for each sample."""
    parameters: dict[str, Tensor] = dict(layer.named_parameters())
    norms = []
    for sample in batch:
        loss = _loss(layer, parameters, sample)
        gradients = torch.autograd.grad(loss, list(parameters.values()))
        norms.append(torch.stack([g.norm() for g in gradients]).norm())
    return torch.stack(norms)


def _offloaded(layer: nn.Module, batch: Tensor, *, compiled: bool = False) -> Tensor:
    """The gradient of the batch, of a step that saves its activations on the host."""
    batch = batch.clone().requires_grad_()
    step = torch.compile(layer, backend="neuron") if compiled else layer
    with torch.autograd.graph.save_on_cpu():
        loss = step(batch).square().mean()
    (gradient,) = torch.autograd.grad(loss, batch)
    return gradient.cpu()


def run() -> list[str]:
    """Print the norms and compare. Returns what went wrong, in words."""
    failures = []
    device, host = _layer("neuron"), _layer("cpu")
    expected = _norms_one_by_one(*host)
    for compiled in (False, True):
        how = "compiled" if compiled else "eager"
        norms = _norms(*device, compiled=compiled)
        print(f"  norms of {SAMPLES} gradients, {how}: {norms.numpy().round(4)}")
        # float32, some 20 operators one behind the other, in another order
        if not torch.allclose(norms, expected, rtol=1e-4):
            failures.append(f"gradients of samples, {how}, differ from the CPU's")
        if not torch.allclose(_offloaded(*device, compiled=compiled), _offloaded(*host), atol=1e-6):
            failures.append(f"a step with activations on the host, {how}, differs from the CPU's")
    return failures


if __name__ == "__main__":
    sys.exit(1 if run() else 0)
