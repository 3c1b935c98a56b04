"""Kernels of our own in NKI, as functions of PyTorch with gradients.

They run on neuron tensors and on the CPU, eager and compiled. Each has a reference of the same name
with `_reference`, made of PyTorch's operators.
"""

from torch_neuronx.kernels.attention import attention, attention_reference
from torch_neuronx.kernels.conv import (
    conv2d,
    conv2d_reference,
    conv_transpose2d,
    conv_transpose2d_reference,
)
from torch_neuronx.kernels.loss import cross_entropy, cross_entropy_reference
from torch_neuronx.kernels.matmul import (
    matmul,
    matmul_reference,
    quantized_matmul,
    quantized_matmul_reference,
)
from torch_neuronx.kernels.mx import mx_matmul, mx_matmul_reference
from torch_neuronx.kernels.norm import rms_norm, rms_norm_reference
from torch_neuronx.kernels.rotary import rotary, rotary_reference

__all__ = [
    "attention",
    "attention_reference",
    "conv2d",
    "conv2d_reference",
    "conv_transpose2d",
    "conv_transpose2d_reference",
    "cross_entropy",
    "cross_entropy_reference",
    "matmul",
    "matmul_reference",
    "mx_matmul",
    "mx_matmul_reference",
    "quantized_matmul",
    "quantized_matmul_reference",
    "rms_norm",
    "rms_norm_reference",
    "rotary",
    "rotary_reference",
]
