"""Lowering: tensor IR to a program of loop kernels, matrix products and calls."""

from neuronxcc.lowering.lower import lower

__all__ = ["lower"]
