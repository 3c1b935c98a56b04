"""What tracing raises."""

from __future__ import annotations


class TraceError(RuntimeError):
    """A function cannot be traced; the message says why and what to do."""

    __module__ = "torch_neuronx"


class ModelFormatError(RuntimeError):
    """A saved traced model is damaged, or was made by something else."""

    __module__ = "torch_neuronx"
