"""Errors of tracing."""

from __future__ import annotations


class TraceError(RuntimeError):
    """A function cannot be traced; the message says why and what to do."""

    __module__ = "torch_neuronx"


class InputError(ValueError, RuntimeError):
    """A call of a traced model got what the model was not traced for; the message names the input.

    The public documents promise a ValueError for some of these, and TorchScript a RuntimeError.
    """

    __module__ = "torch_neuronx"


class ModelFormatError(RuntimeError):
    """A saved traced model is damaged, or was made by something else."""

    __module__ = "torch_neuronx"
