"""NKI, the Neuron Kernel Interface: kernels for NeuronCores, here on emulated ones."""

from nki.kernel import Kernel, jit, simulate

__all__ = ["Kernel", "jit", "simulate"]
