"""Annotations of tensor parameters: ``import neuronxcc.nki.typing as nt``."""  # noqa: A005 (its public name)

from nki.typing import TensorAnnotation, mutable_tensor, tensor

__all__ = ["TensorAnnotation", "mutable_tensor", "tensor"]
