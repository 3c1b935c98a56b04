"""Kernels of our own in NKI, as functions of PyTorch with gradients.

They run on neuron tensors and on the CPU, eager and compiled. Each has a reference of the same name
with `_reference`, made of PyTorch's operators.
"""

from torch_neuronx.kernels.attention import attention, attention_reference

__all__ = ["attention", "attention_reference"]
