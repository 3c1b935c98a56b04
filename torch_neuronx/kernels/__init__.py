"""Kernels of our own in NKI, as functions of PyTorch with gradients.

They run on neuron tensors and on the CPU, eager and compiled. Each has a reference of the same name
with `_reference`, made of PyTorch's operators. Those for serving (paged.py) have no gradients, and
come twice: as operators with a native implementation, and with `_nki` as kernels.
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
from torch_neuronx.kernels.paged import (
    paged_attention,
    paged_attention_reference,
    write_pages,
    write_pages_reference,
)
from torch_neuronx.kernels.paged_nki import paged_attention_nki, write_pages_nki
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
    "paged_attention",
    "paged_attention_nki",
    "paged_attention_reference",
    "quantized_matmul",
    "quantized_matmul_reference",
    "rms_norm",
    "rms_norm_reference",
    "rotary",
    "rotary_reference",
    "write_pages",
    "write_pages_nki",
    "write_pages_reference",
]
