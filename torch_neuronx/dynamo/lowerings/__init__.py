"""The lowerings, by family. Importing this package fills `TABLE`."""

from torch_neuronx.dynamo.lowerings import (
    activation,
    attention,
    control,
    conv,
    creation,
    distance,
    foreach,
    grouped,
    index,
    library,
    linear,
    norm,
    pointwise,
    random,
    reduce,
    shape,
    sorting,
)
from torch_neuronx.dynamo.registry import TABLE

__all__ = [
    "TABLE",
    "activation",
    "attention",
    "control",
    "conv",
    "creation",
    "distance",
    "foreach",
    "grouped",
    "index",
    "library",
    "linear",
    "norm",
    "pointwise",
    "random",
    "reduce",
    "shape",
    "sorting",
]
