"""Errors of plans."""


class PlanError(RuntimeError):
    """A program, or a machine, that cannot be planned; the message says what to do."""

    __module__ = "torch_neuronx.distributed"
