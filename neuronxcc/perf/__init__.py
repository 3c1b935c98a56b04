"""How long work takes on a NeuronCore: a timeline of its engines, their memories and transfers.

What is timed is a :class:`~neuronxcc.perf.stream.Stream`: instructions with the engine that runs
them, what they cost, and which memory they read and write. Nothing here knows how a stream came
about, and nothing here looks at a clock: the time of a stream on a target is a number that is the
same on every computer. See docs/performance.md.
"""

from neuronxcc.perf.estimate import predict
from neuronxcc.perf.model import CoreModel, model_of
from neuronxcc.perf.parameters import MODEL_VERSION, PARAMETERS, Parameter, Parameters
from neuronxcc.perf.prediction import Prediction
from neuronxcc.perf.stream import (
    ENGINES,
    QUEUES,
    RINGS,
    Loop,
    Product,
    Stream,
    Tile,
    Transfer,
    Work,
    Writer,
)

__all__ = [
    "ENGINES",
    "MODEL_VERSION",
    "PARAMETERS",
    "QUEUES",
    "RINGS",
    "CoreModel",
    "Loop",
    "Parameter",
    "Parameters",
    "Prediction",
    "Product",
    "Stream",
    "Tile",
    "Transfer",
    "Work",
    "Writer",
    "model_of",
    "predict",
]
