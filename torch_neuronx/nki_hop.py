"""The names of `torch_neuronx.nki` under which older code imports them."""

from torch_neuronx.nki import nki_op, wrap_nki

__all__ = ["nki_op", "wrap_nki"]
