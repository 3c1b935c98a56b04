"""The graph compiler of TorchNeuron and the machines it compiles for.

This package imports neither torch nor nki; ``neuronxcc/ruff.toml`` holds it to that.
"""

__version__ = "0.1.0"
