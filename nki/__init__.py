"""NKI, the Neuron Kernel Interface: kernels for NeuronCores, here on emulated ones."""

from nki.checking import check
from nki.kernel import Kernel, jit, simulate

__all__ = ["Kernel", "check", "jit", "simulate"]
