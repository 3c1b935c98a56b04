"""The common parts of the references."""

from torch import Tensor

__all__ = ["wide"]


def wide(x: Tensor) -> Tensor:
    """Return a tensor as float32, or as it is if it is wider."""
    return x if x.is_floating_point() and x.element_size() > 4 else x.float()
