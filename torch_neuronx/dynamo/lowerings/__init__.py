"""The lowerings, by family. Importing this package fills `TABLE`."""

from torch_neuronx.dynamo.lowerings import (
    activation,
    creation,
    index,
    linear,
    norm,
    pointwise,
    reduce,
    shape,
)
from torch_neuronx.dynamo.registry import TABLE

__all__ = [
    "TABLE",
    "activation",
    "creation",
    "index",
    "linear",
    "norm",
    "pointwise",
    "reduce",
    "shape",
]
