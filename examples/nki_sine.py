"""A kernel of one's own in PyTorch: sine written in NKI, with cosine as its gradient.

    python -m examples.nki_sine

The kernels are the first ones of TorchNeuron's documentation. They are used twice: inside of a
`torch.autograd.Function`, and as operators that `nki_op` registers; eager and compiled.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import nki.language as nl
from torch_neuronx import nki, nki_op

# float32 throughout; the engine's sine and the CPU's may differ in the last bits.
TOLERANCE = 1e-5


@nki.jit
def sin_kernel(in_ptr0: Any, out_ptr: Any) -> None:
    input_tile = nl.load(in_ptr0[0:128])
    output_tile = nl.sin(input_tile)
    nl.store(out_ptr[0:128], value=output_tile)


@nki.jit
def cos_kernel(in_ptr0: Any, out_ptr: Any) -> None:
    input_tile = nl.load(in_ptr0[0:128])
    output_tile = nl.cos(input_tile)
    nl.store(out_ptr[0:128], value=output_tile)


class Sine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        output = torch.empty_like(x)
        sin_kernel(x, output)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        cosine = torch.empty_like(x)
        cos_kernel(x, cosine)
        return grad * cosine


@nki_op("examples::sin", mutates_args={})
def sin_op(x: Tensor) -> Tensor:
    output = torch.empty_like(x)
    sin_kernel(x, output)
    return output


@nki_op("examples::cos", mutates_args={})
def cos_op(x: Tensor) -> Tensor:
    output = torch.empty_like(x)
    cos_kernel(x, output)
    return output


def _save(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    del output
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> Any:
    (x,) = ctx.saved_tensors
    return grad * cos_op(x)


sin_op.register_autograd(_backward, setup_context=_save)


def by_function(x: Tensor) -> Any:
    return Sine.apply(x)  # type: ignore[no-untyped-call]


def differences(sine: Callable[[Tensor], Tensor]) -> tuple[float, float]:
    """Largest differences of values and gradients from PyTorch's own sine and cosine."""
    x = torch.randn(128, device="neuron", requires_grad=True)
    y = sine(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    return (y - x.sin()).abs().max().item(), (gradient - x.cos()).abs().max().item()


def run() -> list[str]:
    """Run all four ways. Returns what went wrong, in words."""
    torch.manual_seed(0)
    wrong = []
    for name, function in (("autograd.Function", by_function), ("nki_op", sin_op)):
        compiled = torch.compile(function, backend="neuron", fullgraph=True)
        for mode, sine in (("eager", function), ("compiled", compiled)):
            value, gradient = differences(sine)
            print(f"{name:18} {mode:9} sine differs by {value:.1e}, its gradient by {gradient:.1e}")
            if max(value, gradient) > TOLERANCE:
                wrong.append(f"NKI's sine ({name}, {mode}) is off by {max(value, gradient):.1e}")
    return wrong


if __name__ == "__main__":
    sys.exit("\n".join(run()) or None)
